"""A local (or locally mounted) POSIX file system."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from milepost.memory import PAGE, address_of
from milepost.storage.backend import system

# os.write takes at most 2 GiB - 4 KiB at once on Linux and fails above INT_MAX on macOS.
_MOST_AT_ONCE = 1 << 30
# A file system that cannot sync a folder says one of these; its names are then as durable as it makes them.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
# What a file system says to direct I/O that it does not do, at opening or at the first write.
_NO_DIRECT = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)


class LocalFile:
    """A new local file, written through one descriptor.

    Large ones are written past the system's cache where the file system does that. Where it does not, writing to the
    disk begins at once all the same, and what is there leaves the cache, which has better uses.
    """

    def __init__(self, path: Path, size: int | None = None, *, direct: bool = False) -> None:
        self._large = size is not None
        self._written = self._dropped = 0
        self._direct = direct and size is not None and _O_DIRECT != 0
        self._descriptor = self._open(path)
        if size:
            try:
                system.preallocate(self._descriptor, size)
            except BaseException:
                self.close()
                raise

    @property
    def direct(self) -> bool:
        """Whether all of it, but for a last part of a block, went to the disk past the system's cache."""
        return self._direct

    def write(self, data: memoryview | bytes) -> None:
        """Append all of ``data``, however many calls the system needs for it."""
        rest = memoryview(data)
        if self._direct:
            rest = rest[self._write_direct(rest) :]
        while rest.nbytes:
            count = os.write(self._descriptor, rest[:_MOST_AT_ONCE])
            if self._large:
                self._drop(count)
            self._written += count
            rest = rest[count:]

    def sync(self) -> None:
        """Force the file to the disk (on macOS through the drive's cache, which fsync alone does not empty)."""
        system.sync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor once."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _open(self, path: Path) -> int:
        if self._direct:
            try:
                return os.open(path, _CREATE | _O_DIRECT, 0o666)
            except OSError as error:
                if error.errno not in _NO_DIRECT:
                    raise
                # Some have made the file by then.
                self._direct = False
                return os.open(path, _CREATE & ~os.O_EXCL | os.O_NOFOLLOW, 0o666)
        return os.open(path, _CREATE, 0o666)

    def _write_direct(self, data: memoryview) -> int:
        """Write what may go past the cache, and give its size; the rest, if there is one, may not."""
        whole = data.nbytes // PAGE * PAGE if self._written % PAGE == 0 and address_of(data) % PAGE == 0 else 0
        done = 0
        while done < whole:
            try:
                count = os.write(self._descriptor, data[done : min(whole, done + _MOST_AT_ONCE)])
            except OSError as error:
                if error.errno not in _NO_DIRECT:
                    raise
                self._direct = False
                break
            self._written += count
            done += count
            if count % PAGE:
                break
        if done < data.nbytes:
            system.leave_direct(self._descriptor, _O_DIRECT)
            self._direct = self._direct and data.nbytes - done < PAGE
        return done

    def _drop(self, count: int) -> None:
        # The pages written one call earlier are on their way by now, so waiting for them costs little.
        system.begin_writing(self._descriptor, self._written, count)
        if self._written > self._dropped:
            system.drop_written(self._descriptor, self._dropped, self._written - self._dropped)
            self._dropped = self._written


class LocalBackend:
    """The operations of ``Backend`` as plain system calls."""

    direct = True
    """Whether large files may be written past the system's cache."""

    def create(self, path: Path, size: int | None = None) -> LocalFile:
        """A new file for writing."""
        return LocalFile(path, size, direct=self.direct)

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
            system.sync(descriptor)
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
            system.sync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, path: Path, target: str) -> None:
        """A new symbolic link."""
        os.symlink(target, path)

    def free_bytes(self, path: Path) -> int:
        """What an unprivileged writer may still use."""
        return shutil.disk_usage(path).free
