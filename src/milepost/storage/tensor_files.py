"""Safetensors files, written so that the tensor data starts at a multiple of 4096 bytes.

The format is that of https://github.com/huggingface/safetensors: eight bytes with the header's length (little-endian),
the header (JSON, padded with spaces), the data. Padding the header lets a later writer use direct I/O on the data.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.errors import CorruptCheckpointError, UnsupportedStateError
from milepost.records import TensorSource

ALIGNMENT = 4096
LOGICAL_KEY = "milepost_logical_dtypes"
_METADATA = "__metadata__"
_LONGEST_HEADER = 100_000_000
_LARGEST = 2**63 - 1
_MOST_DIMENSIONS = 1024
_ITEM_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


def order_of(tensors: Mapping[str, TensorSource]) -> list[str]:
    """The order of tensors in a file: widest items first, so that each tensor is aligned to its own items.

    Raises UnsupportedStateError for a name that the format cannot spell.
    """
    for name in filter(_unspeakable, tensors):
        raise UnsupportedStateError(f"a tensor cannot be stored under the name {name!r}; rename it", path=name)
    return sorted(tensors, key=lambda name: -_ITEM_SIZES[tensors[name].dtype])


def header_of(tensors: Mapping[str, TensorSource], order: Sequence[str]) -> bytes:
    """The beginning of a file that holds the tensors in this order: a multiple of 4096 bytes."""
    metadata = {"format": "pt"}
    logical = {name: tensors[name].logical for name in order if tensors[name].logical is not None}
    if logical:
        metadata[LOGICAL_KEY] = json.dumps(logical)
    entries: dict[str, Any] = {_METADATA: metadata}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    padded = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT
    return struct.pack("<Q", padded - 8) + text.ljust(padded - 8)


def split_into_shards(tensors: Mapping[str, TensorSource], most: int) -> list[dict[str, TensorSource]]:
    """Split tensors, in their order, into groups of at most ``most`` bytes each (a larger tensor stands alone).

    There is always at least one group, so that a model without parameters has a file too.
    """
    shards: list[dict[str, TensorSource]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.nbytes > most:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    return shards


def _unspeakable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return name == _METADATA


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor lies in a file: ``start`` and ``end`` are offsets from the file's beginning, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    logical: str | None


def read_header(path: Path) -> list[TensorPlace]:
    """The places of a file's tensors. Raises CorruptCheckpointError for a header that is not sound."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return parse_header(path, file.read(header_length(path, file.read(8), size)), size)


def header_length(path: Path, prefix: bytes, size: int) -> int:
    """The length of a header's text from the file's first eight bytes. Raises CorruptCheckpointError."""
    length = int(struct.unpack("<Q", prefix)[0]) if len(prefix) == 8 else size
    if length > min(size - 8, _LONGEST_HEADER):
        raise _unsound(path, "the header is longer than the file")
    return length


def parse_header(path: Path, text: bytes | memoryview, size: int) -> list[TensorPlace]:
    """Check a header's text against the file's size, and give the places of its tensors."""
    try:
        entries = json.loads(bytes(text).decode(), object_pairs_hook=_no_doubles)
        metadata = entries.pop(_METADATA, {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("its metadata are not all text")
        logical = json.loads(metadata.get(LOGICAL_KEY, "{}"))
        places = [_place(name, entry, 8 + len(text), logical.get(name)) for name, entry in entries.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unsound(path, f"the header cannot be read ({error})") from error
    at = 8 + len(text)
    for place in sorted(places, key=lambda place: (place.start, place.end)):
        if place.start != at:
            raise _unsound(path, f"tensor {place.name!r} starts at {place.start}, not at {at}")
        at = place.end
    if at != size:
        raise _unsound(path, f"the header describes {at} bytes, the file has {size}")
    return places


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _place(name: str, entry: Any, base: int, logical: Any) -> TensorPlace:
    dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if dtype not in _ITEM_SIZES:
        raise ValueError(f"tensor {name!r} has the unknown dtype {dtype!r}")
    numbers = (*shape, start, end)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"tensor {name!r} has a shape or offset that is not a whole number")
    # Bounded before they are multiplied: numbers of a million digits would take for ever.
    if len(shape) > _MOST_DIMENSIONS or max(numbers) > _LARGEST:
        raise ValueError(f"tensor {name!r} has more dimensions, or larger ones, than any file can hold")
    if end - start != math.prod(shape) * _ITEM_SIZES[dtype]:
        raise ValueError(f"tensor {name!r}: {end - start} bytes do not make {dtype} of shape {list(shape)}")
    if logical is not None and not isinstance(logical, str):
        raise ValueError(f"tensor {name!r} has a logical dtype that is not a name")
    return TensorPlace(name, dtype, shape, base + start, base + end, logical)


def _unsound(path: Path, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{path}: {reason}", path=path, problems=[f"{path.name}: {reason}"])
