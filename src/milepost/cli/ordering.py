"""The order of a listing, and how much of it is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from milepost.errors import ConfigError
from milepost.records import Checkpoint

_FACTS: dict[str, Callable[[Checkpoint], float | None]] = {
    "step": lambda checkpoint: checkpoint.step,
    "epoch": lambda checkpoint: checkpoint.epoch,
    "age": lambda checkpoint: -checkpoint.created,
    "size": lambda checkpoint: checkpoint.size,
}


def ordered(
    checkpoints: Sequence[Checkpoint], *, sort: str | None, reverse: bool, limit: int | None
) -> tuple[Checkpoint, ...]:
    """Checkpoints in commit order, brought into the order of a fact or a metric, and cut to ``limit``.

    Those without it, or with one that is no number, come last either way. Without ``sort`` the newest are the ones
    that stay. Raises ConfigError naming what there is to sort by.
    """
    if sort is None:
        newest = checkpoints[len(checkpoints) - limit if limit is not None and limit < len(checkpoints) else 0 :]
        return tuple(newest[::-1] if reverse else newest)
    metrics = sorted({name for checkpoint in checkpoints for name in checkpoint.metrics})
    if sort not in _FACTS and sort not in metrics and checkpoints:
        raise ConfigError(
            f"--sort {sort}: there are {', '.join([*_FACTS, *metrics])} to sort by", key="sort", value=sort
        )
    values = [(_FACTS[sort](each) if sort in _FACTS else each.metrics.get(sort), each) for each in checkpoints]
    known = [(value, each) for value, each in values if value is not None and not math.isnan(value)]
    rest = [each for value, each in values if value is None or math.isnan(value)]
    known.sort(key=lambda pair: pair[0], reverse=reverse)
    return (*(each for _, each in known), *rest)[:limit]
