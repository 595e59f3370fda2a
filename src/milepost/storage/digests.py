"""Digests of files: xxh3-128 of each 16 MiB chunk, taken while the bytes pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from milepost.storage.backend import WritableFile

ALGORITHM = "xxh3-128"
CHUNK = 16 * 1024 * 1024
_BUFFER = 1024 * 1024


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


class DigestingFile:
    """Writes to a file and keeps its size and chunk digests; small pieces are joined before they are written."""

    def __init__(self, file: WritableFile) -> None:
        self._file = file
        self._pending = bytearray()
        self._hash = xxhash.xxh3_128()
        self._in_chunk = 0
        self._size = 0
        self._digests: list[str] = []

    def write(self, data: memoryview | bytes) -> None:
        """Append all of ``data``."""
        view = memoryview(data)
        if view.nbytes < _BUFFER:
            self._pending += view
            if len(self._pending) >= _BUFFER:
                self._flush()
            return
        self._flush()
        self._send(view)

    def finish(self) -> FileRecord:
        """Write what is pending, force everything to the disk, and give the file's record."""
        self._flush()
        self._file.sync()
        if self._in_chunk:
            self._digests.append(self._hash.hexdigest())
        return FileRecord(self._size, tuple(self._digests))

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, bytearray()
            self._send(memoryview(pending))

    def _send(self, view: memoryview) -> None:
        while view.nbytes:
            piece = view[: CHUNK - self._in_chunk]
            self._file.write(piece)
            self._hash.update(piece)
            self._in_chunk += piece.nbytes
            self._size += piece.nbytes
            if self._in_chunk == CHUNK:
                self._digests.append(self._hash.hexdigest())
                self._hash.reset()
                self._in_chunk = 0
            view = view[piece.nbytes :]
