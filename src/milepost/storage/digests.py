"""Digests of files: xxh3-128 of each 16 MiB chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

ALGORITHM = "xxh3-128"
CHUNK = 16 * 1024 * 1024


def digest(data: bytes | bytearray | memoryview) -> str:
    """32 hexadecimal digits (XXH3, 128 bits, seed 0, canonical byte order)."""
    return xxhash.xxh3_128_hexdigest(data)


def chunk_digests(data: bytes | bytearray | memoryview, chunk: int = CHUNK) -> tuple[str, ...]:
    """The digest of each chunk; a file without bytes has none."""
    view = memoryview(data)
    return tuple(digest(view[start : start + chunk]) for start in range(0, view.nbytes, chunk))


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a manifest says of one file: ``size`` in bytes and one digest for each ``chunk`` bytes.

    ``unknown`` keeps what a newer minor version says of it.
    """

    size: int
    digests: tuple[str, ...]
    chunk: int = CHUNK
    unknown: Mapping[str, Any] = field(default_factory=dict)
