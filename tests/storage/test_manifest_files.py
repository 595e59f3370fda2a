"""The manifest as a file: where it may lie, and how it is rewritten."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import CorruptCheckpointError
from milepost.storage.commit import rewrite_manifest
from milepost.storage.manifest import read_manifest
from tests.faults import FaultyBackend, UnsyncedBackend, count_operations, in_child
from tests.storage.samples import assert_whole, save, tree


def test_a_manifest_in_an_unusual_place_is_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(FileNotFoundError):
            read_manifest(path)


def _link(path: Path) -> None:
    path.symlink_to("other.json")


@pytest.mark.parametrize("make", [Path.mkdir, _link, os.mkfifo], ids=["a folder", "a symbolic link", "a named pipe"])
def test_case_26_a_manifest_that_is_not_a_plain_file_is_damage(tmp_path: Path, make: Any) -> None:
    save(tmp_path, 4)
    shutil.copy(tmp_path / "step_4" / "milepost.json", tmp_path / "other.json")
    make(tmp_path / "milepost.json")
    with pytest.raises(CorruptCheckpointError, match=r"milepost\.json"):
        read_manifest(tmp_path)


def test_a_huge_manifest_is_not_read_into_memory(tmp_path: Path) -> None:
    (tmp_path / "milepost.json").touch()
    os.truncate(tmp_path / "milepost.json", 1 << 40)
    with pytest.raises(CorruptCheckpointError, match="too long"):
        read_manifest(tmp_path)


def _pin(folder: Path, backend: Any) -> None:
    rewrite_manifest(backend, folder / "step_2", lambda manifest: replace(manifest, pinned=True))


@pytest.mark.parametrize("fault", ["kill", 5])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_rewrite_cut_short_leaves_the_old_manifest_or_the_new(tmp_path: Path, at: int, fault: int | str) -> None:
    save(tmp_path, 2)
    before = tree(tmp_path)
    backend = FaultyBackend(at=at, fault=fault, torn=True)
    if fault == "kill":
        assert in_child(lambda: _pin(tmp_path, backend)) == -9
    else:
        with pytest.raises(OSError):
            _pin(tmp_path, backend)
        assert set(tree(tmp_path)) == set(before)
    assert_whole(tmp_path, 2)
    _pin(tmp_path, UnsyncedBackend())
    assert read_manifest(tmp_path / "step_2").pinned


def test_a_rewrite_is_the_five_operations_that_the_test_above_cuts_short(tmp_path: Path) -> None:
    save(tmp_path, 2)
    names = count_operations(lambda backend: _pin(tmp_path, backend))
    assert names == ["create", "write", "sync", "rename", "sync_folder"]
