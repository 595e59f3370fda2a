"""Numbers as people give them: sizes, counts, scores."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_size(size: int | str, what: str) -> int:
    """A size in bytes from a number or a text such as ``"5GB"`` (10^9) or ``"512MiB"`` (2^20).

    Raises ValueError or TypeError naming ``what`` for anything else, and for less than one byte.
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"{what}={size!r} must be a number of bytes or a text such as '5GB'")
    match = _SIZE.fullmatch(str(size))
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


def whole_number(value: Any, what: str) -> int:
    """A whole number from an int or what behaves as one (NumPy's integers). Raises TypeError naming ``what``."""
    if isinstance(value, bool):
        raise TypeError(f"{what}={value!r} must be a whole number")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what}={value!r} must be a whole number, not {type(value).__name__}") from None


def own_value(value: Any) -> Any:
    """The value itself; of a tensor a copy without the graph that made it, since it may be read much later."""
    return value.detach().clone() if hasattr(value, "detach") else value


def epoch_of(values: Iterable[Any]) -> int | None:
    """The epoch that the first of these that counts epochs is in; None if none does."""
    epochs = (getattr(value, "epoch", None) for value in values)
    return next((epoch for epoch in epochs if type(epoch) is int), None)


def read_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Scores as floats; a tensor is read from its device. Raises TypeError or ValueError naming the metric."""
    numbers = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise TypeError(f"metrics: the name {name!r} must be a text")
        try:
            numbers[name] = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise type(error)(f"metrics[{name!r}] is {type(value).__name__}, not one number: {error}") from None
    return numbers
