"""Large files, on file systems of every kind: past the cache or through it, the bytes and the promises are the same."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.memory import PAGE, Arena
from milepost.storage.backend import LocalBackend, local, system
from tests.storage.samples import assert_whole, save

O_DIRECT = getattr(os, "O_DIRECT", 0)
SIZES = [0, 1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE, 5 * PAGE + 17]


def no_direct_at_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tmpfs once was, and many network file systems are."""
    original = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & O_DIRECT:
            # Some file systems have made the file by then.
            os.close(original(path, flags & ~O_DIRECT, *args, **kwargs))
            raise OSError(errno.EINVAL, "Invalid argument")
        return original(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)


def no_direct_at_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some overlay file systems are."""
    original = os.write

    def refuse(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return original(descriptor, data)

    monkeypatch.setattr(os, "write", refuse)


def short_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: original(descriptor, memoryview(data)[:PAGE]))


def no_direct_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS."""
    monkeypatch.setattr(local, "_O_DIRECT", 0)


def no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_fallocate", None)
    monkeypatch.setattr(system, "_sync_file_range", None)


def another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_O_DIRECT", 0)
    monkeypatch.setattr(system.sys, "platform", "freebsd14")


KINDS: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "as it is": lambda _: None,
    "refuses to open": no_direct_at_opening,
    "refuses to write": no_direct_at_writing,
    "writes less than asked": short_writes,
    "knows no direct I/O": no_direct_flag,
    "lacks the calls": no_calls,
    "another system": another_system,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_file_has_its_bytes_whatever_the_file_system_does(tmp_path, monkeypatch, kind, size) -> None:
    data = bytes(at % 251 for at in range(size))
    arena = Arena(max(size, 1))
    arena.view[:size] = data
    KINDS[kind](monkeypatch)
    file = LocalBackend().create(tmp_path / "file", size)
    for start in range(0, size, 2 * PAGE):
        file.write(arena.view[start : min(size, start + 2 * PAGE)])
    file.sync()
    file.close()
    direct = file.direct
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == data
    if kind.startswith(("refuses to open", "knows", "another")) or (kind == "refuses to write" and size >= PAGE):
        assert not direct


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_whole_whatever_the_file_system_does(tmp_path, monkeypatch, kind) -> None:
    KINDS[kind](monkeypatch)
    save(tmp_path, 2, LocalBackend())
    monkeypatch.undo()
    assert_whole(tmp_path, 2)


@pytest.mark.parametrize("shift", [1, 512])
def test_memory_that_is_not_aligned_goes_through_the_cache(tmp_path, shift) -> None:
    arena = Arena(4 * PAGE)
    arena.view[:] = bytes(at % 251 for at in range(4 * PAGE))
    file = LocalBackend().create(tmp_path / "file", 3 * PAGE)
    file.write(arena.view[shift : shift + 3 * PAGE])
    file.close()
    assert not file.direct
    assert (tmp_path / "file").read_bytes() == bytes(arena.view[shift : shift + 3 * PAGE])


@pytest.mark.skipif(sys.platform != "linux", reason="the call is Linux's")
@pytest.mark.parametrize(("code", "raised"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EOPNOTSUPP, False)])
def test_a_place_that_cannot_be_given_ahead_matters_only_if_there_is_no_room(
    tmp_path, monkeypatch, code, raised
) -> None:
    def refuse(*_: Any) -> int:
        import ctypes

        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(system, "_fallocate", refuse)
    if not raised:
        LocalBackend().create(tmp_path / "file", 10).close()
        return
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=os.strerror(code)):
        LocalBackend().create(tmp_path / "file", 10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_error_that_is_not_about_direct_io_is_an_error(tmp_path, monkeypatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    arena = Arena(PAGE)
    file = LocalBackend().create(tmp_path / "file", PAGE)
    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="Input/output"):
        file.write(arena.view)
    monkeypatch.undo()
    file.close()


def test_a_file_that_is_in_the_way_is_refused_also_where_direct_io_is(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    no_direct_at_opening(monkeypatch)
    with pytest.raises(FileExistsError):
        LocalBackend().create(tmp_path / "file", 10)
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EIO])
def test_on_macos_what_cannot_empty_the_drives_cache_is_forced_as_far_as_it_goes(tmp_path, monkeypatch, code) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    synced = []
    monkeypatch.setattr(system.sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    if code == errno.EIO:
        with pytest.raises(OSError):
            system.sync(7)
    else:
        system.sync(7)
        assert synced == [7]
