"""The commit: whole or not at all, whatever fails, and what stood in its place is treated by rule."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from pathlib import Path

import pytest
from safetensors import deserialize, safe_open

from milepost.errors import DiskFullError, UnsupportedStateError
from milepost.records import Snapshot
from milepost.storage.backend import LocalBackend
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.levels import stored_weights
from milepost.storage.manifest import read_manifest
from milepost.storage.reader import read_snapshot
from milepost.storage.run import open_run
from milepost.storage.sweep import prune, recover
from milepost.storage.verify import verify_checkpoint
from tests.faults import FaultyBackend, QuotaBackend, UnsyncedBackend, count_operations, in_child
from tests.storage.samples import (
    RUN,
    assert_sound,
    assert_whole,
    debris,
    save,
    snapshot,
    steps,
    tensor,
    tree,
)


def _operations() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        return count_operations(lambda backend: save(Path(folder), 4, backend))


OPERATIONS = _operations()


def test_the_tree_on_disk_is_the_documented_one(tmp_path: Path) -> None:
    save(tmp_path, 4)
    assert sorted(name for name, content in tree(tmp_path).items() if content is not None) == [
        "step_4/config.json",
        "step_4/milepost.json",
        "step_4/model.safetensors",
        "step_4/run/deep/notes.txt",
        "step_4/training_state/state.json",
        "step_4/training_state/tensors.safetensors",
    ]
    manifest = read_manifest(tmp_path / "step_4")
    assert sorted([*manifest.files, "milepost.json"]) == sorted(
        str(path.relative_to(tmp_path / "step_4")) for path in (tmp_path / "step_4").rglob("*") if path.is_file()
    )


def test_the_record_equals_what_the_catalog_reads(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 4, metrics={"loss": 0.5}, epoch=1, reasons=("every 2 steps",), config="config.json")
    assert read_catalog(tmp_path).checkpoints == (checkpoint,)
    assert checkpoint.size == sum(path.stat().st_size for path in checkpoint.path.rglob("*") if path.is_file())


def test_the_manifest_is_written_last_and_the_rename_follows_it() -> None:
    assert OPERATIONS[-6:] == ["create", "write", "sync", "sync_folder", "rename", "sync_folder"]
    assert OPERATIONS.count("rename") == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("at", range(1, len(OPERATIONS) + 1))
def test_case_10_a_failure_at_any_operation_costs_no_older_checkpoint(tmp_path: Path, at: int, number: int) -> None:
    save(tmp_path, 2)
    backend = FaultyBackend(at=at, fault=number, torn=True)
    if number == errno.ENOSPC:
        # A full disk is tried twice.
        save(tmp_path, 4, backend)
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            save(tmp_path, 4, backend)
    assert_sound(tmp_path)
    assert_whole(tmp_path, 2)
    assert debris(tmp_path) in ([], [".trash"])
    recover(RunFolder(tmp_path), UnsyncedBackend())
    assert debris(tmp_path) == []
    save(tmp_path, 4)
    assert_whole(tmp_path, 4)
    assert debris(tmp_path) in ([], [".trash"])


@pytest.mark.parametrize("at", range(1, len(OPERATIONS) + 1))
def test_case_10_a_disk_that_fails_for_good_costs_no_older_checkpoint(tmp_path: Path, at: int) -> None:
    save(tmp_path, 2)
    with pytest.raises(OSError):
        save(tmp_path, 4, FaultyBackend(at=at, for_good=True))
    _goes_on(tmp_path)


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("at", range(1, len(OPERATIONS) + 1))
def test_case_10_a_kill_at_any_operation_costs_no_older_checkpoint(tmp_path: Path, at: int, torn: bool) -> None:
    save(tmp_path, 2)
    killed = in_child(lambda: save(tmp_path, 4, FaultyBackend(at=at, fault="kill", torn=torn)))
    assert killed == -9
    _goes_on(tmp_path)


def _goes_on(folder: Path) -> None:
    assert_sound(folder)
    assert_whole(folder, 2)
    _, lock = open_run(folder, UnsyncedBackend())
    assert debris(folder) == []
    for step in (4, 6):
        save(folder, step)
    lock.release()
    assert_sound(folder)
    assert steps(folder) == [2, 4, 6]
    assert_whole(folder, 4)


def test_a_full_disk_is_tried_once_more_with_an_empty_trash(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    save(tmp_path, 2)
    save(tmp_path, 3)
    backend = QuotaBackend(tmp_path, 0)
    backend.quota = -backend.free_bytes(tmp_path) + 500
    prune(run, backend, [checkpoint for checkpoint in read_catalog(tmp_path).checkpoints if checkpoint.step == 2])
    save(tmp_path, 4, backend)
    assert steps(tmp_path) == [3, 4]
    assert_whole(tmp_path, 4)
    assert debris(tmp_path) == []


@pytest.mark.parametrize("room", [0, 1, 100, 4096, 8000, 9000])
def test_a_full_disk_is_an_error_with_numbers_and_leaves_nothing(tmp_path: Path, room: int) -> None:
    save(tmp_path, 2)
    before = tree(tmp_path)
    backend = QuotaBackend(tmp_path, 0)
    backend.quota = -backend.free_bytes(tmp_path) + room
    with pytest.raises(DiskFullError) as caught:
        save(tmp_path, 4, backend)
    error = caught.value
    assert (error.step, error.path, error.free, error.needed) == (4, tmp_path, room, 24 + 4 + 24)
    assert "disk is full" in str(error) and f"{room:,} are free" in str(error)
    assert isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSPC
    assert tree(tmp_path) == before
    backend.quota += 1 << 20
    save(tmp_path, 4, backend)
    assert_whole(tmp_path, 4)


@pytest.mark.parametrize("at", range(1, len(OPERATIONS) + 1))
def test_the_checkpoint_that_is_replaced_is_never_swept_to_make_room_for_a_failed_save(tmp_path: Path, at: int) -> None:
    save(tmp_path, 4)
    with contextlib.suppress(OSError, DiskFullError):
        save(tmp_path, 4, FaultyBackend(at=at, fault=errno.ENOSPC, for_good=True), serial=9)
    recover(RunFolder(tmp_path), UnsyncedBackend())
    assert_whole(tmp_path, 4)


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "milepost.json", "training_state/x", ""])
def test_case_26_an_asset_cannot_be_written_outside_or_over_our_own_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="rename it"):
        save(tmp_path / "run", 2, assets={name: b"x"})
    assert os.listdir(tmp_path) == []


def test_many_shards_load_through_the_index(tmp_path: Path) -> None:
    weights = {f"layer.{index}": tensor("F32", (4,), bytes([index]) * 16) for index in range(7)}
    weights["huge"] = tensor("U8", (100,), b"h" * 100)
    whole = Snapshot(weights, {}, {}, {f"m.{index}": tensor("U8", (30,), b"m" * 30) for index in range(3)})
    path = save(tmp_path, 4, state=whole, max_shard_size=40).path
    index = json.loads((path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 7 * 16 + 100
    assert list(index["weight_map"]) == list(weights)
    for name, file in index["weight_map"].items():
        with safe_open(path / file, "np") as opened:
            assert name in opened.keys()  # noqa: SIM118
        found = {key: bytes(value["data"]) for key, value in deserialize((path / file).read_bytes())}
        assert found[name] == bytes(weights[name].data)
    shards = sorted(path.glob("model-*"))
    assert len(shards) == len(set(index["weight_map"].values())) == 5
    assert {name: bytes(value.data) for name, value in stored_weights(path, read_manifest(path)).weights.items()} == {
        name: bytes(value.data) for name, value in weights.items()
    }
    assert len(list((path / "training_state").glob("tensors-*"))) == 3
    assert verify_checkpoint(path) == []


def test_a_model_and_state_without_tensors_are_a_checkpoint_too(tmp_path: Path) -> None:
    path = save(tmp_path, 4, state=Snapshot({}, {}, {}, {}), assets={}).path
    assert verify_checkpoint(path) == []
    assert read_snapshot(path, read_manifest(path)) == Snapshot({}, {}, {}, {})
    assert deserialize((path / "model.safetensors").read_bytes()) == []


@pytest.mark.parametrize("name", ["__metadata__", "half of a pair \ud800"])
def test_a_tensor_name_that_safetensors_cannot_spell_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedStateError, match="rename it"):
        save(tmp_path, 4, state=Snapshot({name: tensor("U8", (1,), b"a")}, {}, {}, {}))
    assert os.listdir(tmp_path) == []


def test_strings_of_any_kind_come_back(tmp_path: Path) -> None:
    texts = ["ü", "数据", "\ud800", "\0", "\u2028", '"manifest_digest": "' + "0" * 32 + '"']
    state = {text: [text] for text in texts}
    given = Snapshot({}, dict(zip(texts, texts, strict=True)), state, {})
    path = save(tmp_path, 4, state=given, reasons=tuple(texts), metrics=dict.fromkeys(texts, 1.0)).path
    read = read_snapshot(path, read_manifest(path))
    assert (read.state, read.ties) == (state, given.ties)
    assert read_catalog(tmp_path).checkpoints[0].reasons == tuple(texts)


def test_a_local_disk_is_written_to_through_the_real_backend(tmp_path: Path) -> None:
    for step in (2, 4, 4):
        save(tmp_path, step, LocalBackend(), serial=step, run_id=RUN, state=snapshot(step))
    assert steps(tmp_path) == [2, 4]
    assert_whole(tmp_path, 4)
