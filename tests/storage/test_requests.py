"""Requests on disk: none is lost and none is answered twice, whatever is killed in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.errors import MilepostError
from milepost.policy.asking import OnRequest, answered_requests
from milepost.records import Moment
from milepost.storage.backend import Backend
from milepost.storage.catalog import read_catalog
from milepost.storage.commit import commit
from milepost.storage.layout import RunFolder
from milepost.storage.lock import live_holder
from milepost.storage.requests import (
    ask_to_save,
    begin_answering,
    pending_requests,
    refuse_requests,
    remove_requests,
)
from milepost.storage.run import open_run
from tests.faults import FaultyBackend, UnsyncedBackend, count_operations, in_child
from tests.storage.samples import draft


def answer(folder: Path, backend: Backend) -> None:
    """What a manager does with whatever is asked of it."""
    run, lock = open_run(folder, backend)
    begin_answering(run, backend)
    if requests := pending_requests(run):
        reason = OnRequest().reason_to_save(Moment(4, 3, requests=requests))
        assert reason is not None
        step = len(read_catalog(run.path).checkpoints) + 1
        commit(run, backend, draft(step, serial=step, reasons=(reason,)), max_shard_size=10**9)
        remove_requests(run, backend, requests)
    lock.release()


def asked(folder: Path) -> str:
    run, lock = open_run(folder, UnsyncedBackend())
    begin_answering(run, UnsyncedBackend())
    lock.release()
    return ask_to_save(run)


def test_a_kill_at_each_operation_loses_no_request_and_answers_none_twice(tmp_path):
    asked(tmp_path / "counted")
    names = count_operations(lambda backend: answer(tmp_path / "counted", backend))
    assert "rename" in names and "remove_file" in names
    for at in range(1, len(names) + 1):
        folder = tmp_path / f"killed at {at}"
        request = asked(folder)
        assert in_child(lambda: answer(folder, FaultyBackend(at=at, fault="kill"))) != 0  # noqa: B023
        answer(folder, UnsyncedBackend())
        answers = [each for each in read_catalog(folder).checkpoints if request in answered_requests(each)]
        assert len(answers) == 1
        assert pending_requests(RunFolder(folder)) == ()


def test_a_run_that_answers_no_requests_refuses_them(tmp_path):
    run, lock = open_run(tmp_path, UnsyncedBackend())
    with pytest.raises(MilepostError, match="answers no requests"):
        ask_to_save(run)
    begin_answering(run, UnsyncedBackend())
    ask_to_save(run)
    refuse_requests(run, UnsyncedBackend())
    assert pending_requests(run) == () and not run.requests.exists()
    refuse_requests(run, UnsyncedBackend())
    lock.release()


def test_files_that_are_no_requests_are_left_alone(tmp_path):
    run, lock = open_run(tmp_path, UnsyncedBackend())
    begin_answering(run, UnsyncedBackend())
    foreign = run.requests / "save-me"
    foreign.write_text("mine")
    assert pending_requests(run) == ()
    refuse_requests(run, UnsyncedBackend())
    assert foreign.read_text() == "mine"
    lock.release()


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "save-0123abcd").touch()
    run, lock = open_run(tmp_path / "run", UnsyncedBackend())
    run.requests.symlink_to(elsewhere)
    refuse_requests(run, UnsyncedBackend())
    with pytest.raises(NotADirectoryError):
        begin_answering(run, UnsyncedBackend())
    assert (elsewhere / "save-0123abcd").exists()
    lock.release()


def test_who_holds_a_run_is_seen_without_touching_the_lock(tmp_path):
    assert live_holder(tmp_path, tmp_path / ".milepost" / "lock") is None
    run, lock = open_run(tmp_path, UnsyncedBackend())
    mine = live_holder(run.path, run.lock)
    assert mine is not None

    def look() -> None:
        seen = live_holder(run.path, run.lock)
        assert seen is not None and seen["pid"] == mine["pid"]

    def is_free() -> None:
        assert live_holder(run.path, run.lock) is None

    assert in_child(look) == 0
    assert live_holder(run.path, run.lock) is not None
    lock.release()
    assert live_holder(run.path, run.lock) is None
    assert in_child(is_free) == 0
