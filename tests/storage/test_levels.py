"""Demotion: a checkpoint is what it was or what was asked for, whenever the process dies or the disk fails."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from milepost.errors import CorruptCheckpointError, IncompatibleStateError
from milepost.records import Level
from milepost.storage.backend import Backend
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.levels import LEVELS, demote, stored_weights
from milepost.storage.manifest import read_manifest
from milepost.storage.sweep import recover
from milepost.storage.verify import verify_checkpoint
from tests.faults import FaultyBackend, UnsyncedBackend, count_operations, in_child
from tests.storage.samples import assert_sound, assert_whole, save, snapshot, tree


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = tmp_path / "run"
    folder.mkdir()
    for step in (2, 4):
        save(folder, step)
    return RunFolder(folder)


def _demote_2(run: RunFolder, backend: Backend) -> None:
    found = read_catalog(run.path).at(2)
    assert found is not None
    demote(run, backend, found)


def assert_weights_only(folder: Path, step: int) -> None:
    """The checkpoint has its weights and assets, all of them sound, and nothing of a training state."""
    found = read_catalog(folder).at(step)
    assert found is not None and found.level is Level.WEIGHTS and not found.resumable
    assert verify_checkpoint(found.path) == []
    assert not (found.path / "training_state").exists()
    manifest = read_manifest(found.path)
    assert {name: bytes(value.data) for name, value in stored_weights(found.path, manifest).weights.items()} == {
        name: bytes(value.data) for name, value in snapshot(step).weights.items()
    }
    with safe_open(found.path / "model.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["a.weight", "b.weight"]


def test_a_demoted_checkpoint_keeps_all_but_its_training_state(run: RunFolder) -> None:
    before = read_catalog(run.path).at(2)
    assert before is not None and before.state_size > 0
    files = tree(before.path)
    after = demote(run, UnsyncedBackend(), before)
    assert_weights_only(run.path, 2)
    assert abs(after.size - before.size_at(Level.WEIGHTS)) < 1000 and after.state_size == 0
    assert (after.serial, after.id, after.created, after.metrics) == (before.serial, before.id, before.created, {})
    left = {name for name in files if not name.startswith("training_state") and name != "milepost.json"}
    assert {name: tree(after.path)[name] for name in left} == {name: files[name] for name in left}
    assert_whole(run.path, 4)


def test_demoting_again_changes_nothing(run: RunFolder) -> None:
    _demote_2(run, UnsyncedBackend())
    assert count_operations(lambda backend: _demote_2(run, backend)) == []


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("fault", ["kill", errno.EIO, errno.ENOSPC])
def test_a_demotion_cut_short_at_any_operation_is_as_before_or_as_asked(
    run: RunFolder, tmp_path: Path, fault: int | str, torn: bool
) -> None:
    counted = RunFolder(Path(shutil.copytree(run.path, tmp_path / "counted")))
    operations = count_operations(lambda backend: _demote_2(counted, backend))
    assert {"create", "write", "sync", "rename", "sync_folder", "remove_file", "remove_folder"} <= set(operations)
    seen = set()
    for at in range(1, len(operations) + 1):
        cut = RunFolder(Path(shutil.copytree(run.path, tmp_path / f"cut {at}")))
        backend = FaultyBackend(at=at, fault=fault, for_good=True, torn=torn)
        if fault == "kill":
            assert in_child(lambda cut=cut, backend=backend: _demote_2(cut, backend)) == -9
        else:
            with pytest.raises(OSError) as caught:
                _demote_2(cut, backend)
            assert caught.value.errno == fault
        found = assert_sound(cut.path).at(2)
        assert found is not None
        seen.add(found.level)
        recover(cut, UnsyncedBackend())
        if found.level is Level.FULL:
            assert_whole(cut.path, 2)
        else:
            assert_weights_only(cut.path, 2)
        assert_whole(cut.path, 4)
        assert not [name for name in os.listdir(cut.path / "step_2") if "milepost.json." in name]
    assert seen == {Level.FULL, Level.WEIGHTS}


def test_files_of_others_in_the_training_state_stay(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "step_2" / "training_state" / "notes.md").write_text("mine")
    (run.path / "step_2" / "training_state" / "tensors-00009-of-00009.safetensors").symlink_to(tmp_path)
    _demote_2(run, UnsyncedBackend())
    assert os.listdir(run.path / "step_2" / "training_state") == ["notes.md"]
    recover(run, UnsyncedBackend())
    assert (run.path / "step_2" / "training_state" / "notes.md").read_text() == "mine"
    assert tmp_path.is_dir() and verify_checkpoint(run.path / "step_2") == []


def test_a_link_in_the_training_states_place_is_not_followed(run: RunFolder, tmp_path: Path) -> None:
    state = run.path / "step_2" / "training_state"
    shutil.move(state, tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    _demote_2(run, UnsyncedBackend())
    assert "state.json" in os.listdir(tmp_path / "elsewhere")


def test_only_checkpoints_of_the_run_are_demoted(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = save(tmp_path / "other", 2)
    with pytest.raises(ValueError, match="not a checkpoint of"):
        demote(run, UnsyncedBackend(), other)
    assert_whole(tmp_path / "other", 2)


def test_what_went_meanwhile_or_is_damaged_is_an_error(run: RunFolder) -> None:
    found = read_catalog(run.path).at(2)
    assert found is not None
    (found.path / "milepost.json").write_text("{")
    with pytest.raises(CorruptCheckpointError):
        demote(run, UnsyncedBackend(), found)
    shutil.rmtree(found.path)
    with pytest.raises(FileNotFoundError):
        demote(run, UnsyncedBackend(), found)


def test_every_level_says_how_its_weights_are_read(run: RunFolder) -> None:
    assert set(LEVELS) == set(Level)
    assert sorted(Level, key=lambda level: level.rank) == [Level.WEIGHTS, Level.FULL]


def test_weights_load_into_a_model_from_either_level(run: RunFolder) -> None:
    from torch import nn

    from milepost import load_weights

    _demote_2(run, UnsyncedBackend())
    for step in (2, 4):
        with pytest.raises(IncompatibleStateError, match=r"a\.weight"):
            load_weights(run.path / f"step_{step}", nn.Linear(2, 2))
