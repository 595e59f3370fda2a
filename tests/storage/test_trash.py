"""The trash: what was pruned has its reason and its time there, comes back, or goes when its time is over."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from milepost.errors import CheckpointExistsError, CheckpointNotFoundError, CorruptCheckpointError
from milepost.storage.backend import Backend
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.log import read_log, unexpired
from milepost.storage.sweep import recover, sweep_trash
from milepost.storage.trash import discard, read_trash, sweep_to, undelete
from tests.faults import FaultyBackend, UnsyncedBackend, count_operations, in_child
from tests.storage.samples import assert_sound, assert_whole, save, steps

LATER = 2**40


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = tmp_path / "run"
    folder.mkdir()
    for step in (2, 4, 6):
        save(folder, step)
    return RunFolder(folder)


def _discard(run: RunFolder, backend: Backend, grace: float = LATER, count: int = 2) -> None:
    doomed = [(each, f"reason of {each.step}") for each in read_catalog(run.path).checkpoints[:count]]
    discard(run, backend, doomed, now=1000.0, grace=grace)


def _undelete(run: RunFolder, backend: Backend) -> None:
    undelete(run, backend, 4, now=2000.0)


def test_what_is_pruned_has_its_reason_and_its_time_and_outlives_recoveries(run: RunFolder) -> None:
    _discard(run, UnsyncedBackend())
    recover(run, UnsyncedBackend())
    assert steps(run.path) == [6]
    found = read_trash(run)
    assert [(each.step, each.why, each.since, each.until) for each in found] == [
        (2, "reason of 2", 1000.0, 1000.0 + LATER),
        (4, "reason of 4", 1000.0, 1000.0 + LATER),
    ]
    assert all(each.size > 8000 for each in found)


def test_without_a_grace_it_goes_at_the_next_sweep_and_the_log_knows(run: RunFolder) -> None:
    _discard(run, UnsyncedBackend(), grace=0)
    recover(run, UnsyncedBackend())
    assert os.listdir(run.trash) == []
    assert [(event.what, event.step) for event in read_log(run)] == [
        ("pruned", 2),
        ("pruned", 4),
        ("swept", 2),
        ("swept", 4),
    ]
    assert all(event.bytes > 8000 for event in read_log(run))


def test_when_its_time_is_over_it_goes(run: RunFolder) -> None:
    _discard(run, UnsyncedBackend(), grace=60)
    assert len(unexpired(run, 1059.0)) == 2
    assert unexpired(run, 1060.0) == frozenset()
    recover(run, UnsyncedBackend())
    assert os.listdir(run.trash) == []


def test_the_oldest_trash_goes_first_where_room_is_short(run: RunFolder) -> None:
    _discard(run, UnsyncedBackend())
    size = read_trash(run)[1].size
    sweep_to(run, UnsyncedBackend(), size, "room is needed")
    assert [each.step for each in read_trash(run)] == [4]
    assert [(event.step, event.why) for event in read_log(run) if event.what == "swept"] == [(2, "room is needed")]
    sweep_to(run, UnsyncedBackend(), size - 1, "more room is needed")
    assert read_trash(run) == []


def test_undelete_brings_it_back_as_it_was_and_pinned(run: RunFolder) -> None:
    before = read_catalog(run.path).at(4)
    _discard(run, UnsyncedBackend())
    back = undelete(run, UnsyncedBackend(), 4, now=2000.0)
    assert before is not None and (back.serial, back.id, back.path) == (before.serial, before.id, before.path)
    assert back.pinned and steps(run.path) == [4, 6]
    assert_whole(run.path, 4)
    assert [each.step for each in read_trash(run)] == [2]
    assert not undelete(run, UnsyncedBackend(), 2, now=2000.0, pin=False).pinned
    assert [(event.what, event.step, event.time) for event in read_log(run)][2:] == [
        ("undeleted", 4, 2000.0),
        ("undeleted", 2, 2000.0),
    ]


def test_of_two_of_a_step_the_last_comes_back(run: RunFolder) -> None:
    _discard(run, UnsyncedBackend())
    save(run.path, 4, serial=9)
    doomed = [(each, "again") for each in read_catalog(run.path).checkpoints if each.serial == 9]
    discard(run, UnsyncedBackend(), doomed, now=1500.0, grace=LATER)
    assert undelete(run, UnsyncedBackend(), 4, now=2000.0).serial == 9
    with pytest.raises(CheckpointExistsError, match="step_4 is there"):
        undelete(run, UnsyncedBackend(), 4, now=2000.0)
    assert len(read_trash(run)) == 2


@pytest.mark.parametrize("taken", ["a checkpoint", "a folder", "a file", "a dangling link"])
def test_a_name_that_is_taken_is_refused(run: RunFolder, taken: str) -> None:
    _discard(run, UnsyncedBackend())
    path = run.path / "step_4"
    if taken == "a checkpoint":
        save(run.path, 4, serial=9)
    elif taken == "a folder":
        path.mkdir()
    elif taken == "a file":
        path.write_text("mine")
    else:
        path.symlink_to("absent")
    with pytest.raises(CheckpointExistsError, match="Move it away first"):
        _undelete(run, UnsyncedBackend())
    assert len(read_trash(run)) == 2


def test_what_is_gone_is_an_error_that_says_so(run: RunFolder) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint of step 4; it has nothing"):
        _undelete(run, UnsyncedBackend())
    _discard(run, UnsyncedBackend(), grace=0, count=2)
    sweep_trash(run, UnsyncedBackend())
    with pytest.raises(CheckpointNotFoundError, match=r"bytes were given back.*trash_grace"):
        _undelete(run, UnsyncedBackend())


def test_what_a_sweep_has_begun_with_does_not_come_back(run: RunFolder) -> None:
    _discard(run, UnsyncedBackend())
    next(run.trash.glob("step_4.*/model.safetensors")).unlink()
    with pytest.raises(CorruptCheckpointError, match=r"cannot come back: model\.safetensors is missing"):
        _undelete(run, UnsyncedBackend())
    assert steps(run.path) == [6]


ACTIONS = {"discard": _discard, "undelete": _undelete}


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("fault", ["kill", errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("action", ACTIONS)
def test_cut_short_at_any_operation_each_is_in_its_place_or_in_the_trash(
    run: RunFolder, tmp_path: Path, action: str, fault: int | str, torn: bool
) -> None:
    if action == "undelete":
        _discard(run, UnsyncedBackend())
    counted = RunFolder(Path(shutil.copytree(run.path, tmp_path / "counted")))
    operations = count_operations(lambda backend: ACTIONS[action](counted, backend))
    for at in range(1, len(operations) + 1):
        cut = RunFolder(Path(shutil.copytree(run.path, tmp_path / f"cut {at}")))
        backend = FaultyBackend(at=at, fault=fault, for_good=True, torn=torn)
        if fault == "kill":
            assert in_child(lambda cut=cut, backend=backend: ACTIONS[action](cut, backend)) == -9
        else:
            with pytest.raises(OSError):
                ACTIONS[action](cut, backend)
        assert_sound(cut.path)
        assert_whole(cut.path, 6)
        there, trashed = set(steps(cut.path)), {each.step for each in read_trash(cut)}
        assert there | trashed == {2, 4, 6} and not there & trashed
        # Without its line in the log (the disk was full), nothing says that it must stay; with it, it does.
        logged = unexpired(cut, 2000.0)
        held = {each.step for each in read_trash(cut) if each.path.name in logged}
        recover(cut, UnsyncedBackend())
        assert {each.step for each in read_trash(cut)} == held
        assert fault == errno.ENOSPC or fault == errno.EIO or held == trashed
        assert set(steps(cut.path)) == there
        for step in there:
            assert_whole(cut.path, step)
        if 4 in held:
            undelete(cut, UnsyncedBackend(), 4, now=3000.0)
            assert_whole(cut.path, 4)


@pytest.mark.parametrize(
    "tail", [b'{"time": 5, "what": "pru', b"\xff\xfe\n", b"[]\n", b"{}\n", b'{"time": "x", "what": 1, "step": []}\n']
)
def test_a_log_whose_last_line_is_torn_or_odd_is_read_and_added_to(run: RunFolder, tail: bytes) -> None:
    _discard(run, UnsyncedBackend())
    with open(run.log, "ab") as file:
        file.write(tail)
    assert [event.step for event in read_log(run)] == [2, 4]
    _undelete(run, UnsyncedBackend())
    assert [event.what for event in read_log(run)] == ["pruned", "pruned", "undeleted"]
    last = json.loads(run.log.read_bytes().splitlines()[-1])
    assert list(last) == ["time", "step", "what", "why", "bytes", "name"]
    assert (last["time"], last["step"], last["why"]) == (2000.0, 4, "asked for")


def test_a_log_that_cannot_be_written_is_a_warning(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    run.control.mkdir()
    run.log.mkdir()
    doomed = [(each, "no room") for each in read_catalog(run.path).checkpoints[:1]]
    discard(run, UnsyncedBackend(), doomed, now=1000.0)
    assert "could not be written" in caplog.text and steps(run.path) == [4, 6]
