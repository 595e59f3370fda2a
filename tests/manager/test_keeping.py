"""Keeping in a run: levels, the trash, pointers, the look at the disk before training, and the command line beside."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from milepost import CheckpointManager, EverySteps, KeepBest, KeepEvery, KeepLast, KeepLogSpaced, KeepWithin, Level
from milepost.errors import CheckpointNotFoundError, DiskFullError
from milepost.storage.backend import LocalBackend
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.log import read_log
from milepost.storage.trash import read_trash, undelete
from tests.manager.training import Run, same, step_folders


class WithRoom(LocalBackend):
    """A disk on which so many bytes are free."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, path: Path) -> int:
        return self.free


def milepost(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line, as another process."""
    command = [sys.executable, "-m", "milepost", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def save(manager: CheckpointManager, run: Run, scores: dict[int, float]) -> None:
    for step, score in scores.items():
        run.train_step()
        manager.step(step, metrics={"score": score})
        manager.wait()


def levels(folder: Path) -> dict[int, str]:
    return {each.step: each.level.value for each in read_catalog(folder).checkpoints}


@pytest.mark.parametrize("background", [True, False])
def test_each_checkpoint_has_the_highest_level_that_a_rule_asks_for(tmp_path, background):
    run = Run()
    rules = [KeepLast(2), KeepBest(1, "score", level="weights"), KeepEvery(3, level=Level.WEIGHTS)]
    with run.manager(tmp_path, every=1, keep=rules, background=background) as manager:
        save(manager, run, {1: 0.1, 2: 0.5, 3: 0.4, 4: 0.6, 5: 0.7, 6: 0.8})
    assert levels(tmp_path) == {1: "weights", 3: "weights", 5: "full", 6: "full"}
    demoted = [event for event in read_log(RunFolder(tmp_path)) if event.what == "demoted"]
    assert [event.step for event in demoted] == [1, 3] and all(event.bytes > 0 for event in demoted)


def test_what_was_demoted_is_passed_over_by_a_resume_and_loads_as_weights(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=1, keep=KeepLast(3, level="weights")) as manager:
        save(manager, run, {1: 0.1, 2: 0.2, 3: 0.3})
    assert levels(tmp_path) == {1: "weights", 2: "weights", 3: "full"}
    with Run().manager(tmp_path) as manager, pytest.raises(CheckpointNotFoundError, match="weights only"):
        manager.resume(2)
    again = Run(seed=1)
    with again.manager(tmp_path) as manager:
        assert manager.resume() == 3
    assert same(run.weights(), again.weights())


def test_a_late_score_may_change_what_stays_whole(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=1, keep=[KeepLast(1), KeepBest(1, "score", level="weights")]) as manager:
        save(manager, run, {1: 0.5, 2: 0.6, 3: 0.7})
        manager.record_metrics(3, {"score": 0.1})
        manager.wait()
        assert levels(tmp_path) == {3: "full"}


def test_rules_by_step_and_by_age(tmp_path):
    run = Run()
    with run.manager(tmp_path / "one", every=1, keep=KeepLogSpaced(1, 2.0)) as manager:
        run.train(manager, 0, 9)
    assert step_folders(tmp_path / "one") == ["step_1", "step_2", "step_4", "step_8", "step_9"]
    with run.manager(tmp_path / "two", every=1, keep=KeepWithin("1d")) as manager:
        run.train(manager, 0, 3)
    with run.manager(tmp_path / "two", every=1, keep=KeepWithin(0)) as manager:
        manager.resume()
        run.train(manager, 3, 4)
    assert step_folders(tmp_path / "two") == ["step_4"]


def test_within_the_grace_what_was_pruned_stays_across_restarts_and_comes_back(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=1, keep=KeepLast(1), trash_grace="2h") as manager:
        run.train(manager, 0, 3)
    with Run(seed=1).manager(tmp_path, every=1, keep=KeepLast(1)) as manager:
        assert manager.resume() == 3
        assert [entry.step for entry in read_trash(RunFolder(tmp_path))] == [1, 2]
        undelete(RunFolder(tmp_path), LocalBackend(), 2, now=time.time())
        run.train(manager, 3, 5)
    assert step_folders(tmp_path) == ["step_2", "step_5"]
    again = Run(seed=1)
    with again.manager(tmp_path) as manager:
        assert manager.resume(2) == 2


@pytest.mark.parametrize("grace", ["2 fortnights", -1, None, float("inf")])
def test_a_grace_that_is_no_length_of_time_is_refused(tmp_path, grace):
    with pytest.raises((ValueError, TypeError), match="trash_grace"):
        Run().manager(tmp_path, trash_grace=grace)


def test_latest_and_best_name_checkpoints_at_every_save(tmp_path):
    run = Run()
    seen = []
    with run.manager(tmp_path, every=1, keep=[KeepLast(1), KeepBest(1, "score")]) as manager:
        for step, score in {1: 0.5, 2: 0.1, 3: 0.4}.items():
            save(manager, run, {step: score})
            seen.append((os.readlink(tmp_path / "latest"), os.readlink(tmp_path / "best")))
    assert seen == [("step_1", "step_1"), ("step_2", "step_2"), ("step_3", "step_2")]
    assert [each.step for each in read_catalog(tmp_path).checkpoints] == [2, 3]
    again = Run(seed=1)
    with again.manager(tmp_path, keep=KeepLast(9)) as manager:
        assert manager.resume(tmp_path / "best") == 2
        again.train(manager, 2, 4)
    assert os.readlink(tmp_path / "latest") == "step_4"
    other = Run(seed=2)
    with other.manager(tmp_path.parent / f"{tmp_path.name} other") as manager:
        assert manager.resume(tmp_path / "latest") == 4
    assert same(again.weights(), other.weights())


def test_a_text_pointer_is_followed_too(tmp_path):
    run = Run()
    with run.manager(tmp_path / "run", every=2) as manager:
        run.train(manager, 0, 4)
    (tmp_path / "run" / "latest").unlink()
    (tmp_path / "run" / "latest").write_text("step_2\n")
    with Run(seed=1).manager(tmp_path / "other") as manager:
        assert manager.resume(tmp_path / "run" / "latest") == 2


def test_what_the_disk_needs_is_said_before_training(tmp_path, caplog):
    run = Run()
    with caplog.at_level(logging.INFO, "milepost"):
        rules = [KeepLast(2), KeepBest(1, "score", level="weights")]
        with run.manager(tmp_path, every=2, keep=rules, trash_grace="2h") as manager:
            run.train(manager, 0, 2)
            manager.wait()
    said = [line for line in caplog.messages if line.startswith("disk space")]
    assert len(said) == 1
    assert "at most 2 full, 1 of weights + 1 being written: " in said[0] and "stays for 2 h and counts too" in said[0]


def test_a_peak_that_does_not_fit_is_a_warning_and_two_that_do_not_are_refused(tmp_path, caplog):
    run = Run(width=1024)
    with run.manager(tmp_path / "warned", every=1, keep=KeepLast(9), backend=WithRoom(300_000)) as manager:
        run.train(manager, 0, 1)
    assert "which is not enough for all of it" in caplog.text
    manager = run.manager(tmp_path / "refused", every=1, keep=KeepLast(9), backend=WithRoom(100_000))
    with pytest.raises(DiskFullError, match="do not fit") as caught, manager:
        run.train(manager, 0, 1)
    assert caught.value.free == 100_000 and (caught.value.needed or 0) > 100_000
    assert step_folders(tmp_path / "refused") == []
    # One alone fits, where only the last step is saved.
    with CheckpointManager(tmp_path / "one", run.state, backend=WithRoom(100_000), signals=False) as manager:
        run.train(manager, 0, 1)
    assert step_folders(tmp_path / "one") == ["step_1"]


def test_a_run_that_goes_on_needs_room_for_one_more(tmp_path):
    run = Run(width=1024)
    with run.manager(tmp_path, every=1, keep=KeepLast(1)) as manager:
        run.train(manager, 0, 1)
    with run.manager(tmp_path, every=1, keep=KeepLast(1), backend=WithRoom(100_000)) as manager:
        run.train(manager, manager.resume(), 2)
    assert step_folders(tmp_path) == ["step_2"]


def test_what_the_command_line_pins_beside_a_live_run_is_seen_by_its_next_prune(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=1, keep=KeepLast(2)) as manager:
        save(manager, run, {1: 0.1, 2: 0.2})
        assert milepost("pin", tmp_path, 1).returncode == 0
        save(manager, run, {3: 0.3, 4: 0.4})
        assert step_folders(tmp_path) == ["step_1", "step_3", "step_4"]
        manager.record_metrics(1, {"late": 1.0})
        manager.wait()
        assert manager.catalog().checkpoints[0].pinned
        assert milepost("unpin", tmp_path, 1).returncode == 0
        save(manager, run, {5: 0.5})
    assert step_folders(tmp_path) == ["step_4", "step_5"]


def test_the_command_line_prunes_demotes_and_undeletes_beside_a_live_run(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        save(manager, run, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})
        (tmp_path / "step_9.staging-0123abcd").mkdir()
        pruned = milepost("prune", tmp_path, "--keep", "last=2", "--apply", "--trash-grace", "1h", "--json")
        assert pruned.returncode == 0 and json.loads(pruned.stdout)["applied"] is True
        assert levels(tmp_path) == {3: "full", 4: "full"}
        assert milepost("undelete", tmp_path, 2).returncode == 0
        assert milepost("demote", tmp_path, 3).returncode == 0
        # What a live run may be writing is not cleared away.
        assert (tmp_path / "step_9.staging-0123abcd").is_dir()
        save(manager, run, {5: 0.5})
    assert levels(tmp_path) == {2: "full", 3: "weights", 4: "full", 5: "full"}
    with Run(seed=1).manager(tmp_path) as manager:
        assert manager.resume() == 5
        assert not (tmp_path / "step_9.staging-0123abcd").exists()


def test_a_rewind_is_in_the_log(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        run.train(manager, 0, 3)
    with run.manager(tmp_path, every=1) as manager:
        manager.resume(1)
        run.train(manager, 1, 2)
    events = [(event.what, event.step, event.why) for event in read_log(RunFolder(tmp_path))]
    why = "the run went back to step 1"
    assert events == [
        ("superseded", 2, why),
        ("superseded", 3, why),
        ("swept", 2, ""),
        ("swept", 3, ""),
    ]


def test_a_state_that_cannot_be_read_is_the_saves_error_and_not_the_first_steps(tmp_path):
    class Broken:
        def state_dict(self):
            raise RuntimeError("not now")

        def load_state_dict(self, state):
            pass

    with CheckpointManager(tmp_path, {"it": Broken()}, save=EverySteps(2), signals=False) as manager:
        manager.step(1)
        with pytest.raises(Exception, match="not now"):
            manager.step(2)
        manager._state["it"].state_dict = dict
