"""Numbers over steps, drawn with letters."""

from __future__ import annotations

import math
import shutil

from milepost.cli.reporting import score
from milepost.errors import MilepostError
from milepost.series import Series

_ROWS = 14
_MARKS = "*o+x#%@"


def chart(series: Series) -> list[str]:
    """Lines as wide as the terminal: one letter for each metric, and the steps that are saved below.

    Raises MilepostError if none of the numbers is finite.
    """
    marks = dict(zip(series.numbers, _MARKS * len(series.numbers), strict=False))
    points = [
        (step, value, marks[name])
        for name, values in series.numbers.items()
        for step, value in values.items()
        if math.isfinite(value)
    ]
    if not points:
        raise MilepostError("none of these numbers is finite: nothing to show")
    low, high = min(value for _, value, _ in points), max(value for _, value, _ in points)
    first, last = min(step for step, _, _ in points), max(step for step, _, _ in points)
    names = [score(high), *[""] * (_ROWS - 2), score(low)]
    margin = max(len("saved"), *map(len, names))
    width = max(20, shutil.get_terminal_size().columns - margin - 2)
    grid = [[" "] * width for _ in range(_ROWS)]
    for step, value, mark in points:
        row = round((high - value) / ((high - low) or 1) * (_ROWS - 1))
        grid[row][_column(step, first, last, width)] = mark
    saves = [" "] * width
    for step in series.saved:
        if first <= step <= last:
            saves[_column(step, first, last, width)] = "!" if step in series.unhealthy else "^"
    lines = [f"{name:>{margin}} |{''.join(row)}".rstrip() for name, row in zip(names, grid, strict=True)]
    lines.append(f"{'saved':>{margin}}  {''.join(saves)}".rstrip())
    lines.append(" " * (margin + 2) + f"{first:<{width - len(str(last))}}{last}")
    told = ", ".join(f"{mark} {name}" for name, mark in marks.items())
    return [*lines, f"{told}; ^ saved" + ("; ! unhealthy" if series.unhealthy else "")]


def _column(step: int, first: int, last: int, width: int) -> int:
    return round((step - first) / max(last - first, 1) * (width - 1))
