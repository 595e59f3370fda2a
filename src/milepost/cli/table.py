"""A plain table of texts. rich draws finer ones, and takes longer over 200 rows than all the rest of `ls`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()) -> list[str]:
    """Lines of columns two spaces apart: numbers to the right, columns named in ``left`` and the last to the left.

    The last column is wrapped to the terminal's width.
    """
    last = len(header) - 1
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(last)]
    room = max(20, shutil.get_terminal_size().columns - sum(widths) - 2 * last)
    lines = []
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(header, row, widths, strict=False)
        ]
        start = "  ".join(cells)
        wrapped = textwrap.wrap(row[last], room) or [""]
        lines.append(f"{start}  {wrapped[0]}".rstrip())
        lines += [" " * (len(start) + 2) + rest for rest in wrapped[1:]]
    return lines
