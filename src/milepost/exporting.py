"""A checkpoint's weights for others: a Hugging Face folder, one torch file, or torch's distributed format.

Every byte is verified on its way. What is made appears under its name when it is whole, and not before.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from milepost.errors import CheckpointExistsError
from milepost.records import TensorBytes
from milepost.snapshot.tensors import to_tensor
from milepost.storage.layout import WEIGHTS_INDEX, is_reserved, is_weights_file, new_id
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.pieces import StoredTensors, VerifiedFile, item_size
from milepost.storage.tensor_files import LOGICAL_KEY, TensorPlace

Form = Literal["hf", "torch", "dcp"]
FORMS: tuple[Form, ...] = ("hf", "torch", "dcp")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ONE_FILE = (".pt", ".pth", ".bin")
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
# Only these are cast: integers and eight-bit numbers mean what they mean in their own dtype.
_CASTABLE = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_Told = Callable[[int], None]


@dataclass(slots=True)
class Exported:
    """What was made, at ``path``: its files and their sizes, the number of tensors, and how many were cast.

    ``overflowed`` are the tensors in which finite numbers became infinite.
    """

    path: Path
    files: dict[str, int] = field(default_factory=dict)
    tensors: int = 0
    cast: int = 0
    overflowed: list[str] = field(default_factory=list)


def export(
    source: Path, target: Path, *, to: Form = "hf", dtype: str | None = None, on_bytes: _Told | None = None
) -> Exported:
    """Write the weights of the checkpoint folder ``source`` to ``target``, which must be absent or an empty folder.

    Raises CheckpointExistsError if it is not, CorruptCheckpointError, and OSError; nothing is left of a failure.
    """
    single = to == "torch" and target.suffix in ONE_FILE
    if target.is_symlink() or (target.exists() and (single or not target.is_dir() or any(target.iterdir()))):
        raise CheckpointExistsError(
            f"{target} exists already{'' if target.is_file() else ' and is not empty'}. Nothing is overwritten; name "
            "another place.",
            path=target,
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.partial-{new_id()}")
    draft.mkdir()
    done = Exported(target)
    try:
        _WRITERS[to](source, draft, None if dtype is None else DTYPES[dtype], done, on_bytes)
        done.files = {_name(path, draft): path.stat().st_size for path in sorted(draft.rglob("*")) if path.is_file()}
        if single:
            os.replace(draft / "model.pt", target)
            draft.rmdir()
        else:
            draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return done


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _write_hf(source: Path, folder: Path, dtype: torch.dtype | None, done: Exported, told: _Told | None) -> None:
    manifest = read_manifest(source)
    for name, record in manifest.files.items():
        # The run's configuration says how it was trained, and where: nothing that serving needs.
        if is_reserved(name) or name == manifest.config:
            continue
        content = bytes(_read_all(source, name, manifest))
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with _created(path) as file:
            file.write(_config_of(content, dtype) if name == "config.json" and dtype is not None else content)
        if told is not None:
            told(record.size)
    weight_map: dict[str, str] = {}
    total = 0
    with StoredTensors(source, manifest, is_weights_file, told) as stored:
        for name, places in stored.files.items():
            total += _write_shard(stored, places, folder / name, dtype, done)
            weight_map.update({place.name: name for place in places})
    if len(stored.files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        with _created(folder / WEIGHTS_INDEX) as file:
            file.write(json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n")


def _read_all(source: Path, name: str, manifest: Manifest) -> memoryview:
    with contextlib.closing(VerifiedFile(source, name, manifest.files[name])) as file:
        return file.all()


def _config_of(content: bytes, dtype: torch.dtype) -> bytes:
    """The model's configuration, saying which dtype its weights have now."""
    try:
        values = json.loads(content)
    except ValueError:
        return content
    known = [key for key in ("dtype", "torch_dtype") if isinstance(values, dict) and key in values]
    if not known:
        return content
    values |= dict.fromkeys(known, str(dtype).removeprefix("torch."))
    return json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n"


@contextlib.contextmanager
def _created(path: Path) -> Iterator[Any]:
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write_shard(
    stored: StoredTensors, places: list[TensorPlace], path: Path, dtype: torch.dtype | None, done: Exported
) -> int:
    """Write one safetensors file, piece by piece; gives the bytes of its tensors."""
    becomes = {place.name: _becomes(place, dtype) for place in places}
    # Widest items first, as safetensors' own writer has it, so that each tensor is aligned to its items.
    order = sorted(places, key=lambda place: -becomes[place.name][1])
    with _created(path) as file:
        file.write(_header(order, becomes))
        for place in order:
            cast = becomes[place.name][0] != place.dtype
            done.tensors += 1
            done.cast += cast
            for piece in stored.pieces(place.name):
                file.write(_cast(place, piece, dtype, done) if cast and dtype is not None else piece)
    return sum(_nbytes(place, becomes) for place in places)


def _becomes(place: TensorPlace, dtype: torch.dtype | None) -> tuple[str, int]:
    """The dtype that a tensor will have in the file, and the bytes of one item of its shape there."""
    if dtype is not None and place.logical is None and place.dtype in _CASTABLE:
        return _NAMES[dtype], dtype.itemsize
    items = math.prod(place.shape)
    return place.dtype, (place.end - place.start) // items if items else item_size(place)


def _nbytes(place: TensorPlace, becomes: Mapping[str, tuple[str, int]]) -> int:
    return math.prod(place.shape) * becomes[place.name][1]


def _header(order: list[TensorPlace], becomes: Mapping[str, tuple[str, int]]) -> bytes:
    metadata = {"format": "pt"}
    logical = {place.name: place.logical for place in order if place.logical is not None}
    if logical:
        metadata[LOGICAL_KEY] = json.dumps(logical)
    entries: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for place in order:
        end = at + _nbytes(place, becomes)
        entries[place.name] = {
            "dtype": becomes[place.name][0],
            "shape": list(place.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _cast(place: TensorPlace, piece: memoryview, dtype: torch.dtype, done: Exported) -> memoryview:
    # A copy: the bytes of a file may begin anywhere, and numbers in memory must not.
    numbers = torch.frombuffer(bytearray(piece), dtype=_CASTABLE[place.dtype])
    made = numbers.to(dtype)
    _note_overflow(place.name, numbers, made, done)
    octets: Any = made.view(torch.uint8).numpy()
    return memoryview(octets)


def _note_overflow(name: str, before: torch.Tensor, after: torch.Tensor, done: Exported) -> None:
    if name not in done.overflowed and bool((torch.isinf(after) & ~torch.isinf(before)).any()):
        done.overflowed.append(name)


def _tensors(source: Path, dtype: torch.dtype | None, done: Exported, told: _Told | None) -> dict[str, torch.Tensor]:
    """All weights in memory by all their names; those that share one share memory."""
    manifest = read_manifest(source)
    found: dict[str, torch.Tensor] = {}
    with StoredTensors(source, manifest, is_weights_file, told) as stored:
        for name, place in stored.items():
            data = memoryview(bytearray(b"".join(stored.pieces(name))))
            tensor = to_tensor(TensorBytes(place.dtype, place.shape, data, place.logical))
            found[name] = tensor
            done.tensors += 1
            if dtype is not None and place.logical is None and place.dtype in _CASTABLE and tensor.dtype != dtype:
                found[name] = tensor.to(dtype)
                done.cast += 1
                _note_overflow(name, tensor, found[name], done)
    return {**found, **{name: found[kept] for name, kept in manifest.ties.items() if kept in found}}


def _write_torch(source: Path, folder: Path, dtype: torch.dtype | None, done: Exported, told: _Told | None) -> None:
    # Only tensors and names are in it, so that it loads with weights_only=True.
    with _created(folder / "model.pt") as file:
        torch.save(_tensors(source, dtype, done, told), file)


def _write_dcp(source: Path, folder: Path, dtype: torch.dtype | None, done: Exported, told: _Told | None) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        # That this is one process is what no_dist says.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        save(dict(_tensors(source, dtype, done, told)), checkpoint_id=folder, no_dist=True)


_WRITERS: Mapping[Form, Callable[[Path, Path, torch.dtype | None, Exported, _Told | None], None]] = {
    "hf": _write_hf,
    "torch": _write_torch,
    "dcp": _write_dcp,
}
