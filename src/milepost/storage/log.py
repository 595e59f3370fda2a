"""The run's log of what became of its checkpoints: ``.milepost/log.jsonl``, one JSON object a line, only added to.

A line is written before what it tells of is done, so that nothing ever goes without a trace; after a crash the last
line may therefore tell of something that was not done, or be torn.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from milepost.quantities import format_size
from milepost.storage.backend import Backend
from milepost.storage.json_text import json_bytes
from milepost.storage.layout import RunFolder

logger = logging.getLogger("milepost")

_LONGEST = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """What became of a checkpoint: pruned, demoted, swept, superseded, undeleted, pinned or unpinned.

    ``time`` is in seconds since 1970 (UTC), ``bytes`` what it gave back, or holds while it is in the trash. ``name``
    is the folder's name there, and ``until`` the time up to which it stays at least.
    """

    time: float
    what: str
    step: int | None
    why: str = ""
    bytes: int = 0
    name: str | None = None
    until: float | None = None


def record(run: RunFolder, backend: Backend, events: Iterable[Event]) -> None:
    """Add events, durably, in one piece. That it cannot be done is a warning: a full disk must not stop a sweep."""
    lines = b"".join(json_bytes(_line(event)) for event in events)
    if not lines:
        return
    try:
        if not run.control.is_dir():
            backend.make_folder(run.control)
        fresh = not run.log.exists()
        backend.append(run.log, (b"" if fresh or _ends_well(run) else b"\n") + lines)
        if fresh:
            backend.sync_folder(run.control)
    except OSError as error:
        logger.warning("%s could not be written (%s); it lacks what became of some checkpoints", run.log, error)


def read_log(run: RunFolder) -> list[Event]:
    """All events, the oldest first; lines that are torn or not ours are left out. Raises OSError."""
    try:
        if run.log.is_symlink():
            return []
        with open(run.log, "rb") as file:
            text = file.read(_LONGEST)
    except FileNotFoundError:
        return []
    return [event for line in text.splitlines() if (event := _event(line)) is not None]


def unexpired(run: RunFolder, now: float) -> frozenset[str]:
    """The names in the trash whose grace has not ended."""
    until = {event.name: event.until for event in read_log(run) if event.what == "pruned"}
    return frozenset(name for name, end in until.items() if name is not None and end is not None and end > now)


def describe(event: Event) -> str:
    """An event in a few words, without its time."""
    size = f" ({format_size(event.bytes)})" if event.bytes else ""
    return f"{event.what}{size}" + (f": {event.why}" if event.why else "")


def _line(event: Event) -> dict[str, Any]:
    line: dict[str, Any] = {
        "time": round(event.time, 3),
        "step": event.step,
        "what": event.what,
        "why": event.why,
        "bytes": event.bytes,
    }
    if event.name is not None:
        line["name"] = event.name
    if event.until is not None:
        line["until"] = round(event.until, 3)
    return line


def _event(line: bytes) -> Event | None:
    try:
        found = json.loads(line)
        step, until, name = found["step"], found.get("until"), found.get("name")
        return Event(
            float(found["time"]),
            str(found["what"]),
            None if step is None else int(step),
            str(found.get("why", "")),
            int(found.get("bytes", 0)),
            None if name is None else str(name),
            None if until is None else float(until),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _ends_well(run: RunFolder) -> bool:
    with open(run.log, "rb") as file:
        if file.seek(0, 2) == 0:
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"
