"""A checkpoint's tensors, one after the other and piece by piece: of any size, in little memory, and verified."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from milepost.errors import CorruptCheckpointError
from milepost.storage.digests import FileRecord, digest
from milepost.storage.manifest import Manifest
from milepost.storage.reading import open_plain, unreadable
from milepost.storage.tensor_files import TensorPlace, parse_header

_MOST_ITEMS = 1 << 20


class StoredTensors(Mapping[str, TensorPlace]):
    """The tensors of those files of a checkpoint that ``wanted`` picks, in the order of their bytes on disk.

    Use it as a context: files are open within it. ``on_bytes`` is told of bytes as they are read and verified.
    Raises CorruptCheckpointError here for a file or header that is not sound, and while pieces are read for bytes
    that differ from their digest.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        wanted: Callable[[str], bool],
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self._places: dict[str, tuple[VerifiedFile, TensorPlace]] = {}
        self.files: dict[str, list[TensorPlace]] = {}
        with ExitStack() as opened:
            for name in filter(wanted, manifest.files):
                file = VerifiedFile(folder, name, manifest.files[name], on_bytes)
                opened.callback(file.close)
                self.files[name] = sorted(file.header(), key=lambda place: place.start)
                self._places.update({place.name: (file, place) for place in self.files[name]})
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._opened.close()

    def __getitem__(self, name: str) -> TensorPlace:
        return self._places[name][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def pieces(self, name: str, most_items: int | None = None) -> Iterator[memoryview]:
        """A tensor's bytes, whole items at a time (an item being one element of its logical shape)."""
        file, place = self._places[name]
        length = item_size(place) * (most_items or _MOST_ITEMS)
        for start in range(place.start, place.end, max(length, 1)):
            yield file.read(start, min(start + length, place.end))


def logical_shape(place: TensorPlace) -> tuple[int, ...]:
    """The shape as its user knows it: what is stored as another dtype has one more dimension."""
    return place.shape if place.logical is None else place.shape[:-1]


def item_size(place: TensorPlace) -> int:
    """Bytes of one element of the logical shape; 0 in an empty tensor."""
    items = math.prod(logical_shape(place))
    return (place.end - place.start) // items if items else 0


class VerifiedFile:
    """Reads any part of a file; a chunk's digest is checked whenever the chunk is read. The last one is remembered.

    Raises CorruptCheckpointError, here and in reading.
    """

    def __init__(
        self, folder: Path, name: str, record: FileRecord, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        self._folder, self._name, self._record = folder, name, record
        self._on_bytes = on_bytes
        self._last: tuple[int, memoryview] | None = None
        self._told: set[int] = set()
        try:
            self._descriptor = open_plain(folder, name)
        except OSError as error:
            raise unreadable(folder, name, error) from error
        found = os.fstat(self._descriptor).st_size
        if found != record.size:
            self.close()
            raise self._fault(f"has {found} bytes, the manifest says {record.size}")

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)

    def all(self) -> memoryview:
        """The whole file; for small ones."""
        return self.read(0, self._record.size) if self._record.size else memoryview(b"")

    def header(self) -> list[TensorPlace]:
        """The places of the file's tensors."""
        size = self._record.size
        length = struct.unpack("<Q", self.read(0, 8))[0] if size >= 8 else size
        if length > size - 8:
            raise self._fault("has a header that is longer than the file")
        return parse_header(self._folder / self._name, self.read(8, 8 + length), size)

    def read(self, start: int, end: int) -> memoryview:
        """The bytes from ``start`` to ``end``, verified; good as long as somebody holds them."""
        first, last = start // self._record.chunk, max(start, end - 1) // self._record.chunk
        offset = first * self._record.chunk
        if first == last:
            return self._chunk(first)[start - offset : end - offset]
        joined = bytearray(end - start)
        for index in range(first, last + 1):
            base = index * self._record.chunk
            part = self._chunk(index)[max(start - base, 0) : end - base]
            at = max(base, start) - start
            joined[at : at + part.nbytes] = part
        return memoryview(joined)

    def _chunk(self, index: int) -> memoryview:
        if self._last is not None and self._last[0] == index:
            return self._last[1]
        start = index * self._record.chunk
        length = min(self._record.chunk, self._record.size - start)
        data = memoryview(bytearray(length))
        self._fill(data, start)
        if digest(data) != self._record.digests[index]:
            raise self._fault(f"differs from its digest between bytes {start} and {start + length}")
        if self._on_bytes is not None and index not in self._told:
            self._told.add(index)
            self._on_bytes(length)
        self._last = (index, data)
        return data

    def _fill(self, data: memoryview, start: int) -> None:
        done = 0
        while done < data.nbytes:
            try:
                count = os.preadv(self._descriptor, [data[done:]], start + done)
            except OSError as error:
                raise unreadable(self._folder, self._name, error) from error
            if not count:
                raise self._fault("ends before its size")
            done += count

    def _fault(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self._folder / self._name} {what}", path=self._folder, problems=[f"{self._name} {what}"]
        )
