"""Whatever happened to a checkpoint's files, verification says which and why, and a reader refuses it."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import CheckpointNotFoundError, CorruptCheckpointError
from milepost.storage.catalog import find_checkpoint, read_catalog
from milepost.storage.commit import rewrite_manifest
from milepost.storage.digests import FileRecord, chunk_digests
from milepost.storage.levels import stored_weights
from milepost.storage.manifest import read_manifest
from milepost.storage.reader import read_snapshot, read_text
from milepost.storage.verify import verify_checkpoint
from tests.faults import UnsyncedBackend
from tests.storage.samples import save, tree

FILES = [
    "config.json",
    "run/deep/notes.txt",
    "model.safetensors",
    "training_state/state.json",
    "training_state/tensors.safetensors",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path, 4).path


def _refused(path: Path, name: str, *, by_size: bool) -> str:
    """The one problem that everything which reads the checkpoint finds."""
    (problem,) = verify_checkpoint(path)
    assert problem.startswith(name)
    manifest = read_manifest(path)
    with pytest.raises(CorruptCheckpointError) as caught:
        read_snapshot(path, manifest)
    assert caught.value.problems == (problem,) and caught.value.path == path
    if name == "model.safetensors":
        with pytest.raises(CorruptCheckpointError):
            stored_weights(path, manifest).fill(())
    assert bool(verify_checkpoint(path, level="sizes")) is by_size
    return problem


def test_a_whole_checkpoint_has_no_problems_and_reports_every_byte(path: Path) -> None:
    seen: list[int] = []
    assert verify_checkpoint(path, on_bytes=seen.append) == []
    assert sum(seen) == sum((path / name).stat().st_size for name in FILES)
    assert set(read_manifest(path).files) == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_case_11_a_flipped_bit_anywhere_is_noticed(path: Path, name: str) -> None:
    original = (path / name).read_bytes()
    places = {*range(0, len(original), 211), len(original) - 1}
    for number, at in enumerate(sorted(places)):
        data = bytearray(original)
        data[at] ^= 1 << number % 8
        (path / name).write_bytes(data)
        assert "differs from its digest" in _refused(path, name, by_size=False)


@pytest.mark.parametrize("name", FILES)
def test_case_11_another_size_is_noticed(path: Path, name: str) -> None:
    size = (path / name).stat().st_size
    for other in {0, size // 2, size - 1, size + 1, 1 << 33} - {size}:
        os.truncate(path / name, other)
        assert f"has {other} bytes, the manifest says {size}" in _refused(path, name, by_size=True)


def _missing(file: Path) -> None:
    file.unlink()


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _link_to_a_copy(file: Path) -> None:
    copy = file.parents[len(file.parts) - file.parts.index("step_4") - 1] / "copy"
    file.rename(copy)
    file.symlink_to(copy)


def _dangling_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("absent")


REPLACEMENTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (_missing, "is missing"),
    "a folder": (_folder, "is not a plain file"),
    "a named pipe": (_pipe, "is not a plain file"),
    "a link to a copy": (_link_to_a_copy, "is a symbolic link"),
    "a dangling link": (_dangling_link, "is a symbolic link"),
}


@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize("name", FILES)
def test_case_26_what_is_not_a_plain_file_is_refused(path: Path, name: str, replacement: str) -> None:
    replace_it, reason = REPLACEMENTS[replacement]
    replace_it(path / name)
    assert reason in _refused(path, name, by_size=True)


@pytest.mark.parametrize("folder", ["training_state", "run", "run/deep"])
def test_case_26_a_linked_folder_is_not_followed(path: Path, tmp_path: Path, folder: str) -> None:
    shutil.move(path / folder, tmp_path / "elsewhere")
    (path / folder).symlink_to(tmp_path / "elsewhere")
    problems = verify_checkpoint(path)
    assert problems and all("symbolic links are not followed" in problem for problem in problems)
    with pytest.raises(CorruptCheckpointError):
        read_snapshot(path, read_manifest(path))


def test_every_problem_is_named(path: Path) -> None:
    for name in FILES:
        (path / name).unlink()
    assert verify_checkpoint(path) == [f"{name} is missing" for name in read_manifest(path).files]
    with pytest.raises(CorruptCheckpointError) as caught:
        read_snapshot(path, read_manifest(path))
    assert len(caught.value.problems) == len(FILES)


def test_a_damaged_manifest_and_a_damage_mark_are_problems(path: Path) -> None:
    rewrite_manifest(UnsyncedBackend(), path, lambda manifest: replace(manifest, damage="it was dropped"))
    # A look at all bytes knows better than an earlier one.
    assert verify_checkpoint(path) == []
    assert verify_checkpoint(path, level="sizes") == ["a resume passed it over: it was dropped"]
    os.truncate(path / "milepost.json", 10)
    assert "milepost.json cannot be read" in verify_checkpoint(path)[0]
    (path / "milepost.json").unlink()
    with pytest.raises(FileNotFoundError):
        verify_checkpoint(path)


def test_foreign_files_are_no_problem(path: Path) -> None:
    (path / "notes.md").write_text("mine")
    (path / "training_state" / "link").symlink_to("/")
    assert verify_checkpoint(path) == []


def test_files_that_are_changed_after_they_are_listed_do_not_matter_to_sizes_only_reads(path: Path) -> None:
    manifest = read_manifest(path)
    assert read_snapshot(path, manifest, verify="sizes") == read_snapshot(path, manifest)
    assert read_text(path, "config.json", manifest) == "{}\n"
    with pytest.raises(KeyError):
        read_text(path, "absent", manifest)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: None], ids=["a folder", "a file", "nothing"])
def test_a_path_that_is_no_checkpoint_is_not_found(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x")
    with pytest.raises(CheckpointNotFoundError, match="step_N"):
        find_checkpoint(tmp_path / "x")


def test_a_checkpoint_is_found_under_any_name(path: Path, tmp_path: Path) -> None:
    path.rename(tmp_path / "copied elsewhere")
    checkpoint, manifest = find_checkpoint(tmp_path / "copied elsewhere")
    assert (checkpoint.step, checkpoint.path, manifest.step) == (4, tmp_path / "copied elsewhere", 4)


class Payload:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


def _forged(path: Path, name: str) -> None:
    # As an attacker would: the manifest vouches for the pickle.
    data = (path / name).read_bytes()
    record = FileRecord(len(data), chunk_digests(data))
    rewrite_manifest(
        UnsyncedBackend(), path, lambda manifest: replace(manifest, files={**manifest.files, name: record})
    )


@pytest.mark.parametrize("forged", [False, True], ids=["as it is", "with a forged manifest"])
@pytest.mark.parametrize("name", [*FILES, "milepost.json"])
def test_case_26_a_pickle_in_a_files_place_runs_nothing(path: Path, tmp_path: Path, name: str, forged: bool) -> None:
    marker = tmp_path / "marker"
    (path / name).write_bytes(pickle.dumps(Payload(marker)))
    if forged and name != "milepost.json":
        _forged(path, name)
    catalog = read_catalog(tmp_path)
    assert len(catalog.checkpoints) + len(catalog.damaged) == 1
    if catalog.damaged:
        assert name == "milepost.json" and "cannot be read" in catalog.damaged[0].reason
    elif forged and name in ("config.json", "run/deep/notes.txt"):
        # Files that Milepost never interprets.
        read_snapshot(path, read_manifest(path))
    else:
        with pytest.raises(CorruptCheckpointError):
            read_snapshot(path, read_manifest(path))
    assert not marker.exists()
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists(), "the payload works where pickles are loaded"


@pytest.mark.parametrize("content", [b"[]", b"3", b"", b"\xff", b"[" * 100_000, b"{'a': 1}"])
def test_a_state_tree_that_is_none_is_refused_even_if_vouched_for(path: Path, content: bytes) -> None:
    (path / "training_state" / "state.json").write_bytes(content)
    _forged(path, "training_state/state.json")
    with pytest.raises(CorruptCheckpointError, match=r"state\.json"):
        read_snapshot(path, read_manifest(path))


def test_a_manifest_without_a_state_tree_is_refused(path: Path) -> None:
    def without(manifest: Any) -> Any:
        return replace(manifest, files={name: record for name, record in manifest.files.items() if "state" not in name})

    rewrite_manifest(UnsyncedBackend(), path, without)
    with pytest.raises(CorruptCheckpointError, match="not among its files"):
        read_snapshot(path, read_manifest(path))


def test_reading_changes_nothing(path: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    read_snapshot(path, read_manifest(path))
    verify_checkpoint(path)
    read_catalog(tmp_path)
    assert tree(tmp_path) == before
