"""Which checkpoint to resume from."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Literal

from milepost.policy.health import healthy_first
from milepost.records import Checkpoint


def resume_candidates(
    checkpoints: Sequence[Checkpoint], source: Literal["auto", "healthy"] | int
) -> tuple[Checkpoint, ...]:
    """The checkpoints to try, in order: for ``"auto"`` the newest commit first, for a step that one alone.

    For ``"healthy"`` the newest healthy one first; those of an older run, of which nothing is known, come last.

    Only full ones can be resumed from. "Newest" is commit order, not the largest step. Raises TypeError for a
    ``source`` that is neither.
    """
    if source not in ("auto", "healthy") and (isinstance(source, bool) or not isinstance(source, numbers.Integral)):
        raise TypeError(f"resume(source={source!r}): source must be 'auto', 'healthy' or a step")
    full = sorted(
        (checkpoint for checkpoint in checkpoints if checkpoint.resumable),
        key=lambda checkpoint: (checkpoint.serial, checkpoint.created, checkpoint.step),
        reverse=True,
    )
    if source == "auto":
        return tuple(full)
    return (
        healthy_first(full)
        if source == "healthy"
        else tuple(checkpoint for checkpoint in full if checkpoint.step == source)
    )
