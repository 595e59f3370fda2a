"""What every backend promises; a new one is added to BACKENDS and passes all of this."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.errors import DiskFullError
from milepost.storage.backend import Backend, LocalBackend
from tests.faults import FaultyBackend, QuotaBackend, UnsyncedBackend
from tests.power import PowerModel
from tests.storage.samples import assert_whole, save

BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "local": lambda folder: LocalBackend(),
    "unsynced": lambda folder: UnsyncedBackend(),
    "faulty, without a fault": lambda folder: FaultyBackend(LocalBackend()),
    "quota, not reached": lambda folder: QuotaBackend(folder, 1 << 40),
    "power model": PowerModel,
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return BACKENDS[request.param](tmp_path)


def _write(backend: Backend, path: Path, *pieces: bytes) -> None:
    file = backend.create(path)
    for piece in pieces:
        file.write(piece)
    file.sync()
    file.close()


def test_writes_are_appended_whole_and_in_order(backend: Backend, tmp_path: Path) -> None:
    _write(backend, tmp_path / "file", b"ab", b"", b"c" * 100_000)
    assert (tmp_path / "file").read_bytes() == b"ab" + b"c" * 100_000


def test_a_view_of_memory_is_written_as_its_bytes(backend: Backend, tmp_path: Path) -> None:
    file = backend.create(tmp_path / "file")
    file.write(memoryview(bytearray(b"xyz"))[1:])
    file.close()
    assert (tmp_path / "file").read_bytes() == b"yz"


def test_a_file_without_writes_is_empty(backend: Backend, tmp_path: Path) -> None:
    _write(backend, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b""


def test_closing_twice_is_closing_once(backend: Backend, tmp_path: Path) -> None:
    file = backend.create(tmp_path / "file")
    file.close()
    other = os.open(tmp_path, os.O_RDONLY)
    file.close()
    os.close(other)


@pytest.mark.parametrize("taken", ["file", "folder", "link", "dangling link"])
@pytest.mark.parametrize("operation", ["create", "make_folder"])
def test_a_name_that_is_taken_is_refused_and_untouched(backend: Backend, tmp_path: Path, operation, taken) -> None:
    _write(backend, tmp_path / "file", b"mine")
    backend.make_folder(tmp_path / "folder")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling link").symlink_to("absent")
    with pytest.raises(FileExistsError):
        getattr(backend, operation)(tmp_path / taken)
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("operation", ["create", "make_folder", "sync_folder", "remove_file", "remove_folder"])
def test_an_absent_folder_is_an_error(backend: Backend, tmp_path: Path, operation: str) -> None:
    backend.make_folder(tmp_path / "folder")
    backend.remove_folder(tmp_path / "folder")
    with pytest.raises((FileNotFoundError, KeyError)):
        getattr(backend, operation)(tmp_path / "folder" / "name")


def test_rename_replaces_a_file(backend: Backend, tmp_path: Path) -> None:
    _write(backend, tmp_path / "old", b"old")
    _write(backend, tmp_path / "new", b"new")
    backend.rename(tmp_path / "new", tmp_path / "old")
    assert os.listdir(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"new"


def test_rename_moves_a_folder_with_all_in_it(backend: Backend, tmp_path: Path) -> None:
    backend.make_folder(tmp_path / "a")
    backend.make_folder(tmp_path / "to")
    _write(backend, tmp_path / "a" / "file", b"1")
    backend.rename(tmp_path / "a", tmp_path / "to" / "b")
    backend.sync_folder(tmp_path / "to")
    backend.sync_folder(tmp_path)
    assert (tmp_path / "to" / "b" / "file").read_bytes() == b"1"
    assert not (tmp_path / "a").exists()


def test_rename_refuses_a_folder_that_is_not_empty(backend: Backend, tmp_path: Path) -> None:
    for name in ("a", "b"):
        backend.make_folder(tmp_path / name)
        _write(backend, tmp_path / name / "file", name.encode())
    with pytest.raises(OSError):
        backend.rename(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "file").read_bytes() == b"a"
    assert (tmp_path / "b" / "file").read_bytes() == b"b"


@pytest.mark.parametrize("target", ["a file", "a link to a folder", "a dangling link"])
def test_rename_of_a_folder_onto_something_else_is_refused(backend: Backend, tmp_path: Path, target: str) -> None:
    backend.make_folder(tmp_path / "folder")
    backend.make_folder(tmp_path / "other")
    _write(backend, tmp_path / "a file", b"1")
    (tmp_path / "a link to a folder").symlink_to("other")
    (tmp_path / "a dangling link").symlink_to("absent")
    with pytest.raises(OSError):
        backend.rename(tmp_path / "folder", tmp_path / target)
    assert (tmp_path / "folder").is_dir() and os.listdir(tmp_path / "other") == []


def test_removing_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "folder").mkdir()
    for number, target in enumerate(("file", "folder", "absent")):
        link = tmp_path / f"link {number}"
        link.symlink_to(target)
        with pytest.raises(OSError):
            LocalBackend().remove_folder(link)
        LocalBackend().remove_file(link)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_removing_takes_only_what_it_says(backend: Backend, tmp_path: Path) -> None:
    backend.make_folder(tmp_path / "folder")
    _write(backend, tmp_path / "folder" / "file", b"1")
    with pytest.raises(OSError):
        backend.remove_folder(tmp_path / "folder")
    with pytest.raises(OSError):
        backend.remove_file(tmp_path / "folder")
    backend.remove_file(tmp_path / "folder" / "file")
    backend.remove_folder(tmp_path / "folder")
    assert os.listdir(tmp_path) == []


def test_what_is_appended_follows_what_is_there(backend: Backend, tmp_path: Path) -> None:
    backend.append(tmp_path / "log", b"one\n")
    backend.append(tmp_path / "log", b"two\n")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_nothing_is_appended_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("elsewhere")
    with pytest.raises(OSError):
        LocalBackend().append(tmp_path / "log", b"one\n")
    assert os.listdir(tmp_path) == ["log"]


def test_a_link_is_its_text_and_replaces_another_by_a_rename(backend: Backend, tmp_path: Path) -> None:
    backend.link(tmp_path / "latest", "step_2")
    backend.link(tmp_path / "draft", "step_4")
    backend.rename(tmp_path / "draft", tmp_path / "latest")
    assert os.readlink(tmp_path / "latest") == "step_4" and os.listdir(tmp_path) == ["latest"]
    with pytest.raises(FileExistsError):
        backend.link(tmp_path / "latest", "step_6")


def test_free_bytes_is_a_number_of_bytes(backend: Backend, tmp_path: Path) -> None:
    assert backend.free_bytes(tmp_path) > 1024


def test_a_checkpoint_is_committed(backend: Backend, tmp_path: Path) -> None:
    save(tmp_path, 2, backend)
    assert_whole(tmp_path, 2)


def test_a_system_that_writes_less_than_asked_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:1000]))
    save(tmp_path, 2, LocalBackend())
    monkeypatch.undo()
    assert_whole(tmp_path, 2)


def test_a_write_longer_than_one_call_may_be_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: asked.append(len(data)) or write(descriptor, data))
    monkeypatch.setattr("milepost.storage.backend.local._MOST_AT_ONCE", 7)
    _write(LocalBackend(), tmp_path / "file", b"x" * 20)
    assert asked == [7, 7, 6]
    assert (tmp_path / "file").read_bytes() == b"x" * 20


def test_a_file_system_that_cannot_sync_folders_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    save(tmp_path, 2, LocalBackend())
    assert_whole(tmp_path, 2)


def test_a_full_disk_says_so_whatever_the_backend(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError):
        save(tmp_path, 2, QuotaBackend(tmp_path, 5000))
