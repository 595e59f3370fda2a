"""How much memory this process holds, and held at most, in bytes, as Linux counts it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Resident memory now: anonymous, shared and mapped files together."""
    return _field("VmRSS")


def peak_bytes() -> int:
    """The most that was resident since the start or the last ``reset_peak``."""
    return _field("VmHWM")


def reset_peak() -> int:
    """Let the peak begin anew; gives what is resident now."""
    gc.collect()
    # What the allocator keeps for later would hide as much of a later peak.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    _CLEAR_REFS.write_text("5")
    return resident_bytes()


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{_STATUS} has no {name}")
