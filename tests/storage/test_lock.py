"""One writer for a run: a second one is refused, a dead one's place is free at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import RunLockedError, SaveFailedError
from milepost.storage import lock as lock_module
from milepost.storage.run import open_run
from tests.faults import UnsyncedBackend, fork, in_child
from tests.storage.samples import save, steps


def _open(folder: Path) -> Any:
    return open_run(folder, UnsyncedBackend())[1]


def _is_free(folder: Path) -> bool:
    """Whether another process can have the folder."""
    return in_child(lambda: _expect(RunLockedError, folder)) != 0


def _expect(error: type[Exception], folder: Path) -> None:
    with pytest.raises(error):
        _open(folder)


@contextlib.contextmanager
def _holder(folder: Path, *, with_child: bool = False) -> Iterator[int]:
    """Another process that holds the lock; with a forked child of its own that lives on until the block ends."""
    ready, told = os.pipe()
    until, end = os.pipe()

    def hold() -> None:
        os.close(end)
        _open(folder)
        if with_child and fork() == 0:
            os.write(told, b"c")
            os.read(until, 1)
            os._exit(0)
        os.write(told, b"h")
        os.read(until, 1)

    pid = fork()
    if pid == 0:
        try:
            hold()
        finally:
            os._exit(0)
    expected = 2 if with_child else 1
    while expected:
        expected -= len(os.read(ready, expected))
    try:
        yield pid
    finally:
        for descriptor in (end, until, ready, told):
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with _holder(tmp_path) as pid:
        with pytest.raises(RunLockedError, match=f"in use by process {pid} on ") as caught:
            _open(tmp_path)
        assert (caught.value.pid, caught.value.path) == (pid, tmp_path)
        assert not _is_free(tmp_path), "the refusal released nothing"
    _open(tmp_path).release()


def test_a_refused_process_changes_nothing(tmp_path: Path) -> None:
    with _holder(tmp_path):
        staging = tmp_path / "step_4.staging-0123abcd"
        staging.mkdir()
        with pytest.raises(RunLockedError):
            _open(tmp_path)
        assert staging.exists()


@pytest.mark.parametrize("spelling", ["same", "relative", "dots", "link", "link to the parent", "trailing dot"])
def test_the_same_process_is_refused_by_any_spelling(tmp_path: Path, monkeypatch, spelling: str) -> None:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "parent").symlink_to(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    spelled = {
        "same": folder,
        "relative": Path("runs/one"),
        "dots": tmp_path / "runs" / "one" / ".." / ".." / "runs" / "one",
        "link": tmp_path / "link",
        "link to the parent": tmp_path / "parent" / "one",
        "trailing dot": Path("runs/one/."),
    }[spelling]
    lock = _open(folder)
    with pytest.raises(RunLockedError, match="this process"):
        _open(spelled)
    assert not _is_free(folder), "the refusal must not release the first's lock"
    lock.release()
    assert _is_free(spelled)
    _open(spelled).release()


def test_two_runs_in_one_process_do_not_meet(tmp_path: Path) -> None:
    locks = [_open(tmp_path / name) for name in ("a", "b")]
    for lock in locks:
        lock.release()
        lock.release()
    assert _is_free(tmp_path / "a") and _is_free(tmp_path / "b")


@pytest.mark.parametrize("with_child", [False, True], ids=["alone", "while its forked child lives on"])
def test_a_killed_holders_lock_is_free_at_once(tmp_path: Path, with_child: bool) -> None:
    with _holder(tmp_path, with_child=with_child) as pid:
        _kill(pid)
        _open(tmp_path).release()


def test_a_forked_child_cannot_release_or_share_the_lock(tmp_path: Path) -> None:
    lock = _open(tmp_path)
    assert in_child(lock.release) == 0
    assert not _is_free(tmp_path)
    lock.release()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 10, b"not json", b"[]", b"[" * 4000, b'{"pid": 1}', b'{"since": 1e999}', b"\xff"]
)
def test_stale_content_is_no_lock(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".milepost").mkdir()
    (tmp_path / ".milepost" / "lock").write_bytes(content)
    lock = _open(tmp_path)
    assert json.loads((tmp_path / ".milepost" / "lock").read_bytes())["pid"] == os.getpid()
    lock.release()
    assert (tmp_path / ".milepost" / "lock").read_bytes() == b""


@pytest.mark.parametrize(
    "content", [b"", b"[" * 4000, b'{"pid": "x", "since": 1e999}', b'{"pid": 1, "since": -5.0}', b"\xff"]
)
def test_strange_content_of_a_held_lock_is_still_a_refusal(tmp_path: Path, content: bytes) -> None:
    with _holder(tmp_path):
        (tmp_path / ".milepost" / "lock").write_bytes(content)
        with pytest.raises(RunLockedError):
            _open(tmp_path)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_live_holder_is_recognised_by_its_name(tmp_path: Path) -> None:
    with _holder(tmp_path) as pid:
        with pytest.raises(RunLockedError, match=f"process {pid}"):
            _open(tmp_path)
        _kill(pid)
        _open(tmp_path).release()


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize(
    ("change", "free"),
    [
        ({}, False),
        ({"host": "another-host"}, False),
        ({"host": "another-host", "boot": "x"}, False),
        ({"boot": "before the restart"}, True),
        ({"started": "1"}, True),
        ({"pid": 2**22 + 1}, True),
        ({"pid": "x"}, True),
        ({"pid": None}, True),
    ],
    ids=str,
)
def test_without_locks_host_boot_process_and_start_time_decide(
    tmp_path: Path, change: dict[str, Any], free: bool
) -> None:
    (tmp_path / ".milepost").mkdir()
    with _holder(tmp_path):
        path = tmp_path / ".milepost" / "lock"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        if free:
            _open(tmp_path).release()
        else:
            with pytest.raises(RunLockedError, match="delete"):
                _open(tmp_path)


def test_another_error_than_a_taken_lock_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "lockf", fail)
    with pytest.raises(SaveFailedError, match="Input/output error"):
        _open(tmp_path)
    monkeypatch.undo()
    _open(tmp_path).release()


def test_a_failed_recovery_gives_the_lock_back(tmp_path: Path) -> None:
    class Broken(UnsyncedBackend):
        def remove_folder(self, path: Path) -> None:
            raise OSError(errno.EIO, "Input/output error", str(path))

    (tmp_path / "step_4.staging-0123abcd").mkdir()
    with pytest.raises(SaveFailedError):
        open_run(tmp_path, Broken())
    _open(tmp_path).release()
    assert not lock_module._held


@pytest.mark.parametrize("name", [".milepost", ".milepost/lock"])
def test_case_26_the_lock_is_not_written_through_a_link(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    run = tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    (run / name).symlink_to(outside if name == ".milepost" else outside / "file")
    with pytest.raises(SaveFailedError, match="cannot be written to"):
        _open(run)
    assert os.listdir(outside) == []


@pytest.mark.parametrize("place", ["run", "run/below"])
def test_a_file_in_the_run_folders_place_is_a_clear_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(SaveFailedError, match="cannot be written to"):
        _open(tmp_path / place)


def test_an_opened_run_can_be_written_to(tmp_path: Path) -> None:
    lock = _open(tmp_path / "new" / "run")
    save(tmp_path / "new" / "run", 2)
    assert steps(tmp_path / "new" / "run") == [2]
    lock.release()
