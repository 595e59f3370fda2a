"""Backends on which things go wrong: an operation fails, the process dies in it, or the disk is full."""

from __future__ import annotations

import errno
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.storage.backend import Backend, LocalBackend, WritableFile
from milepost.storage.backend.local import LocalFile


class UnsyncedFile(LocalFile):
    """A file that is not forced to the disk."""

    def sync(self) -> None:
        """Nothing: these tests kill processes and do not cut the power."""


class UnsyncedBackend(LocalBackend):
    """The local file system without the wait for the disk, which makes thousands of commits affordable."""

    def create(self, path: Path, size: int | None = None) -> LocalFile:
        return UnsyncedFile(path, size, direct=self.direct)

    def sync_folder(self, path: Path) -> None:
        os.stat(path)

    def append(self, path: Path, data: bytes) -> None:
        with open(path, "ab") as file:
            file.write(data)


class Killed(BaseException):
    """Stands for a SIGKILL within the test's own process: from then on, no operation reaches the disk."""


@dataclass
class FaultyBackend:
    """Counts operations (``names``, from 1), and makes the one numbered ``at`` go wrong.

    ``fault`` is an error number (the operation fails; so do all later ones if ``for_good``), ``"kill"`` (SIGKILL) or
    ``"die"`` (raises ``Killed``, now and at every later operation, also those of clean-up). A ``torn`` write has
    written half of its bytes by then.
    """

    inner: Backend = field(default_factory=UnsyncedBackend)
    at: int = 0
    fault: int | str = errno.EIO
    torn: bool = False
    for_good: bool = False
    names: list[str] = field(default_factory=list)

    def create(self, path: Path, size: int | None = None) -> WritableFile:
        return FaultyFile(self, self.around("create", self.inner.create, path, size))

    def make_folder(self, path: Path) -> None:
        self.around("make_folder", self.inner.make_folder, path)

    def rename(self, source: Path, target: Path) -> None:
        self.around("rename", self.inner.rename, source, target)

    def sync_folder(self, path: Path) -> None:
        self.around("sync_folder", self.inner.sync_folder, path)

    def remove_file(self, path: Path) -> None:
        self.around("remove_file", self.inner.remove_file, path)

    def remove_folder(self, path: Path) -> None:
        self.around("remove_folder", self.inner.remove_folder, path)

    def append(self, path: Path, data: bytes) -> None:
        self.around("append", self.inner.append, path, data)

    def link(self, path: Path, target: str) -> None:
        self.around("link", self.inner.link, path, target)

    def free_bytes(self, path: Path) -> int:
        return self.inner.free_bytes(path)

    def around(self, name: str, operation: Callable[..., Any], *arguments: Any) -> Any:
        """Do the operation, or let it go wrong."""
        self.names.append(name)
        number = len(self.names)
        dead = self.fault == "die" and 0 < self.at < number
        if number != self.at and not dead and not (self.for_good and 0 < self.at < number):
            return operation(*arguments)
        if self.torn and name in ("write", "append") and not dead:
            data = memoryview(arguments[-1])
            operation(*arguments[:-1], data[: data.nbytes // 2])
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "die":
            raise Killed(f"at operation {number}, {name}")
        assert isinstance(self.fault, int)
        paths = [str(path) for path in arguments[:1] if isinstance(path, Path)]
        raise OSError(self.fault, os.strerror(self.fault), *paths)


class FaultyFile:
    """A file of a ``FaultyBackend``; its writes and syncs are operations too."""

    def __init__(self, backend: FaultyBackend, file: WritableFile) -> None:
        self._backend = backend
        self._file = file

    def write(self, data: memoryview | bytes) -> None:
        self._backend.around("write", self._file.write, data)

    @property
    def direct(self) -> bool:
        return self._file.direct

    def sync(self) -> None:
        self._backend.around("sync", self._file.sync)

    def close(self) -> None:
        self._file.close()


class QuotaBackend(UnsyncedBackend):
    """A disk of ``quota`` bytes: the write that would exceed it stops half way with ENOSPC."""

    def __init__(self, root: Path, quota: int) -> None:
        self.root = root
        self.quota = quota

    def create(self, path: Path, size: int | None = None) -> Any:
        # As on a file system that gives no place ahead of the write.
        return QuotaFile(self, super().create(path))

    def append(self, path: Path, data: bytes) -> None:
        free = self.free_bytes(self.root)
        super().append(path, data[: max(0, free)])
        if len(data) > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def free_bytes(self, path: Path) -> int:
        used = sum(file.lstat().st_size for file in self.root.rglob("*") if not file.is_dir())
        return self.quota - used


class QuotaFile:
    """A file on a disk that may become full."""

    def __init__(self, disk: QuotaBackend, file: LocalFile) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        free = self._disk.free_bytes(self._disk.root)
        self._file.write(view[:free])
        if view.nbytes > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @property
    def direct(self) -> bool:
        return self._file.direct

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def count_operations(action: Callable[[Backend], object]) -> list[str]:
    """The names of the operations of an action that goes well."""
    backend = FaultyBackend()
    action(backend)
    return backend.names


def fork() -> int:
    """``os.fork``, for children that only work on files: to them, threads of other tests' libraries do not matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_child(action: Callable[[], object]) -> int:
    """Run ``action`` in a forked child, and give its exit status: negative for a signal, 1 for an exception."""
    child = fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
