"""A disk budget holds at every moment of a run, also while a checkpoint is written, pruned, demoted or swept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from milepost import CheckpointManager, DiskBudget, EverySteps, KeepBest, KeepEvery, KeepLast, Level
from milepost.errors import DiskFullError
from milepost.storage.catalog import read_catalog
from milepost.storage.verify import verify_checkpoint
from tests.faults import FaultyBackend, QuotaBackend
from tests.manager.training import Run, step_folders


class Watched(FaultyBackend):
    """Looks at what the folder takes after every operation."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.most = 0

    def around(self, name: str, operation: Any, *arguments: Any) -> Any:
        result = super().around(name, operation, *arguments)
        self.most = max(self.most, in_use(self.folder))
        return result


def large(seed: int = 0) -> Run:
    """A model whose tensors outweigh what surrounds them."""
    return Run(seed=seed, width=2048)


def in_use(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def size_of_one(tmp_path: Path) -> int:
    run = large()
    with run.manager(tmp_path / "one") as manager:
        run.train(manager, 0, 2)
        manager.wait()
        return manager.catalog().checkpoints[-1].size


RULES = {
    "alone": [],
    "alone, as weights": ["weights"],
    "with the last": [KeepLast(5)],
    "with the best": [KeepBest(1, "score", "max"), KeepEvery(1)],
    "with a level": [KeepLast(2), KeepEvery(1, level="weights")],
}


@pytest.mark.parametrize("grace", [0, "1h"])
@pytest.mark.parametrize("rules", RULES)
def test_a_budget_is_kept_at_every_operation(tmp_path, rules, grace):
    one = size_of_one(tmp_path)
    limit = 4 * one + one // 2
    given = RULES[rules]
    keep = [DiskBudget(limit, level="weights")] if given == ["weights"] else [*given, DiskBudget(limit)]
    folder = tmp_path / "run"
    folder.mkdir()
    backend = Watched(folder)
    run = large()
    with CheckpointManager(
        folder, run.state, save=EverySteps(1), keep=keep, backend=backend, signals=False, trash_grace=grace
    ) as manager:
        for step in range(1, 13):
            run.train_step()
            manager.step(step, metrics={"score": -abs(step - 3)})
            manager.wait()
    assert backend.most <= limit
    catalog = read_catalog(folder)
    assert catalog.checkpoints[-1].step == 12 and catalog.checkpoints[-1].level is Level.FULL
    assert all(verify_checkpoint(checkpoint.path) == [] for checkpoint in catalog.checkpoints)
    # It is used, too: three and the next, or more of them with weights only.
    assert len(catalog.checkpoints) >= 3
    if rules == "with the best":
        assert catalog.at(3) is not None
    with large(1).manager(folder, keep=keep) as manager:
        assert manager.resume() == 12


def test_a_budget_for_less_than_two_is_refused_before_anything_is_written(tmp_path):
    one = size_of_one(tmp_path)
    run = large()
    manager = run.manager(tmp_path / "run", every=1, keep=DiskBudget(one + one // 2))
    with pytest.raises(DiskFullError, match="the disk budget is") as caught, manager:
        run.train(manager, 0, 4)
    assert caught.value.needed is not None and caught.value.needed > one
    assert step_folders(tmp_path / "run") == []


def test_where_pins_leave_no_room_the_save_is_refused_with_numbers_and_nothing_goes(tmp_path):
    one = size_of_one(tmp_path)
    run = large()
    with run.manager(tmp_path / "run", every=1, keep=DiskBudget(4 * one + one // 2), background=False) as manager:
        for step in range(1, 4):
            run.train(manager, step - 1, step)
            manager.pin(step)
        run.train(manager, 3, 4)
        with pytest.raises(DiskFullError, match=r"step_3 \(pinned\).*short of.*Unpin"):
            run.train(manager, 4, 5)
        assert step_folders(tmp_path / "run") == ["step_1", "step_2", "step_3", "step_4"]
        manager.unpin(1)
        run.train(manager, 5, 6)
    found = read_catalog(tmp_path / "run")
    assert found.newest is not None and found.newest.step == 6
    assert {2, 3} <= {checkpoint.step for checkpoint in found.checkpoints}


def test_a_share_is_of_the_whole_disk(tmp_path, monkeypatch):
    one = size_of_one(tmp_path)
    monkeypatch.setattr("milepost.keeping.disk_size", lambda path: 9 * one)
    monkeypatch.setattr("milepost.preflight.disk_size", lambda path: 9 * one)
    run = large()
    with run.manager(tmp_path / "run", every=1, keep=DiskBudget("50%")) as manager:
        run.train(manager, 0, 8)
    assert in_use(tmp_path / "run") <= 4.5 * one


def test_the_trash_goes_before_any_checkpoint(tmp_path):
    one = size_of_one(tmp_path)
    run = large()
    keep = [KeepLast(2), DiskBudget(5 * one)]
    with run.manager(tmp_path / "run", every=1, keep=keep, trash_grace="1h") as manager:
        run.train(manager, 0, 9)
    assert step_folders(tmp_path / "run") == ["step_8", "step_9"]
    left = sorted(path.name.split(".")[0] for path in (tmp_path / "run" / ".trash").iterdir())
    assert left == ["step_7"]


def test_a_disk_too_small_ends_with_the_newest_whole_and_the_numbers(tmp_path, caplog):
    one = size_of_one(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    run = large()
    manager = run.manager(folder, every=1, backend=QuotaBackend(folder, 3 * one + one // 2))
    with caplog.at_level(logging.INFO, "milepost"), pytest.raises(DiskFullError) as caught, manager:
        run.train(manager, 0, 9)
    assert "all that are saved will be kept" in caplog.text and "are free, enough for" in caplog.text
    assert caught.value.step == 4 and "the disk is full" in str(caught.value)
    assert caught.value.needed is not None and caught.value.free is not None
    assert caught.value.free < one
    catalog = read_catalog(folder)
    assert [checkpoint.step for checkpoint in catalog.checkpoints] == [1, 2, 3]
    assert all(verify_checkpoint(checkpoint.path) == [] for checkpoint in catalog.checkpoints)
    again = large(1)
    with again.manager(folder, every=100) as manager:
        assert manager.resume() == 3


def test_a_full_disk_gives_back_the_trash_before_it_is_an_error(tmp_path):
    one = size_of_one(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    run = large()
    backend = QuotaBackend(folder, 3 * one + one // 2)
    with run.manager(folder, every=1, keep=KeepLast(1), backend=backend, trash_grace="1h") as manager:
        run.train(manager, 0, 9)
    assert step_folders(folder) == ["step_9"]
