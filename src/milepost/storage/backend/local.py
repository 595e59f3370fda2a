"""A local (or locally mounted) POSIX file system."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

if sys.platform == "darwin":
    import fcntl

# os.write takes at most 2 GiB - 4 KiB at once on Linux and fails above INT_MAX on macOS.
_MOST_AT_ONCE = 1 << 30
# A file system that cannot sync a folder says one of these; its names are then as durable as it makes them.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


class LocalFile:
    """A new local file, written through one descriptor."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: memoryview | bytes) -> None:
        """Append all of ``data``, however many calls the system needs for it."""
        rest = memoryview(data)
        while rest.nbytes:
            rest = rest[os.write(self._descriptor, rest[:_MOST_AT_ONCE]) :]

    def sync(self) -> None:
        """Force the file to the disk (on macOS through the drive's cache, which fsync alone does not empty)."""
        _sync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor once."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class LocalBackend:
    """The operations of ``Backend`` as plain system calls."""

    def create(self, path: Path) -> LocalFile:
        """A new file for writing."""
        return LocalFile(path)

    def make_folder(self, path: Path) -> None:
        """A new folder."""
        os.mkdir(path)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file or folder atomically."""
        os.rename(source, target)

    def sync_folder(self, path: Path) -> None:
        """Force the folder's names to the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(descriptor)

    def remove_file(self, path: Path) -> None:
        """Remove a file or a symbolic link."""
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def append(self, path: Path, data: bytes) -> None:
        """Add to a file's end and force it to the disk."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o666)
        try:
            rest = memoryview(data)
            while rest.nbytes:
                rest = rest[os.write(descriptor, rest) :]
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, path: Path, target: str) -> None:
        """A new symbolic link."""
        os.symlink(target, path)

    def free_bytes(self, path: Path) -> int:
        """What an unprivileged writer may still use."""
        return shutil.disk_usage(path).free


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)
