"""Changes to what is committed: one process at a time, and a plan sees what was pinned before it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from milepost.storage.edits import editing
from milepost.storage.layout import RunFolder
from tests.faults import in_child


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / ".milepost").mkdir()
    return RunFolder(tmp_path)


def try_lock(run: RunFolder) -> None:
    descriptor = os.open(run.edits, os.O_RDWR)
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_another_process_waits_until_the_outermost_change_ends(run: RunFolder) -> None:
    with editing(run):
        with editing(run):
            pass
        assert in_child(lambda: try_lock(run)) == 1
    assert in_child(lambda: try_lock(run)) == 0


def test_a_process_that_dies_in_a_change_holds_nobody_up(run: RunFolder) -> None:
    def die() -> None:
        with editing(run):
            os.kill(os.getpid(), 9)

    assert in_child(die) == -9
    with editing(run):
        assert run.edits.exists()


def test_an_error_gives_the_right_back(run: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), editing(run):
        raise ZeroDivisionError
    assert in_child(lambda: try_lock(run)) == 0


def test_a_folder_that_no_run_was_opened_in_is_left_as_it_is(tmp_path: Path) -> None:
    with editing(RunFolder(tmp_path)):
        pass
    assert os.listdir(tmp_path) == []
