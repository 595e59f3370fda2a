"""Where the numbers of each step go: ``metrics.jsonl`` in the run's folder, one JSON object a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from milepost.series import METRICS_FILE


class MetricLogger(Protocol):
    """Takes the numbers of logged steps. After a resume the same steps come again; they replace what was there."""

    def go_on_after(self, step: int) -> None:
        """Forget what was logged for later steps: the run goes on from here."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Note the numbers of one step, durably: a checkpoint committed later must find them on disk."""

    def close(self) -> None:
        """Give back what is open."""


class JsonLinesLogger:
    """Appends one line a step to a file; whatever a run went through, no step is there twice."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS_FILE
        self._file: BinaryIO | None = None

    def go_on_after(self, step: int) -> None:
        """Drop lines of later steps, and a last line that a killed process did not finish; all at once or not."""
        if self.path.exists():
            content = self.path.read_bytes()
            kept = b"".join(_lines_up_to(step, content))
            if kept != content:
                _replace(self.path, kept)
        self._file = open(self.path, "ab")  # noqa: SIM115

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one line, and wait until it is on the disk."""
        if self._file is None:
            raise ValueError("go_on_after() comes before the first log()")
        line = {"step": step, **{name: _jsonable(value) for name, value in numbers.items()}}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        # Not only on close: a checkpoint that outlives a power cut must find the lines of its steps.
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _lines_up_to(step: int, content: bytes) -> Iterable[bytes]:
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return
        try:
            found = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            # Not a line of ours; only what this run wrote is its to take back.
            yield line
            continue
        if not isinstance(found, int) or found <= step:
            yield line


def _replace(path: Path, content: bytes) -> None:
    # Always the same name, so that a draft that a killed process left is used up by the next one.
    draft = path.with_name(f"{path.name}.draft")
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _jsonable(value: Any) -> Any:
    # JSON has no NaN; a diverged run's file must stay readable.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
