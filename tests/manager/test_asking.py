"""A live run is asked to save: it does once, at the end of a step, and whatever else is going on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from milepost import AnyOf, CheckpointManager, EverySteps, Moment, OnRequest, OnSignal
from milepost.asking import SECONDS_BETWEEN_LOOKS, Asked
from milepost.errors import SaveFailedError
from milepost.policy.asking import answered_requests
from milepost.storage.backend import LocalBackend
from milepost.storage.layout import RunFolder
from milepost.storage.requests import ask_to_save, pending_requests
from tests.manager.test_saving import FailingBackend
from tests.manager.training import Run, step_folders


def manager(folder: Path, schedule: object = None, **options: object) -> CheckpointManager:
    save = OnRequest() if schedule is None else schedule
    return CheckpointManager(folder, Run().state, save=save, **{"signals": False, **options})  # type: ignore[arg-type]


def step_until_saved(checkpoints: CheckpointManager, step: int) -> int:
    """Steps until one of them is saved: requests are looked for a few times a second."""
    before = checkpoints.latest()
    while checkpoints.latest() == before:
        step += 1
        checkpoints.step(step)
        checkpoints.wait()
    return step


@pytest.mark.parametrize("background", [True, False])
def test_a_request_is_answered_once_and_names_itself(tmp_path, background):
    run = RunFolder(tmp_path)
    with manager(tmp_path, background=background) as checkpoints:
        checkpoints.step(1)
        request = ask_to_save(run)
        step = step_until_saved(checkpoints, 1)
        assert checkpoints.latest().reasons == (f"save-now ({request})",)
        assert pending_requests(run) == ()
        # Long enough for further looks, by the clock that the manager reads.
        second = ask_to_save(run)
        last = step_until_saved(checkpoints, step)
        assert checkpoints.latest().reasons == (f"save-now ({second})",)
    assert step_folders(tmp_path) == [f"step_{step}", f"step_{last}"]


def test_a_request_of_a_dead_run_is_answered_by_the_next(tmp_path):
    with pytest.raises(RuntimeError), manager(tmp_path) as checkpoints:
        checkpoints.step(1)
        checkpoints.save().result()
        checkpoints.step(2)
        request = ask_to_save(RunFolder(tmp_path))
        raise RuntimeError
    assert pending_requests(RunFolder(tmp_path)) == (request,)
    with manager(tmp_path) as checkpoints:
        assert checkpoints.resume() == 1
        checkpoints.step(2)
        checkpoints.wait()
        assert checkpoints.latest().reasons == (f"save-now ({request})",)


def test_a_request_that_comes_late_is_answered_by_the_last_step(tmp_path):
    with manager(tmp_path) as checkpoints:
        checkpoints.step(1)
        ask_to_save(RunFolder(tmp_path))
    assert step_folders(tmp_path) == ["step_1"]
    assert pending_requests(RunFolder(tmp_path)) == ()


def test_a_request_whose_save_failed_waits_for_the_next(tmp_path):
    backend = FailingBackend("create")
    with manager(tmp_path, backend=backend, background=False) as checkpoints:
        request = ask_to_save(RunFolder(tmp_path))
        backend.broken = True
        with pytest.raises(SaveFailedError):
            checkpoints.step(1)
        backend.broken = False
        assert pending_requests(RunFolder(tmp_path)) == (request,)
        step_until_saved(checkpoints, 1)
        assert answered_requests(checkpoints.latest()) == {request}


def test_a_request_that_cannot_be_removed_is_answered_once_all_the_same(tmp_path, caplog):
    backend = FailingBackend("remove_file")
    with manager(tmp_path, [OnRequest(), EverySteps(1)], backend=backend, background=False) as checkpoints:
        request = ask_to_save(RunFolder(tmp_path))
        backend.broken = True
        for step in range(1, 4):
            checkpoints.step(step)
        assert "could not be removed" in caplog.text
        assert [found.reasons for found in checkpoints.catalog().checkpoints] == [
            (f"save-now ({request})", "every 1 steps"),
            ("every 1 steps",),
            ("every 1 steps",),
        ]
        backend.broken = False


def test_looks_are_rare(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr("milepost.asking.pending_requests", lambda run: looked.append(run) or ())
    run = RunFolder(tmp_path)
    run.control.mkdir()
    asked = Asked(run, LocalBackend(), AnyOf((OnRequest(),)), ending=False)
    for tick in range(1000):
        asked.at(tick * SECONDS_BETWEEN_LOOKS / 100)
    assert len(looked) == 10


def test_without_the_rule_nothing_is_looked_for(tmp_path):
    (tmp_path / ".milepost" / "requests").mkdir(parents=True)
    with manager(tmp_path, EverySteps(5)) as checkpoints:
        assert not (tmp_path / ".milepost" / "requests").exists()
        checkpoints.step(1)


def test_a_rule_of_ones_own_sees_what_is_asked(tmp_path):
    seen = []

    class Mine:
        def reason_to_save(self, moment: Moment) -> str | None:
            seen.append(moment.requests)
            return "mine" if moment.step == 2 else None

    with manager(tmp_path, [Mine(), OnRequest()]) as checkpoints:
        request = ask_to_save(RunFolder(tmp_path))
        checkpoints.step(1)
        checkpoints.step(2)
        checkpoints.wait()
        assert checkpoints.latest().reasons == ("mine",)
    assert seen == [(request,), ()]


def test_a_signal_of_ones_choice_saves_and_training_goes_on(tmp_path):
    before = signal.getsignal(signal.SIGUSR2)
    with manager(tmp_path, [OnSignal("SIGUSR2"), EverySteps(100)]) as checkpoints:
        for step in range(1, 5):
            if step == 3:
                os.kill(os.getpid(), signal.SIGUSR2)
            checkpoints.step(step)
        assert not checkpoints.should_stop
        # Without signals=True the others stay as they were.
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert step_folders(tmp_path) == ["step_3", "step_4"]
    assert signal.getsignal(signal.SIGUSR2) == before
