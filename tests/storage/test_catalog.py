"""The catalog: what is a checkpoint, in commit order, and why the rest is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.storage.catalog import Catalog, newest_serial, read_catalog
from milepost.storage.commit import rewrite_manifest
from milepost.storage.layout import RunFolder
from milepost.storage.manifest import Manifest, encode, read_manifest
from milepost.storage.sweep import prune, recover, supersede, sweep_trash
from tests.faults import UnsyncedBackend
from tests.storage.samples import save, steps, tree


def test_the_newest_is_the_last_committed_not_the_largest_number(tmp_path: Path) -> None:
    for serial, step in enumerate([2, 10, 9, 400, 30], start=1):
        save(tmp_path, step, serial=serial)
    catalog = read_catalog(tmp_path)
    assert steps(tmp_path) == [2, 10, 9, 400, 30]
    assert catalog.newest is not None and catalog.newest.step == 30
    assert newest_serial(catalog) == 5
    assert catalog.at(9) is not None and catalog.at(3) is None


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir], ids=["absent", "empty"])
def test_a_folder_without_checkpoints_has_an_empty_catalog(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "run")
    assert read_catalog(tmp_path / "run") == Catalog()
    assert read_catalog(tmp_path / "run").newest is None and newest_serial(Catalog()) == 0


def test_a_file_in_a_run_folders_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(NotADirectoryError):
        read_catalog(tmp_path / "run")


def _truncated(path: Path) -> None:
    os.truncate(path / "milepost.json", 50)


def _empty_manifest(path: Path) -> None:
    os.truncate(path / "milepost.json", 0)


def _of_another_step(path: Path) -> None:
    (path / "milepost.json").write_bytes((path.parent / "step_2" / "milepost.json").read_bytes())


def _marked(path: Path) -> None:
    rewrite_manifest(UnsyncedBackend(), path, lambda manifest: replace(manifest, damage="state.json is missing"))


def _newer(path: Path) -> None:
    (path / "milepost.json").write_bytes(encode(replace(read_manifest(path), format_version="2.0")))


def _linked_manifest(path: Path) -> None:
    (path / "milepost.json").rename(path.parent / "manifest.json")
    (path / "milepost.json").symlink_to(path.parent / "manifest.json")


def _manifest_folder(path: Path) -> None:
    (path / "milepost.json").unlink()
    (path / "milepost.json").mkdir()


def _manifest_pipe(path: Path) -> None:
    (path / "milepost.json").unlink()
    os.mkfifo(path / "milepost.json")


DAMAGES = {
    "truncated": (_truncated, "cannot be read"),
    "empty": (_empty_manifest, "cannot be read"),
    "of another step": (_of_another_step, "its manifest belongs to step 2"),
    "marked by a resume": (_marked, "state.json is missing"),
    "newer format": (_newer, "written in the newer format 2.0"),
    "a linked manifest": (_linked_manifest, "is a symbolic link"),
    "a folder as manifest": (_manifest_folder, "is not a plain file"),
    "a named pipe as manifest": (_manifest_pipe, "is not a plain file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_case_11_a_damaged_checkpoint_is_listed_with_its_reason(tmp_path: Path, damage: str) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step)
    make, reason = DAMAGES[damage]
    make(tmp_path / "step_4")
    catalog = read_catalog(tmp_path)
    assert steps(tmp_path) == [2, 6]
    (entry,) = catalog.damaged
    assert (entry.step, entry.path) == (4, tmp_path / "step_4") and reason in entry.reason
    assert entry.newer_format == ("2.0" if damage == "newer format" else None)
    assert catalog.ignored == ()


def test_case_26_a_link_and_a_folder_without_manifest_are_ignored_with_their_reason(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 4)
    (tmp_path / "step_4" / "milepost.json").unlink()
    (tmp_path / "step_9").symlink_to("step_2")
    (tmp_path / "step_8").symlink_to("absent")
    (tmp_path / "step_7").touch()
    catalog = read_catalog(tmp_path)
    assert steps(tmp_path) == [2] and catalog.damaged == ()
    assert [(entry.step, entry.reason) for entry in catalog.ignored] == [
        (4, "it has no milepost.json"),
        (8, "it is a symbolic link, and those are not followed"),
        (9, "it is a symbolic link, and those are not followed"),
    ]


def test_case_26_nothing_that_a_link_leads_to_is_moved_or_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    folder = tmp_path / "run"
    for place in (outside, folder):
        place.mkdir()
    save(outside, 9)
    (outside / "keep.txt").write_text("keep")
    save(folder, 2)
    save(folder, 4)
    (folder / "step_9").symlink_to(outside / "step_9")
    (folder / "step_5.staging-0123abcd").symlink_to(outside)
    (folder / "step_2" / "link").symlink_to(outside)
    (folder / "step_2" / "config.json").unlink()
    (folder / "step_2" / "config.json").symlink_to(outside / "keep.txt")
    shutil.rmtree(folder / "step_2" / "training_state")
    (folder / "step_2" / "training_state").symlink_to(outside / "step_9" / "training_state")
    (folder / "step_6.staging-0123abcd").mkdir()
    (folder / "step_6.staging-0123abcd" / "link").symlink_to(outside)
    before = tree(outside)
    run, backend = RunFolder(folder), UnsyncedBackend()
    recover(run, backend)
    prune(run, backend, read_catalog(folder).checkpoints[:1])
    sweep_trash(run, backend)
    recover(run, backend)
    save(folder, 9, serial=11)
    assert tree(outside) == before
    assert steps(folder) == [4, 9]
    assert not (folder / "step_6.staging-0123abcd").exists()


@pytest.mark.parametrize("name", [".trash", ".superseded"])
def test_case_26_a_linked_control_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", 2)
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    run, backend = RunFolder(tmp_path / "run"), UnsyncedBackend()
    act = prune if name == ".trash" else supersede
    with pytest.raises(NotADirectoryError):
        act(run, backend, read_catalog(run.path).checkpoints)
    recover(run, backend)
    assert steps(run.path) == [2] and os.listdir(tmp_path / "outside") == []


def test_a_folder_that_is_pruned_while_it_is_read_is_no_longer_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step_2").mkdir()
    (tmp_path / "step_4").mkdir()

    def pruned_meanwhile(path: Path) -> Manifest:
        if path.name == "step_4":
            path.rmdir()
        raise FileNotFoundError(path)

    monkeypatch.setattr("milepost.storage.catalog.read_manifest", pruned_meanwhile)
    assert [entry.path.name for entry in read_catalog(tmp_path).ignored] == ["step_2"]
