"""Checks that rules make of their arguments, where they are written."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

from milepost.records import Level


def whole(rule: str, name: str, value: Any, least: int) -> int:
    """``value`` as an int of at least ``least``; NumPy's integers are welcome, bools are not.

    Raises TypeError or ValueError naming the rule, the argument and the value.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{rule}({name}={value!r}): {name} must be a whole number of at least {least}")
    number = operator.index(value)
    if number < least:
        raise ValueError(f"{rule}({name}={value!r}): {name} must be a whole number of at least {least}")
    return number


def positive(rule: str, name: str, value: Any, above: float = 0.0) -> float:
    """``value`` as a finite float above ``above``. Raises TypeError or ValueError naming rule, argument and value."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{rule}({name}={value!r}): {name} must be a number above {above:g}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number > above):
        raise ValueError(f"{rule}({name}={value!r}): {name} must be a finite number above {above:g}")
    return number


def one_of(rule: str, name: str, value: Any, choices: tuple[str, ...]) -> str:
    """``value`` if it is among ``choices``. Raises ValueError naming rule, argument and value."""
    if value not in choices:
        raise ValueError(f"{rule}({name}={value!r}): {name} must be one of {', '.join(map(repr, choices))}")
    return str(value)


def level_argument(rule: str, value: Any) -> Level:
    """``value`` as a level. Raises ValueError naming rule and value."""
    return Level(one_of(rule, "level", value, tuple(level.value for level in Level)))
