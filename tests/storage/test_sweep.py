"""Pruning and sweeping: each checkpoint is whole or gone, and what others wrote stays."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from milepost.storage.backend import Backend
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.sweep import prune, recover, release_superseded, supersede, superseded_serial, sweep_trash
from tests.faults import FaultyBackend, UnsyncedBackend, count_operations, in_child
from tests.storage.samples import assert_sound, assert_whole, debris, save, steps


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = tmp_path / "run"
    folder.mkdir()
    for step in (2, 4, 6):
        save(folder, step)
    return RunFolder(folder)


def _prune_two(run: RunFolder, backend: Backend) -> None:
    prune(run, backend, read_catalog(run.path).checkpoints[:2])
    sweep_trash(run, backend)


def test_pruned_checkpoints_are_moved_aside_first_and_then_gone(run: RunFolder) -> None:
    backend = UnsyncedBackend()
    prune(run, backend, read_catalog(run.path).checkpoints[:2])
    assert steps(run.path) == [6]
    assert [name.rsplit("-")[0] for name in sorted(os.listdir(run.trash))] == ["step_2.pruned", "step_4.pruned"]
    sweep_trash(run, backend)
    assert os.listdir(run.trash) == [] and debris(run.path) == []


def test_nothing_to_prune_is_nothing_done(run: RunFolder) -> None:
    assert count_operations(lambda backend: prune(run, backend, [])) == []
    assert count_operations(lambda backend: sweep_trash(run, backend)) == []
    assert count_operations(lambda backend: recover(run, backend)) == []


@pytest.mark.parametrize("fault", ["kill", errno.EIO])
def test_a_sweep_cut_short_at_any_operation_is_finished_later(run: RunFolder, tmp_path: Path, fault: int | str) -> None:
    counted = RunFolder(Path(shutil.copytree(run.path, tmp_path / "counted")))
    operations = count_operations(lambda backend: _prune_two(counted, backend))
    assert len(operations) > 20
    for at in range(1, len(operations) + 1):
        cut = RunFolder(Path(shutil.copytree(run.path, tmp_path / str(at))))
        backend = FaultyBackend(at=at, fault=fault, for_good=True)
        if fault == "kill":
            assert in_child(lambda cut=cut, backend=backend: _prune_two(cut, backend)) == -9
        else:
            _with_a_failing_disk(cut, backend)
        assert_sound(cut.path)
        assert_whole(cut.path, 6)
        left = steps(cut.path)
        recover(cut, UnsyncedBackend())
        assert steps(cut.path) == left and debris(cut.path) == []
        assert_sound(cut.path)


def _with_a_failing_disk(run: RunFolder, backend: Backend) -> None:
    try:
        _prune_two(run, backend)
    except OSError as error:
        assert error.errno == errno.EIO


def test_foreign_files_in_a_pruned_checkpoint_survive(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    foreign = {
        "notes.md": "mine",
        "milepost.json.bak": "mine too",
        "training_state/plot.txt": "and mine",
        "sub/x": "deep",
    }
    for name, text in foreign.items():
        (run.path / "step_2" / name).parent.mkdir(exist_ok=True)
        (run.path / "step_2" / name).write_text(text)
    with caplog.at_level(logging.WARNING, "milepost"):
        _prune_two(run, UnsyncedBackend())
    assert "files that Milepost did not write" in caplog.text and "notes.md" in caplog.text
    (left,) = run.trash.iterdir()
    assert {
        str(path.relative_to(left)): path.read_text()
        for path in left.rglob("*")
        if path.is_file() and path.name != "milepost.json"
    } == foreign
    caplog.clear()
    for _ in range(2):
        recover(run, UnsyncedBackend())
    assert caplog.text == "" and steps(run.path) == [6]
    assert {name: (left / name).read_text() for name in foreign} == foreign
    for name in ("notes.md", "milepost.json.bak", "training_state/plot.txt", "sub/x"):
        (left / name).unlink()
    (left / "sub").rmdir()
    sweep_trash(run, UnsyncedBackend())
    assert os.listdir(run.trash) == []


def test_an_unfinished_manifest_goes_with_its_checkpoint(run: RunFolder) -> None:
    (run.path / "step_2" / "milepost.json.0123abcd").write_text("half of a manif")
    _prune_two(run, UnsyncedBackend())
    assert os.listdir(run.trash) == []


def test_what_others_put_in_the_trash_stays(run: RunFolder) -> None:
    run.trash.mkdir()
    (run.trash / "mine").mkdir()
    (run.trash / "mine" / "file").write_text("x")
    (run.trash / "step_2.pruned-0123abcd").write_text("a file")
    (run.trash / "step_4.pruned-0123abcd").symlink_to(run.path)
    recover(run, UnsyncedBackend())
    _prune_two(run, UnsyncedBackend())
    assert sorted(os.listdir(run.trash)) == ["mine", "step_2.pruned-0123abcd", "step_4.pruned-0123abcd"]
    assert_whole(run.path, 6)


def test_one_checkpoint_that_cannot_be_removed_does_not_stop_the_others(run: RunFolder, caplog) -> None:
    class Stubborn(UnsyncedBackend):
        def remove_file(self, path: Path) -> None:
            if "step_2" in str(path):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            super().remove_file(path)

    with caplog.at_level(logging.WARNING, "milepost"):
        _prune_two(run, Stubborn())
    assert [name.rsplit("-")[0] for name in os.listdir(run.trash)] == ["step_2.pruned"]
    assert "tried again later" in caplog.text
    sweep_trash(run, UnsyncedBackend())
    assert os.listdir(run.trash) == []


def test_recovery_clears_what_a_killed_save_left(run: RunFolder) -> None:
    staging = run.path / "step_8.staging-0123abcd"
    shutil.copytree(run.path / "step_6", staging)
    (run.path / "step_6" / "milepost.json.0123abcd").write_text("half of a manif")
    recover(run, UnsyncedBackend())
    assert debris(run.path) == [] and sorted(os.listdir(run.path / "step_6")) == sorted(os.listdir(run.path / "step_4"))
    assert_sound(run.path)


@pytest.mark.parametrize("name", ["step_8.staging-0123abcd", "step_8.replaced-0123abcd"])
def test_recovery_leaves_files_and_links_with_such_names_alone(run: RunFolder, tmp_path: Path, name: str) -> None:
    (run.path / "step_8").touch()
    (run.path / name.replace("0123", "4567")).symlink_to(tmp_path)
    (run.path / name).write_text("x")
    recover(run, UnsyncedBackend())
    kept = [path for path in run.path.iterdir() if path.name.startswith("step_8.")]
    assert sorted(path.is_symlink() for path in kept) == [False, True]
    assert os.listdir(tmp_path) == ["run"]


def test_superseded_checkpoints_outlive_restarts_until_a_later_commit(run: RunFolder) -> None:
    backend = UnsyncedBackend()
    supersede(run, backend, read_catalog(run.path).checkpoints[1:])
    assert steps(run.path) == [2]
    for _ in range(2):
        recover(run, backend)
        release_superseded(run, backend, 2)
        assert superseded_serial(run) == 6
    save(run.path, 3, serial=superseded_serial(run) + 1)
    assert len(os.listdir(run.superseded)) == 2
    release_superseded(run, backend, 7)
    sweep_trash(run, backend)
    assert os.listdir(run.superseded) == os.listdir(run.trash) == []
    assert superseded_serial(run) == 0 and steps(run.path) == [2, 3]


def test_a_rewind_moves_the_newest_first_so_that_no_crash_makes_an_old_one_newest(
    run: RunFolder, tmp_path: Path
) -> None:
    operations = count_operations(
        lambda backend: supersede(
            RunFolder(Path(shutil.copytree(run.path, tmp_path / "counted"))),
            backend,
            read_catalog(tmp_path / "counted").checkpoints[1:],
        )
    )
    for at in range(1, len(operations) + 1):
        cut = RunFolder(Path(shutil.copytree(run.path, tmp_path / str(at))))
        later = read_catalog(cut.path).checkpoints[1:]
        backend = FaultyBackend(at=at, fault="kill")
        assert in_child(lambda cut=cut, backend=backend, later=later: supersede(cut, backend, later)) == -9
        recover(cut, UnsyncedBackend())
        assert steps(cut.path) in ([2, 4, 6], [2, 4], [2])
        supersede(cut, UnsyncedBackend(), read_catalog(cut.path).checkpoints[1:])
        assert steps(cut.path) == [2] and superseded_serial(cut) == 6


def test_only_checkpoints_of_the_run_are_pruned(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = save(tmp_path / "other", 2)
    with pytest.raises(ValueError, match="not a checkpoint of"):
        prune(run, UnsyncedBackend(), [other])
    assert_whole(tmp_path / "other", 2)
