"""Host memory: large page-aligned buffers, and bytes moved without holding the interpreter."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from ctypes.util import find_library

import numpy as np

PAGE = 4096
# Linux 5.14 and newer: pages are made present and writable, and what is in them stays.
_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(find_library("c") if sys.platform == "darwin" else None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.restype = ctypes.c_int


class Arena:
    """``size`` bytes of memory of its own, page-aligned, given back by the last view of it that goes.

    A forked child does not have it: its pages would be copied one by one while the parent goes on writing to them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_DONTFORK"):
            # Left undone it costs time, not correctness.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_DONTFORK)
        self.view = memoryview(self._map)[:size]
        self.address = address_of(self.view)

    def touch(self, start: int, end: int) -> None:
        """Make the pages of a range present ahead of use, which is slow once; where the system cannot, nothing."""
        first, last = start // PAGE * PAGE, min(-(-end // PAGE) * PAGE, -(-self.size // PAGE) * PAGE)
        if sys.platform == "linux" and last > first:
            # Not the method of mmap: it would hold the interpreter meanwhile.
            _libc.madvise(self.address + first, last - first, _MADV_POPULATE_WRITE)


def address_of(view: memoryview) -> int:
    """Where a view's bytes lie, writable or not; 0 for an empty one."""
    return int(np.frombuffer(view, np.uint8).ctypes.data) if view.nbytes else 0


def move(target: int, source: int, length: int) -> None:
    """Copy ``length`` bytes between addresses, other threads running meanwhile."""
    ctypes.memmove(target, source, length)


def copy(target: memoryview, source: memoryview) -> None:
    """Copy a view of bytes to another of the same length, other threads running meanwhile."""
    if target.nbytes != source.nbytes:
        raise ValueError(f"{source.nbytes} bytes do not fit into {target.nbytes}")
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
