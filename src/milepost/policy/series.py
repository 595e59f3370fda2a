"""The steps of a series that is dense early and sparse late; schedules and keep rules share it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from milepost.policy.arguments import positive, whole

# Together these keep a series short enough to be made once and looked up at every step.
_SMALLEST_FACTOR = 1.001
_FAR_AWAY = 10**15


def series_arguments(rule: str, first: Any, factor: Any) -> tuple[int, float]:
    """The series' first step and its factor, checked. Raises TypeError or ValueError naming rule and argument."""
    checked = whole(rule, "first", first, 1), positive(rule, "factor", factor, above=1.0)
    if checked[1] < _SMALLEST_FACTOR:
        raise ValueError(f"{rule}(factor={factor!r}): factor must be at least {_SMALLEST_FACTOR}")
    return checked


@lru_cache(maxsize=64)
def log_series(first: int, factor: float) -> tuple[int, ...]:
    """``first``, then each time the step has grown by ``factor`` (rounded up); it ends at 10^15."""
    series = [first]
    # Compared before it is rounded: a large factor leads to infinity, which has no whole number.
    while series[-1] < _FAR_AWAY and (grown := series[-1] * factor) <= _FAR_AWAY:
        series.append(max(series[-1] + 1, math.ceil(grown)))
    return tuple(series)
