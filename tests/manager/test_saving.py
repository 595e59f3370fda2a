"""Saving: at the steps that were asked for, each once, and what a failure costs."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from milepost import AtEpochEnd, AtSteps, CheckpointManager, EverySteps, First, KeepBest, KeepLast, LogSpaced
from milepost.errors import (
    CheckpointNotFoundError,
    DiskFullError,
    MilepostError,
    RunLockedError,
    SaveFailedError,
    UnsupportedStateError,
)
from milepost.storage.backend import LocalBackend
from tests.manager.training import Run, same, step_folders


class FailingBackend(LocalBackend):
    """Fails each operation called ``name`` with an error number, as long as ``broken`` is set."""

    def __init__(self, name: str, number: int = errno.EIO) -> None:
        self.broken = False
        original = getattr(super(), name)

        def operation(*arguments: object) -> object:
            if self.broken:
                raise OSError(number, os.strerror(number), str(arguments[0]))
            return original(*arguments)

        setattr(self, name, operation)


class BlockedBackend(LocalBackend):
    """Makes no file until it is let go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def create(self, path: Path, size: int | None = None):  # type: ignore[no-untyped-def]
        self.go_on.wait()
        return super().create(path, size)


@pytest.mark.parametrize(("last", "expected"), [(10, [5, 10]), (11, [5, 10, 11])])
@pytest.mark.parametrize("background", [True, False])
def test_case_01_each_step_is_saved_once_and_told_once_the_last_one_included(tmp_path, last, expected, background):
    run, told = Run(), []
    with run.manager(tmp_path, every=5, background=background) as manager:
        manager.on_save(lambda checkpoint: told.append(checkpoint.step))
        run.train(manager, manager.resume(), last)
    assert step_folders(tmp_path) == [f"step_{step}" for step in expected]
    assert told == expected


def test_case_03_the_checkpoint_of_a_step_holds_that_step(tmp_path):
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    counters = {"step": 0}
    state = {"model": model, "optimizer": optimizer, "counters": counters}
    with CheckpointManager(tmp_path, state, save=EverySteps(5), signals=False) as manager:
        for step in range(1, 6):
            model.weight.grad = torch.full((1, 1), -1.0)
            optimizer.step()
            counters["step"] = step
            manager.step(step)
    assert step_folders(tmp_path) == ["step_5"]
    assert load_file(tmp_path / "step_5" / "model.safetensors")["weight"].item() == 5.0
    counters["step"] = 0
    with CheckpointManager(tmp_path, state, signals=False) as manager:
        assert manager.resume() == 5
    assert counters == {"step": 5}


def test_case_04_the_count_never_restarts_at_an_epoch(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=5) as manager:
        step = 0
        for _epoch in range(4):
            for at in range(3):
                step += 1
                run.train_step()
                manager.step(step, epoch_end=at == 2)
    assert step_folders(tmp_path) == ["step_5", "step_10", "step_12"]


@pytest.mark.parametrize(
    ("save", "expected"),
    [
        ([EverySteps(4), AtSteps([3])], [3, 4, 8, 10]),
        (LogSpaced(first=1, factor=2), [1, 2, 4, 8, 10]),
        ([First(), AtEpochEnd()], [1, 5, 10]),
        (None, [10]),
        ([], [10]),
    ],
)
def test_schedules_are_any_of(tmp_path, save, expected):
    run = Run()
    with CheckpointManager(tmp_path, run.state, save=save, signals=False) as manager:
        for step in range(1, 11):
            manager.step(step, epoch_end=step % 5 == 0)
    assert step_folders(tmp_path) == [f"step_{step}" for step in expected]


@pytest.mark.parametrize("how", ["EverySteps", "KeepLast"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True, None])
def test_case_05_and_33_bad_numbers_are_refused_where_they_are_written(how, value):
    rule = {"EverySteps": EverySteps, "KeepLast": KeepLast}[how]
    with pytest.raises((ValueError, TypeError), match=rf"{how}\(n={value!r}\)"):
        rule(value)


def test_numpy_integers_are_steps_too(tmp_path):
    run = Run()
    with CheckpointManager(tmp_path, run.state, save=EverySteps(np.int64(2)), signals=False) as manager:
        for step in np.arange(1, 3):
            manager.step(step)
    assert step_folders(tmp_path) == ["step_2"]


@pytest.mark.parametrize("steps", [[1, 1], [5, 3], [0], [-1]])
def test_steps_must_increase(tmp_path, steps):
    run = Run()
    with pytest.raises(ValueError, match="the next one is"), run.manager(tmp_path) as manager:
        for step in steps:
            manager.step(step)


@pytest.mark.parametrize("step", [1.0, "1", True, None])
def test_a_step_is_a_whole_number(tmp_path, step):
    with pytest.raises(TypeError, match="whole number"), Run().manager(tmp_path) as manager:
        manager.step(step)


def test_a_step_that_is_passed_over_counts_as_reached(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=5) as manager:
        for step in (3, 7, 8, 13):
            manager.step(step)
    assert step_folders(tmp_path) == ["step_7", "step_13"]


def test_leaving_by_an_exception_saves_nothing_new(tmp_path):
    run = Run()
    with pytest.raises(KeyError), run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 3)
        raise KeyError("half an update")
    assert step_folders(tmp_path) == ["step_2"]


def test_save_forces_one_now_and_twice_is_once(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=100) as manager:
        run.train(manager, manager.resume(), 3)
        first = manager.save().result()
        assert manager.save().result() == first
        assert first.step == 3
        assert first.reasons == ("save() was called",)
    assert step_folders(tmp_path) == ["step_3"]


def test_save_before_the_first_step_writes_step_0_and_resuming_gives_0(tmp_path):
    run = Run()
    before = run.weights()
    with run.manager(tmp_path, every=100) as manager:
        manager.resume()
        assert manager.save().result().step == 0
    again = Run(seed=5)
    with again.manager(tmp_path) as manager:
        assert manager.resume() == 0
    assert same(again.weights(), before)


@pytest.mark.parametrize("background", [True, False])
def test_case_08_best_and_newest_are_both_always_there(tmp_path, background):
    run = Run()
    rules = [KeepLast(2), KeepBest(1, "val_loss", mode="min")]
    with run.manager(tmp_path, every=1, keep=rules, background=background) as manager:
        for step, score in enumerate([0.5, 0.1, 0.4, 0.6], start=1):
            manager.step(step, metrics={"val_loss": torch.tensor(score)})
        manager.wait()
        assert manager.best("val_loss").step == 2
    assert step_folders(tmp_path) == ["step_2", "step_3", "step_4"]


@pytest.mark.parametrize(("first", "second"), [(0.9, 0.5), (0.0, -1.0), (-3.0, -4.0)])
def test_case_13_the_best_score_survives_a_resume(tmp_path, first, second):
    rules = [KeepLast(1), KeepBest(1, "accuracy", mode="max")]
    run = Run()
    with run.manager(tmp_path, keep=rules) as manager:
        manager.step(1)
        manager.step(2, metrics={"accuracy": first})
    with Run().manager(tmp_path, keep=rules) as manager:
        manager.resume()
        manager.step(3)
        manager.step(4, metrics={"accuracy": second})
        manager.step(6)
        manager.wait()
        assert manager.best("accuracy").step == 2
    assert step_folders(tmp_path) == ["step_2", "step_6"]


def test_case_14_scores_that_are_no_numbers_rank_worst_and_warn_once(tmp_path, caplog):
    run = Run()
    with run.manager(tmp_path, every=1, keep=[KeepLast(1), KeepBest(1, "loss")]) as manager:
        for step, score in enumerate([float("nan"), 0.4, float("nan"), float("inf"), 0.6], start=1):
            manager.step(step, metrics={"loss": score})
    assert step_folders(tmp_path) == ["step_2", "step_5"]
    assert sum("no usable score" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("mode", ["min", "max"])
def test_case_14_if_no_score_is_a_number_the_newest_is_kept(tmp_path, mode):
    run = Run()
    with run.manager(tmp_path, every=1, keep=[KeepBest(1, "loss", mode=mode)]) as manager:
        for step in range(1, 4):
            manager.step(step, metrics={"loss": float("nan")})
    assert step_folders(tmp_path) == ["step_3"]


@pytest.mark.parametrize("background", [True, False])
def test_case_15_a_late_score_attaches_to_its_step_and_may_change_the_plan(tmp_path, background):
    run = Run()
    rules = [KeepLast(2), KeepBest(1, "val_loss")]
    with run.manager(tmp_path, keep=rules, background=background) as manager:
        run.train(manager, manager.resume(), 4)
        manager.record_metrics(2, {"val_loss": 0.1})
        manager.record_metrics(4, {"val_loss": 0.3})
        run.train(manager, 4, 8)
        with pytest.raises(CheckpointNotFoundError, match="step 7"):
            manager.record_metrics(7, {"val_loss": 0.0})
    assert step_folders(tmp_path) == ["step_2", "step_6", "step_8"]
    with Run().manager(tmp_path) as manager:
        metrics = manager.catalog().at(2).metrics
        assert metrics["val_loss"] == 0.1
        assert "loss" in metrics


def test_metrics_are_read_only_when_a_step_is_saved(tmp_path):
    class Costly:
        reads = 0

        def __float__(self) -> float:
            Costly.reads += 1
            return 1.0

    run = Run()
    with run.manager(tmp_path, every=5) as manager:
        for step in range(1, 11):
            manager.step(step, metrics={"loss": Costly()})
    assert Costly.reads == 2


def test_the_final_save_has_the_metrics_of_its_own_step_even_if_the_tensor_changed_since(tmp_path):
    run, loss = Run(), torch.tensor(2.0, requires_grad=True)
    with run.manager(tmp_path, every=100) as manager:
        manager.step(1, metrics={"loss": loss * 1})
        with torch.no_grad():
            loss.zero_()
    with Run().manager(tmp_path) as manager:
        assert manager.latest().metrics == {"loss": 2.0}


def test_case_27_the_file_holds_the_values_of_the_call(tmp_path):
    backend = BlockedBackend()
    run = Run()
    with run.manager(tmp_path, every=100, backend=backend) as manager:
        run.train(manager, manager.resume(), 2)
        before, samples = run.weights(), dict(run.counters)
        job = manager.save()
        run.train(manager, 2, 5)
        assert not job.done()
        backend.go_on.set()
        job.result()
        again = Run()
        manager.close()
    with again.manager(tmp_path) as second:
        assert second.resume(2) == 2
    assert same(again.weights(), before)
    assert again.counters == samples


OPERATIONS = ["make_folder", "create", "rename", "sync_folder"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_case_28_a_failed_background_save_is_raised_once_with_its_cause_and_costs_nothing_older(tmp_path, name):
    backend = FailingBackend(name)
    run = Run()
    with run.manager(tmp_path, keep=KeepLast(1), backend=backend) as manager:
        run.train(manager, manager.resume(), 3)
        manager.wait()
        backend.broken = True
        run.train(manager, 3, 4)
        manager._saver.wait()
        backend.broken = False
        with pytest.raises(SaveFailedError) as caught:
            manager.step(5)
        assert isinstance(caught.value.__cause__, OSError)
        assert (tmp_path / "step_2").exists() or name == "sync_folder"
        manager.step(5)
        manager.step(6)
        manager.wait()
    assert step_folders(tmp_path) == ["step_6"]


@pytest.mark.parametrize("background", [True, False])
def test_case_28_close_raises_a_failed_save_and_still_gives_back_the_lock(tmp_path, background):
    backend = FailingBackend("create")
    run = Run()
    manager = run.manager(tmp_path, every=100, backend=backend, background=background)
    manager.step(1)
    backend.broken = True
    with pytest.raises(SaveFailedError):
        manager.close()
    assert step_folders(tmp_path) == []
    manager.close()
    with Run().manager(tmp_path):
        pass


def test_a_job_that_reported_its_error_is_not_raised_again(tmp_path):
    backend = FailingBackend("create")
    run = Run()
    with run.manager(tmp_path, every=100, backend=backend) as manager:
        manager.step(1)
        backend.broken = True
        with pytest.raises(SaveFailedError):
            manager.save().result()
        backend.broken = False
        manager.step(2)
        assert manager.save().result().step == 2


@pytest.mark.parametrize("background", [True, False])
def test_a_full_disk_costs_no_checkpoint_and_says_the_numbers(tmp_path, background):
    backend = FailingBackend("create", errno.ENOSPC)
    run = Run()
    manager = run.manager(tmp_path, keep=KeepLast(1), backend=backend, background=background)
    run.train(manager, manager.resume(), 3)
    manager.wait()
    backend.broken = True
    with pytest.raises(DiskFullError, match="the disk is full") as caught:
        run.train(manager, 3, 4)
        manager.wait()
    assert caught.value.needed > 0 and caught.value.free > 0
    backend.broken = False
    manager.close()
    assert "staging" not in " ".join(step_folders(tmp_path))


def test_a_second_manager_on_the_folder_is_refused_by_any_spelling_and_the_first_keeps_its_lock(tmp_path):
    (tmp_path / "run").mkdir()
    os.symlink(tmp_path / "run", tmp_path / "link")
    with Run().manager(tmp_path / "run"):
        for spelling in (tmp_path / "run", tmp_path / "link", tmp_path / "run" / ".." / "run"):
            with pytest.raises(RunLockedError, match="in use"):
                Run().manager(spelling)
    with Run().manager(tmp_path / "link"):
        pass


def test_a_state_dict_that_fails_is_named_and_leaves_older_checkpoints_alone(tmp_path):
    class Broken:
        broken = False

        def state_dict(self) -> dict[str, int]:
            if self.broken:
                raise RuntimeError("no memory")
            return {"value": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            pass

    run, ema = Run(), Broken()
    manager = CheckpointManager(tmp_path, {**run.state, "ema": ema}, save=EverySteps(2), signals=False)
    run.train(manager, manager.resume(), 3)
    ema.broken = True
    with pytest.raises(SaveFailedError, match=r'state\["ema"\]'):
        manager.step(4)
    ema.broken = False
    manager.close()
    assert step_folders(tmp_path) == ["step_2", "step_4"]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (3, "state"),
        (None, "state"),
        ("text", "state"),
        ({"a": [1, {"b": lambda: 0}]}, r"\['a'\]\[1\]\['b'\]"),
        (torch.utils.data.DataLoader([1, 2]), "ResumableLoader"),
    ],
)
def test_a_state_that_could_not_come_back_is_refused_when_the_manager_is_made(tmp_path, value, names):
    with pytest.raises(UnsupportedStateError, match=names):
        CheckpointManager(tmp_path, {"thing": value}, signals=False)
    with Run().manager(tmp_path):
        pass


def test_a_closed_manager_says_so(tmp_path):
    manager = Run().manager(tmp_path)
    manager.close()
    for call in (lambda: manager.step(1), manager.save, manager.resume):
        with pytest.raises(MilepostError, match="closed"):
            call()


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveFailedError, match="cannot be written to"):
        Run().manager(tmp_path / "file" / "run")


def test_case_30_a_checkpoint_on_its_own_has_everything_beside_the_weights(tmp_path):
    config = tmp_path / "my_run.yaml"
    config.write_text("lr: 1\n")
    run = Run()
    with run.manager(tmp_path / "run", assets=[config], config_name="my_run.yaml") as manager:
        config.write_text("edited while it ran")
        run.train(manager, manager.resume(), 4)
    for step in (2, 4):
        assert (tmp_path / "run" / f"step_{step}" / "my_run.yaml").read_text() == "lr: 1\n"
    with Run().manager(tmp_path / "run") as manager:
        assert manager.latest().config == "my_run.yaml"
