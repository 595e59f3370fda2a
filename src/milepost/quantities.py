"""Numbers as people give them: sizes, lengths of time, counts, scores."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SECONDS = {"": 1, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_size(size: int | str, what: str) -> int:
    """A size in bytes from a number or a text such as ``"5GB"`` (10^9) or ``"512MiB"`` (2^20).

    Raises ValueError or TypeError naming ``what`` for anything else, and for less than one byte.
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"{what}={size!r} must be a number of bytes or a text such as '5GB'")
    match = _NUMBER_AND_UNIT.fullmatch(str(size))
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{what}={size!r} is not a size; write a number of bytes or a text such as '5GB' or '512MiB'")
    count = int(float(match[1]) * _UNITS[match[2].upper()])
    if count < 1:
        raise ValueError(f"{what}={size!r} must be at least one byte")
    return count


def format_size(count: float) -> str:
    """A size for people: ``1.4 GB`` (decimal units, as disks are sold)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def parse_duration(duration: float | str, what: str) -> float:
    """A length of time in seconds, from a number of them or a text: ``"90s"``, ``"30min"``, ``"2h"``, ``"7d"``.

    Raises ValueError or TypeError naming ``what`` for anything else, and for less than nothing.
    """
    if isinstance(duration, bool) or not isinstance(duration, int | float | str):
        raise TypeError(f"{what}={duration!r} must be a number of seconds or a text such as '2h'")
    if isinstance(duration, str):
        match = _NUMBER_AND_UNIT.fullmatch(duration)
        if match is None or match[2].lower() not in _SECONDS:
            raise ValueError(
                f"{what}={duration!r} is not a length of time; write seconds, '90s', '30min', '2h' or '7d'"
            )
        duration = float(match[1]) * _SECONDS[match[2].lower()]
    if not (math.isfinite(duration) and duration >= 0):
        raise ValueError(f"{what}={duration!r} must be a finite number of seconds, at least 0")
    return float(duration)


def format_duration(seconds: float) -> str:
    """A length of time for people, in its largest unit: ``3 h``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def whole_number(value: Any, what: str) -> int:
    """A whole number from an int or what behaves as one (NumPy's integers). Raises TypeError naming ``what``."""
    if isinstance(value, bool):
        raise TypeError(f"{what}={value!r} must be a whole number")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what}={value!r} must be a whole number, not {type(value).__name__}") from None


def one_of(value: T, what: str, *choices: str) -> T:
    """The value, if it is one of the choices. Raises ValueError naming ``what`` and the choices otherwise."""
    if value not in choices:
        raise ValueError(f"{what}={value!r} must be {' or '.join(map(repr, choices))}")
    return value


def own_value(value: Any) -> Any:
    """The value itself; of a tensor a copy without the graph that made it, since it may be read much later."""
    return value.detach().clone() if hasattr(value, "detach") else value


def read_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Scores as floats; a tensor is read from its device. Raises TypeError or ValueError naming the metric."""
    numbers = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise TypeError(f"metrics: the name {name!r} must be a text")
        try:
            numbers[name] = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            kind = ValueError if isinstance(error, OverflowError) else type(error)
            raise kind(f"metrics[{name!r}] is {type(value).__name__}, not one number: {error}") from None
    return numbers
