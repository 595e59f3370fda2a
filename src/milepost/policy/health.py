"""Is training sound? A loss is judged by those before it, and checkpoints by what was said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from milepost.policy.arguments import positive, whole
from milepost.records import Checkpoint

# Of a normal distribution, the standard deviation by the median absolute deviation.
_DEVIATIONS = 1.4826
# A band is never narrower than this share of its median: losses that hardly differ are no reason to stop.
_NARROWEST = 0.02
_PROTECTED = 2


@dataclass(frozen=True, slots=True)
class LossBand:
    """A loss is unsound if it is no number, or higher than all that the last ``window`` sound losses lead to expect.

    Too high is more than ``width`` robust standard deviations (from the median absolute deviation, so that single
    outliers do not widen it) above their median. Before ``least`` sound losses, only a loss that is no number is
    unsound; a low one never is.
    """

    window: int = 100
    width: float = 12.0
    least: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", whole("LossBand", "window", self.window, 2))
        object.__setattr__(self, "width", positive("LossBand", "width", self.width))
        object.__setattr__(self, "least", whole("LossBand", "least", self.least, 2))
        if self.least > self.window:
            raise ValueError(f"LossBand(least={self.least}): least must be at most window, {self.window}")

    def fault(self, recent: Sequence[float], loss: float) -> str | None:
        """What is wrong with a loss after the ``recent`` sound ones; None if nothing is."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        losses = recent[-self.window :]
        if len(losses) < self.least:
            return None
        middle = median(losses)
        spread = _DEVIATIONS * median(abs(each - middle) for each in losses)
        top = middle + self.width * max(spread, _NARROWEST * abs(middle))
        if loss <= top:
            return None
        return (
            f"the loss is {loss:.4g}, above {top:.4g}: the last {len(losses)} sound ones have the median {middle:.4g}"
        )


def protected_by_health(checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Of checkpoints in commit order, the newest healthy ones that must stay while a later one is unhealthy.

    Two, since the fault may have begun before it was seen.
    """
    unhealthy = max((at for at, each in enumerate(checkpoints) if each.healthy is False), default=0)
    healthy = [at for at, each in enumerate(checkpoints) if each.healthy is True and each.resumable]
    if not healthy or unhealthy < healthy[-1]:
        return ()
    return tuple(checkpoints[at] for at in healthy[-_PROTECTED:])


def healthy_first(checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Of checkpoints, newest first, those to go on from: the healthy ones, then those from before anything was judged.

    Of one that nobody judged, committed after an unhealthy one, nothing good is known.
    """
    known = [each for each in checkpoints if each.healthy is True]
    first_fault = min((each.serial for each in checkpoints if each.healthy is False), default=None)
    unknown = [
        each for each in checkpoints if each.healthy is None and (first_fault is None or each.serial < first_fault)
    ]
    return (*known, *unknown)
