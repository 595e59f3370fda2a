"""Which checkpoint to resume from."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Literal

from milepost.records import Checkpoint


def resume_candidates(checkpoints: Sequence[Checkpoint], source: Literal["auto"] | int) -> tuple[Checkpoint, ...]:
    """The checkpoints to try, in order: for ``"auto"`` the newest commit first, for a step that one alone.

    Only full ones can be resumed from. "Newest" is commit order, not the largest step. Raises TypeError for a
    ``source`` that is neither.
    """
    if source != "auto" and (isinstance(source, bool) or not isinstance(source, numbers.Integral)):
        raise TypeError(f"resume(source={source!r}): source must be 'auto' or a step")
    full = sorted(
        (checkpoint for checkpoint in checkpoints if checkpoint.resumable),
        key=lambda checkpoint: (checkpoint.serial, checkpoint.created, checkpoint.step),
        reverse=True,
    )
    return tuple(full) if source == "auto" else tuple(checkpoint for checkpoint in full if checkpoint.step == source)
