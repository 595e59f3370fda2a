"""Calls to the system that Python has not, or not on every system; each does nothing where there is no such call."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import sys

# Without room, none of these helps: all else only means that the file system does not do it.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_RANGE_WRITE = 2
_RANGE_WAIT_BEFORE_WRITE_WAIT_AFTER = 1 | 2 | 4

if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
    _fallocate = getattr(_libc, "fallocate", None)
    _sync_file_range = getattr(_libc, "sync_file_range", None)
    if _fallocate is not None:
        _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if _sync_file_range is not None:
        _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def preallocate(descriptor: int, size: int) -> None:
    """Give a new file its blocks at once. Raises OSError if there is no room for them.

    Not ``posix_fallocate``: where the file system cannot, that one writes zeros.
    """
    if sys.platform == "linux" and _fallocate is not None and _fallocate(descriptor, 0, 0, size) != 0:
        code = ctypes.get_errno()
        if code in _FULL:
            raise OSError(code, os.strerror(code))


def begin_writing(descriptor: int, start: int, length: int) -> None:
    """Let the system begin to write a range from its cache to the disk."""
    if sys.platform == "linux" and _sync_file_range is not None:
        _sync_file_range(descriptor, start, length, _RANGE_WRITE)


def drop_written(descriptor: int, start: int, length: int) -> None:
    """Wait until a range is written, and take it out of the system's cache. What fails shows at the sync."""
    if sys.platform == "linux" and _sync_file_range is not None:
        _sync_file_range(descriptor, start, length, _RANGE_WAIT_BEFORE_WRITE_WAIT_AFTER)
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def leave_direct(descriptor: int, flag: int) -> None:
    """From here on the descriptor's writes go through the system's cache."""
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~flag)


def sync(descriptor: int) -> None:
    """Force a file or folder to the disk, on macOS through the drive's cache too. Raises OSError."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            # Network file systems have no such thing.
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(descriptor)
    else:
        os.fsync(descriptor)
