"""Small checkpoints to be, and what is on disk afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from milepost.records import Checkpoint, Snapshot, TensorBytes
from milepost.storage.backend import Backend
from milepost.storage.catalog import Catalog, read_catalog
from milepost.storage.commit import Draft, commit
from milepost.storage.layout import RunFolder
from milepost.storage.manifest import read_manifest
from milepost.storage.reader import read_snapshot
from milepost.storage.tensor_files import header_length, parse_header
from milepost.storage.verify import verify_checkpoint
from tests.faults import UnsyncedBackend

RUN = "0123456789abcdef"
OTHER_RUN = "fedcba9876543210"
# Bytes of one item of each dtype that safetensors files of ours may have.
ITEM_SIZES = {
    **dict.fromkeys(["BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"], 1),
    **dict.fromkeys(["U16", "I16", "F16", "BF16"], 2),
    **dict.fromkeys(["U32", "I32", "F32"], 4),
    **dict.fromkeys(["U64", "I64", "F64", "C64"], 8),
}


def tensor(dtype: str, shape: tuple[int, ...], data: bytes, logical: str | None = None) -> TensorBytes:
    """A tensor from its bytes."""
    return TensorBytes(dtype, shape, memoryview(data), logical)


def snapshot(step: int) -> Snapshot:
    """A snapshot whose every tensor says which step it is of."""
    number = step.to_bytes(4, "little")
    return Snapshot(
        weights={"a.weight": tensor("F32", (2, 3), number * 6), "b.weight": tensor("BF16", (2,), number)},
        ties={"c.weight": "a.weight"},
        state={"counters": {"step": step}, "optimizer": {"m": {"$tensor": "optimizer.m"}}},
        tensors={"optimizer.m": tensor("F32", (6,), number * 6)},
    )


def draft(step: int, *, serial: int | None = None, run_id: str = RUN, **fields: Any) -> Draft:
    """A draft of a step; its serial is the step unless said otherwise."""
    given: dict[str, Any] = {"assets": {"config.json": b"{}\n", "run/deep/notes.txt": b"n"}, "state": snapshot(step)}
    return Draft(step=step, serial=step if serial is None else serial, run_id=run_id, **{**given, **fields})


def save(
    folder: Path, step: int, backend: Backend | None = None, *, max_shard_size: int = 1 << 30, **fields: Any
) -> Checkpoint:
    """Commit a sample checkpoint."""
    backend = UnsyncedBackend() if backend is None else backend
    return commit(RunFolder(folder), backend, draft(step, **fields), max_shard_size=max_shard_size)


def steps(folder: Path) -> list[int]:
    """The steps in the catalog, in commit order."""
    return [checkpoint.step for checkpoint in read_catalog(folder).checkpoints]


def assert_whole(folder: Path, step: int) -> None:
    """The checkpoint of ``step`` is in the catalog, verifies, and holds that step's values."""
    found = read_catalog(folder).at(step)
    assert found is not None, f"step {step} is not in the catalog: {sorted(os.listdir(folder))}"
    assert verify_checkpoint(found.path) == []
    read = read_snapshot(found.path, read_manifest(found.path))
    assert read.state["counters"]["step"] == step
    assert bytes(read.weights["a.weight"].data) == step.to_bytes(4, "little") * 6


def assert_sound(folder: Path) -> Catalog:
    """Nothing under a final name is incomplete or unreadable; gives the catalog."""
    catalog = read_catalog(folder)
    assert not catalog.damaged and not catalog.ignored
    for checkpoint in catalog.checkpoints:
        assert verify_checkpoint(checkpoint.path) == []
    return catalog


def debris(folder: Path) -> list[str]:
    """What lies in a run's folder that is neither a checkpoint nor an empty control folder."""
    known = {checkpoint.name for checkpoint in read_catalog(folder).checkpoints} | {".milepost"}
    left = [name for name in sorted(os.listdir(folder)) if name not in known]
    return [name for name in left if name != ".trash" or os.listdir(folder / name)]


def tree(folder: Path) -> Mapping[str, bytes | str | None]:
    """Everything below a folder: contents of files, targets of links, None for folders."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name] = os.readlink(path) if path.is_symlink() else None if path.is_dir() else path.read_bytes()
    return found


def tensors_in(path: Path, data: memoryview) -> Iterator[tuple[str, TensorBytes]]:
    """Every tensor of a safetensors file that is in memory, as views of it."""
    length = header_length(path, bytes(data[:8]), data.nbytes)
    for place in parse_header(path, data[8 : 8 + length], data.nbytes):
        yield place.name, TensorBytes(place.dtype, place.shape, data[place.start : place.end], place.logical)
