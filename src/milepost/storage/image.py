"""A checkpoint's tensor files before they are written: where in them, and in memory, every byte will be.

The image of all files is one range of bytes in which each file begins at a page. It is written in chunks of the size
that digests have, so that a chunk can be digested and written as soon as its bytes are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from milepost.memory import PAGE
from milepost.records import Storable, TensorBytes, TensorSource
from milepost.storage.digests import CHUNK
from milepost.storage.layout import STATE_TENSORS, WEIGHTS, shard_names
from milepost.storage.tensor_files import header_of, order_of, split_into_shards


@dataclass(frozen=True, slots=True)
class Piece:
    """``length`` bytes of one source, from its byte ``start`` on, which lie at ``target`` in the image."""

    source: int
    start: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of one file: ``length`` bytes that lie at ``start`` in the image, a multiple of 4096."""

    file: int
    start: int
    length: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class FileImage:
    """One file: its name in the checkpoint, its size, and the numbers of its chunks in the image."""

    name: str
    size: int
    chunks: range


@dataclass(frozen=True)
class Image:
    """The layout of a state's tensor files. ``weight_map`` says in which file each of the weights is.

    ``headers`` are the files' headers, ``tensors`` the names of the tensors in each, in the order of their data.
    """

    files: tuple[FileImage, ...]
    chunks: tuple[Chunk, ...]
    size: int
    headers: tuple[bytes, ...]
    tensors: tuple[tuple[str, ...], ...]
    weights: int
    weight_map: Mapping[str, str]

    def sources(self, state: Storable) -> list[TensorSource]:
        """What the pieces' ``source`` counts: for each file its header, then its tensors."""
        found: list[TensorSource] = []
        for number, (header, names) in enumerate(zip(self.headers, self.tensors, strict=True)):
            found.append(TensorBytes("U8", (len(header),), memoryview(header)))
            group = state.weights if number < self.weights else state.tensors
            found += [group[name] for name in names]
        return found

    @cached_property
    def pieces_of_sources(self) -> dict[int, list[tuple[int, Piece]]]:
        """The pieces of each source in order, each with the number of the chunk it is in."""
        found: dict[int, list[tuple[int, Piece]]] = {}
        for number, chunk in enumerate(self.chunks):
            for piece in chunk.pieces:
                found.setdefault(piece.source, []).append((number, piece))
        return found


class Content(Protocol):
    """The bytes of an image, asked for chunk by chunk in their order, and again from the first one on."""

    def chunk(self, number: int) -> memoryview:
        """A chunk's bytes, page-aligned, good until the next one is asked for; waits until they are there."""

    def digest(self, number: int) -> str:
        """The digest of a chunk that was asked for before."""

    def confirm(self) -> None:
        """Raise if the bytes that were given are not those of one moment."""


LayoutKey = tuple[object, ...]


def layout_key(state: Storable, most: int) -> LayoutKey:
    """Equal for two states whose images have the same layout."""
    weights = tuple((name, value.dtype, value.shape, value.logical) for name, value in state.weights.items())
    tensors = tuple((name, value.dtype, value.shape, value.logical) for name, value in state.tensors.items())
    return weights, tensors, most


def plan_image(state: Storable, most: int) -> Image:
    """Lay a state's tensors out in files of at most ``most`` bytes of tensors each (a larger tensor stands alone).

    Raises UnsupportedStateError for a name that the format cannot spell.
    """
    weights, tensors = split_into_shards(state.weights, most), split_into_shards(state.tensors, most)
    names = [*shard_names(WEIGHTS, len(weights)), *shard_names(STATE_TENSORS, len(tensors))]
    files: list[FileImage] = []
    chunks: list[Chunk] = []
    headers, orders = [], []
    at = source = 0
    for number, (name, group) in enumerate(zip(names, (*weights, *tensors), strict=True)):
        order = order_of(group)
        header = header_of(group, order)
        lengths = [len(header), *(group[tensor].nbytes for tensor in order)]
        parts = _chunks(number, at, source, lengths)
        files.append(FileImage(name, sum(lengths), range(len(chunks), len(chunks) + len(parts))))
        chunks += parts
        headers.append(header)
        orders.append(tuple(order))
        source += len(lengths)
        at = -(-(at + files[-1].size) // PAGE) * PAGE
    weight_map = {tensor: name for name, group in zip(names, weights, strict=False) for tensor in group}
    return Image(tuple(files), tuple(chunks), at, tuple(headers), tuple(orders), len(weights), weight_map)


def _chunks(file: int, start: int, source: int, lengths: Sequence[int]) -> list[Chunk]:
    made: list[Chunk] = []
    pieces: list[Piece] = []
    filled = 0
    for piece in _pieces(start, source, lengths):
        pieces.append(piece)
        filled += piece.length
        if filled == CHUNK:
            made.append(Chunk(file, start + len(made) * CHUNK, filled, tuple(pieces)))
            pieces, filled = [], 0
    if pieces:
        made.append(Chunk(file, start + len(made) * CHUNK, filled, tuple(pieces)))
    return made


def _pieces(at: int, source: int, lengths: Sequence[int]) -> Iterable[Piece]:
    room = CHUNK
    for number, whole in enumerate(lengths, source):
        done = 0
        while done < whole:
            length = min(room, whole - done)
            yield Piece(number, done, at, length)
            done += length
            at += length
            room = room - length or CHUNK
