"""Resuming: bit for bit, from the newest good checkpoint, and never silently from zero."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch

from milepost import CheckpointManager, EverySteps, KeepLast
from milepost.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IncompatibleStateError,
    UnsupportedFormatError,
)
from milepost.storage.digests import digest
from tests.manager.training import MODES, Run, damage, same, step_folders

DAMAGES = ["no training state", "empty weights", "flipped bit", "truncated manifest", "no manifest"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stops", [[5], [1, 2, 3, 9], [4, 6]])
def test_case_20_a_run_stopped_and_resumed_equals_the_unbroken_run_bit_for_bit(tmp_path, mode, stops):
    unbroken = Run()
    for _ in range(10):
        unbroken.train_step()

    seen = []
    for part_number, stop in enumerate([*stops, 10]):
        part = Run(seed=99 * part_number)
        with part.manager(tmp_path, every=1, **MODES[mode]) as manager:
            part.train(manager, manager.resume(), stop)
        seen += part.seen

    assert seen == unbroken.seen
    assert same(part.weights(), unbroken.weights())
    assert part.counters["samples"] == unbroken.counters["samples"]


def test_case_21_learning_rates_after_a_resume_are_those_of_the_unbroken_run(tmp_path):
    unbroken = Run()
    for _ in range(10):
        unbroken.train_step()
    first = Run()
    with first.manager(tmp_path, every=5) as manager:
        first.train(manager, manager.resume(), 5)
    second = Run()
    with second.manager(tmp_path, every=5) as manager:
        second.train(manager, manager.resume(), 10)
    assert [lr for _, lr in first.seen + second.seen] == [lr for _, lr in unbroken.seen]


@pytest.mark.parametrize("how", DAMAGES)
def test_case_11_a_damaged_checkpoint_is_passed_over_with_its_reason(tmp_path, caplog, how):
    run = Run()
    with run.manager(tmp_path, keep=KeepLast(5)) as manager:
        run.train(manager, manager.resume(), 4)
    damage(tmp_path / "step_4", how)

    again = Run()
    with caplog.at_level(logging.WARNING, "milepost"), again.manager(tmp_path) as manager:
        assert manager.resume() == 2
        warnings = [record.getMessage() for record in caplog.records]
        assert any("passed over" in text and str(tmp_path / "step_4") in text for text in warnings)
        again.train(manager, 2, 4)
    fresh = Run()
    with fresh.manager(tmp_path) as manager:
        assert manager.resume() == 4, "the damaged folder was replaced when the run reached its step again"
    assert same(fresh.weights(), run.weights())


def test_a_damaged_checkpoint_never_counts_as_one_that_is_kept(tmp_path):
    run = Run()
    with run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 4)
    damage(tmp_path / "step_4", "flipped bit")
    again = Run()
    with again.manager(tmp_path, every=3, keep=KeepLast(2)) as manager:
        again.train(manager, manager.resume(), 6)
        manager.wait()
        kept = [checkpoint.step for checkpoint in manager.catalog().checkpoints]
        assert kept == [3, 6]
        assert [entry.step for entry in manager.catalog().damaged] == [4]


@pytest.mark.parametrize("how", [how for how in DAMAGES if how != "no manifest"])
def test_if_every_checkpoint_is_damaged_that_is_an_error_and_not_a_start_from_zero(tmp_path, how):
    run = Run()
    with run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 4)
    for step in (2, 4):
        damage(tmp_path / f"step_{step}", how)
    again = Run()
    before = again.weights()
    manager = again.manager(tmp_path)
    with pytest.raises(CorruptCheckpointError, match="starting again from step 0"):
        manager.resume()
    manager.close()
    assert same(again.weights(), before)


def test_a_step_asked_for_by_number_is_not_replaced_by_another(tmp_path):
    run = Run()
    with run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 4)
    damage(tmp_path / "step_4", "flipped bit")
    with Run().manager(tmp_path) as manager:
        with pytest.raises(CorruptCheckpointError, match="digest"):
            manager.resume(4)
        with pytest.raises(CheckpointNotFoundError, match="step_2, step_4"):
            manager.resume(3)
        assert manager.resume(2) == 2


def test_case_06_steps_are_ordered_as_numbers(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=1, keep=KeepLast(3)) as manager:
        run.train(manager, manager.resume(), 10)
    assert step_folders(tmp_path) == ["step_8", "step_9", "step_10"]
    with Run().manager(tmp_path) as manager:
        assert manager.resume() == 10


def test_case_07_the_checkpoint_resumed_from_stays_until_a_newer_one_is_durable(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=10) as manager:
        run.train(manager, manager.resume(), 10)
    again = Run()
    with again.manager(tmp_path, every=2, keep=KeepLast(1)) as manager:
        again.train(manager, manager.resume(), 11)
        assert step_folders(tmp_path) == ["step_10"]
        again.train(manager, 11, 12)
        manager.wait()
        assert step_folders(tmp_path) == ["step_12"]


def test_case_07_a_pinned_checkpoint_and_one_outside_the_folder_stay_for_good(tmp_path):
    run = Run()
    with run.manager(tmp_path / "first", every=10) as manager:
        run.train(manager, manager.resume(), 10)
        manager.pin(10)
    second = Run()
    with second.manager(tmp_path / "second", keep=KeepLast(1)) as manager:
        assert manager.resume(tmp_path / "first" / "step_10") == 10
        second.train(manager, 10, 14)
    assert step_folders(tmp_path / "first") == ["step_10"]
    assert step_folders(tmp_path / "second") == ["step_14"]
    third = Run()
    with third.manager(tmp_path / "first", keep=KeepLast(1)) as manager:
        third.train(manager, manager.resume(), 14)
    assert step_folders(tmp_path / "first") == ["step_10", "step_14"]


def test_case_09_a_folder_in_use_needs_resume_before_the_first_step(tmp_path):
    old = Run()
    with old.manager(tmp_path, every=100) as manager:
        old.train(manager, manager.resume(), 1)
    new = Run()
    with pytest.raises(CheckpointExistsError, match=r"step_1.*resume\(\)"), new.manager(tmp_path) as manager:
        manager.step(1)
    assert step_folders(tmp_path) == ["step_1"]


def test_case_09_a_checkpoint_of_another_run_is_never_deleted(tmp_path):
    old = Run()
    with old.manager(tmp_path / "old", every=100) as manager:
        old.train(manager, manager.resume(), 3)
    new = Run()
    with new.manager(tmp_path / "new", keep=KeepLast(1)) as manager:
        new.train(manager, manager.resume(), 2)
        manager.wait()
        shutil.copytree(tmp_path / "old" / "step_3", tmp_path / "new" / "step_3")
        new.train(manager, 2, 6)
    assert step_folders(tmp_path / "new") == ["step_3", "step_6"]


def test_case_12_an_incomplete_folder_is_replaced_and_its_files_are_kept_beside(tmp_path):
    (tmp_path / "step_4").mkdir(parents=True)
    (tmp_path / "step_4" / "notes.txt").write_text("mine")
    run = Run()
    with run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 4)
    assert (tmp_path / "step_4" / "milepost.json").exists()
    (aside,) = tmp_path.glob("step_4.displaced-*")
    assert (aside / "notes.txt").read_text() == "mine"


def test_a_rewind_puts_later_checkpoints_aside_until_the_next_commit(tmp_path):
    run = Run()
    with run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 8)
    again = Run()
    manager = again.manager(tmp_path)
    assert manager.resume(4) == 4
    assert step_folders(tmp_path) == ["step_2", "step_4"]
    assert len(list((tmp_path / ".superseded").iterdir())) == 2
    with pytest.raises(KeyError), manager:
        raise KeyError("the process dies before the first save")
    third = Run()
    with third.manager(tmp_path) as manager:
        assert manager.resume() == 4, "a crash does not undo the rewind"
        third.train(manager, 4, 6)
    assert step_folders(tmp_path) == ["step_2", "step_4", "step_6"]
    assert list((tmp_path / ".superseded").iterdir()) == []
    assert same(third.weights(), Run_at(6))


def Run_at(step: int) -> dict[str, torch.Tensor]:
    run = Run()
    for _ in range(step):
        run.train_step()
    return run.weights()


def test_the_newest_is_the_one_committed_last_not_the_largest_number(tmp_path):
    run = Run()
    with run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 8)
    with Run().manager(tmp_path) as manager:
        assert manager.resume(2) == 2
        assert manager.latest().step == 2


def test_case_31_a_finished_run_goes_on_from_its_final_checkpoint(tmp_path):
    run = Run()
    with run.manager(tmp_path, every=100) as manager:
        run.train(manager, manager.resume(), 3)
    again = Run()
    with again.manager(tmp_path, every=100) as manager:
        again.train(manager, manager.resume(), 6)
    assert same(again.weights(), Run_at(6))


def test_a_changed_model_is_refused_by_name_and_nothing_is_touched(tmp_path):
    run = Run()
    with run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 2)
    other = Run(width=9)
    before, generator = other.weights(), torch.get_rng_state()
    with other.manager(tmp_path) as manager:
        with pytest.raises(IncompatibleStateError) as caught:
            manager.resume()
        assert any("0.weight" in name for name in caught.value.mismatched)
        assert same(other.weights(), before)
        assert torch.equal(torch.get_rng_state(), generator)
        assert other.optimizer.state_dict()["state"] == {}


def test_parts_that_only_one_side_has_are_refused_unless_allowed(tmp_path):
    run = Run()
    with run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 2)
    again = Run()
    extra = {"sum": 0}
    with CheckpointManager(tmp_path, {**again.state, "extra": extra}, save=EverySteps(2), signals=False) as manager:
        with pytest.raises(IncompatibleStateError, match="extra"):
            manager.resume()
        assert manager.resume(allow_missing=["extra"]) == 2
    assert extra == {"sum": 0}


def _with_version(folder: Path, version: str) -> None:
    manifest = folder / "milepost.json"
    body = json.loads(manifest.read_bytes())
    body["format_version"] = version
    body["manifest_digest"] = "0" * 32
    text = json.dumps(body, indent=1, ensure_ascii=False).encode() + b"\n"
    manifest.write_bytes(text.replace(b"0" * 32, digest(text).encode()))


def test_a_newer_major_version_is_refused_and_a_newer_minor_read(tmp_path):
    run = Run()
    with run.manager(tmp_path) as manager:
        run.train(manager, manager.resume(), 4)
    _with_version(tmp_path / "step_4", "1.7")
    with Run().manager(tmp_path) as manager:
        assert manager.resume() == 4
    _with_version(tmp_path / "step_4", "2.0")
    with Run().manager(tmp_path) as manager, pytest.raises(UnsupportedFormatError, match=r"2\.0"):
        manager.resume()


def test_case_26_a_symbolic_link_is_no_checkpoint(tmp_path, caplog):
    outside = Run()
    with outside.manager(tmp_path / "outside", every=9) as manager:
        outside.train(manager, manager.resume(), 9)
    run = Run()
    with run.manager(tmp_path / "run", keep=KeepLast(1)) as manager:
        run.train(manager, manager.resume(), 2)
    os.symlink(tmp_path / "outside" / "step_9", tmp_path / "run" / "step_9")
    again = Run()
    with again.manager(tmp_path / "run", keep=KeepLast(1)) as manager:
        assert manager.resume() == 2
        again.train(manager, 2, 4)
    assert "symbolic link" in caplog.text
    assert (tmp_path / "run" / "step_9").is_symlink()
    assert (tmp_path / "outside" / "step_9" / "milepost.json").exists()


@pytest.mark.parametrize("folder", ["footsteps/epoch_9/base", "with spaces/and ünïcödé 中", "a/b/c/d"])
def test_case_32_any_folder_name_works(tmp_path, folder):
    run = Run()
    with run.manager(tmp_path / folder) as manager:
        run.train(manager, manager.resume(), 4)
    with Run().manager(tmp_path / folder) as manager:
        assert manager.resume() == 4


def test_case_34_names_that_are_not_quite_a_checkpoints_are_left_alone(tmp_path):
    for name in ("step_4_backup", "step_04", "epoch_1", "step_", "step_-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "milepost.json").write_text("{}")
    (tmp_path / "step_7").write_text("a file")
    run = Run()
    with run.manager(tmp_path, keep=KeepLast(1)) as manager:
        assert manager.resume() == 0
        run.train(manager, 0, 4)
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert left == {"latest", "step_4", "step_4_backup", "step_04", "epoch_1", "step_", "step_-1", "step_7"}


def test_a_relative_folder_is_resolved_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run()
    with run.manager(Path("runs/one")) as manager:
        manager.resume()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        run.train(manager, 0, 2)
    assert step_folders(tmp_path / "runs" / "one") == ["step_2"]
