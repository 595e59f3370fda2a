"""What has the name of a new checkpoint: ours is replaced, all else displaced, any crash put right."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest

from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.sweep import prune, recover
from tests.faults import FaultyBackend, UnsyncedBackend, count_operations, in_child
from tests.storage.samples import (
    OTHER_RUN,
    assert_whole,
    debris,
    save,
    steps,
    tree,
)


def _other_runs(folder: Path) -> None:
    save(folder, 4, run_id=OTHER_RUN, serial=1)


def _without_manifest(folder: Path) -> None:
    save(folder, 4)
    (folder / "step_4" / "milepost.json").unlink()


def _truncated_manifest(folder: Path) -> None:
    save(folder, 4)
    os.truncate(folder / "step_4" / "milepost.json", 100)


def _newer_format(folder: Path) -> None:
    _other_runs(folder)
    path = folder / "step_4" / "milepost.json"
    text = path.read_text().replace('"format_version": "1.0"', '"format_version": "2.0"').replace("xxh3-128", "sha-256")
    path.write_text(text)


def _symlink(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    save(folder / "elsewhere", 4)
    (folder / "step_4").symlink_to("elsewhere/step_4")


def _copy_of_another_step(folder: Path) -> None:
    save(folder, 3)
    shutil.copytree(folder / "step_3", folder / "step_4")


OBSTACLES = {
    "of another run": _other_runs,
    "without a manifest": _without_manifest,
    "with a truncated manifest": _truncated_manifest,
    "of a newer format": _newer_format,
    "a symbolic link": _symlink,
    "a dangling link": lambda folder: (folder / "step_4").symlink_to("absent"),
    "a file": lambda folder: (folder / "step_4").write_text("mine"),
    "an empty folder": lambda folder: (folder / "step_4").mkdir(),
    "a copy of another step": _copy_of_another_step,
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_case_12_what_this_run_did_not_write_is_displaced_and_kept(tmp_path: Path, obstacle: str) -> None:
    OBSTACLES[obstacle](tmp_path)
    before = _content(tmp_path / "step_4")
    save(tmp_path, 4, serial=9)
    recover(RunFolder(tmp_path), UnsyncedBackend())
    assert_whole(tmp_path, 4)
    (displaced,) = [path for path in tmp_path.iterdir() if path.name.startswith("step_4.displaced-")]
    assert _content(displaced) == before


@pytest.mark.parametrize("damaged", [False, True])
def test_case_12_this_runs_own_checkpoint_is_replaced_and_its_bytes_given_back(tmp_path: Path, damaged: bool) -> None:
    save(tmp_path, 4)
    if damaged:
        os.truncate(tmp_path / "step_4" / "model.safetensors", 0)
    save(tmp_path, 4, serial=9)
    assert_whole(tmp_path, 4)
    recover(RunFolder(tmp_path), UnsyncedBackend())
    assert_whole(tmp_path, 4)
    assert debris(tmp_path) == []


REPLACEMENTS = {name: obstacle for name, obstacle in OBSTACLES.items() if name != "of a newer format"}
REPLACEMENTS["of this run"] = lambda folder: save(folder, 4)


@pytest.mark.parametrize("fault", ["kill", errno.EIO])
@pytest.mark.parametrize("obstacle", ["of another run", "of this run", "a file", "a symbolic link"])
def test_a_replacement_cut_short_is_completed_or_reverted(tmp_path: Path, obstacle: str, fault: int | str) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    REPLACEMENTS[obstacle](prepared)
    before = _content(prepared / "step_4")
    operations = count_operations(lambda backend: save(_copy(prepared, tmp_path / "counted"), 4, backend, serial=9))
    for at in range(1, len(operations) + 1):
        folder = _copy(prepared, tmp_path / str(at))
        _cut_short(folder, FaultyBackend(at=at, fault=fault, for_good=True))
        recover(RunFolder(folder), UnsyncedBackend())
        assert [
            name for name in debris(folder) if ".displaced-" not in name and name not in ("step_4", "elsewhere")
        ] == []
        new = read_catalog(folder).at(4)
        if new is not None and new.serial == 9:
            assert_whole(folder, 4)
        else:
            assert _content(folder / "step_4") == before
        save(folder, 4, serial=10)
        assert_whole(folder, 4)


def _copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, symlinks=True))


def _cut_short(folder: Path, backend: FaultyBackend) -> None:
    if backend.fault == "kill":
        assert in_child(lambda: save(folder, 4, backend, serial=9)) == -9
        return
    # Putting away what was replaced may fail without harm to the checkpoint.
    with contextlib.suppress(OSError):
        save(folder, 4, backend, serial=9)


def _content(path: Path) -> object:
    return os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else dict(tree(path))


def test_a_replaced_checkpoint_never_comes_back_after_its_replacement_was_pruned(tmp_path: Path) -> None:
    run, backend = RunFolder(tmp_path), UnsyncedBackend()
    save(tmp_path, 4)
    (tmp_path / "step_4" / "notes.txt").write_text("a foreign file, which keeps the folder in the trash")
    save(tmp_path, 4, serial=9)
    recover(run, backend)
    prune(run, backend, read_catalog(tmp_path).checkpoints)
    recover(run, backend)
    assert steps(tmp_path) == []
    assert not (tmp_path / "step_4").exists()


def test_nor_without_a_restart_in_between(tmp_path: Path) -> None:
    run, backend = RunFolder(tmp_path), UnsyncedBackend()
    save(tmp_path, 4)
    save(tmp_path, 4, serial=9)
    prune(run, backend, read_catalog(tmp_path).checkpoints)
    recover(run, backend)
    assert steps(tmp_path) == [] and debris(tmp_path) == []


@pytest.mark.parametrize("obstacle", ["of another run", "of this run"])
def test_a_replacement_that_fails_puts_the_old_one_back_at_once(tmp_path: Path, obstacle: str) -> None:
    for at in range(1, 40):
        folder = tmp_path / str(at)
        folder.mkdir()
        REPLACEMENTS[obstacle](folder)
        with contextlib.suppress(OSError):
            save(folder, 4, FaultyBackend(at=at), serial=9)
        assert_whole(folder, 4)


def test_recovery_survives_a_dangling_link_under_the_final_name(tmp_path: Path) -> None:
    save(tmp_path, 4)
    (tmp_path / ".trash").mkdir()
    (tmp_path / "step_4").rename(tmp_path / ".trash" / "step_4.replaced-0123abcd")
    (tmp_path / "step_4").symlink_to("absent")
    recover(RunFolder(tmp_path), UnsyncedBackend())
    assert os.readlink(tmp_path / "step_4") == "absent"
