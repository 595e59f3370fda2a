"""A checkpoint's training state, read back: described first, its bytes read to where they are wanted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.errors import CorruptCheckpointError
from milepost.records import Snapshot, TensorBytes
from milepost.storage.layout import STATE_TREE, is_state_tensors_file, is_weights_file
from milepost.storage.manifest import Manifest
from milepost.storage.reading import Reading, Span, fault
from milepost.storage.tensor_files import header_length, parse_header
from milepost.storage.verify import VerifyLevel


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a checkpoint's file: the fields of ``TensorBytes``; the bytes are read when they are asked for."""

    dtype: str
    shape: tuple[int, ...]
    logical: str | None
    nbytes: int
    file: str
    start: int
    stored: StoredState

    @property
    def data(self) -> memoryview:
        """All of its bytes, read and checked now. Raises CorruptCheckpointError."""
        return self.part(0, self.nbytes)

    def part(self, start: int, end: int) -> memoryview:
        """Some of its bytes, read and checked now; of the file, nothing but the chunks they are in is read."""
        target = memoryview(bytearray(end - start))
        self.copy_into(target, start)
        return target

    def copy_into(self, target: memoryview, start: int) -> None:
        """Read the bytes from ``start`` on into all of ``target``, checked. Raises CorruptCheckpointError."""
        self.stored.reading({self.file}, rest=False).read({self.file: [Span(self.start + start, target)]})


class StoredState:
    """What a checkpoint holds of the training state, in the fields of ``Snapshot``.

    Headers, the tree of the state and all small files are checked when it is made. Raises CorruptCheckpointError
    naming every damaged file.
    """

    def __init__(self, path: Path, manifest: Manifest, *, verify: VerifyLevel = "digests", state: bool = True) -> None:
        self._path = path
        self._manifest = manifest
        self._digests = verify == "digests"
        self._tensor_files = {
            name for name in manifest.files if is_weights_file(name) or (state and is_state_tensors_file(name))
        }
        self.ties = manifest.ties
        self.weights: dict[str, StoredTensor] = {}
        self.tensors: dict[str, StoredTensor] = {}
        self.state: Mapping[str, Any] = {}
        faults = list(self._open(state))
        if faults:
            problems = [problem for error in faults for problem in error.problems]
            unread = all(error.unread for error in faults)
            raise CorruptCheckpointError(f"{path}: " + "; ".join(problems), path=path, problems=problems, unread=unread)

    def fill(self, pairs: Iterable[tuple[Any, memoryview]]) -> None:
        """Read tensors to where they are wanted, and check all files. Raises CorruptCheckpointError."""
        self.reading(self._tensor_files, rest=True).read(_spans(pairs))

    def fill_again(self, pairs: Iterable[tuple[Any, memoryview]]) -> None:
        """Read tensors of files that were checked before. Raises CorruptCheckpointError if that is impossible."""
        spans = _spans(pairs)
        reading = self.reading(set(spans), rest=False)
        reading.digests = False
        reading.read(spans)

    def reading(self, names: Iterable[str], *, rest: bool) -> Reading:
        """The reading of some files; ``rest`` says whether chunks from which nothing is wanted are checked too."""
        wanted = set(names)
        records = {name: record for name, record in self._manifest.files.items() if name in wanted}
        return Reading(self._path, records, digests=self._digests, rest=rest)

    def _open(self, state: bool) -> Iterator[CorruptCheckpointError]:
        for name in self._manifest.files:
            try:
                if name in self._tensor_files:
                    self._describe(name)
                elif name == STATE_TREE:
                    self.state = self._tree() if state else {}
                elif state and not is_state_tensors_file(name):
                    self.reading([name], rest=True).read({})
            except CorruptCheckpointError as error:
                yield error
        if state and STATE_TREE not in self._manifest.files:
            yield fault(self._path, f"{STATE_TREE} is not among its files")

    def _describe(self, name: str) -> None:
        size = self._manifest.files[name].size
        prefix = self._read(name, min(size, 8))
        length = header_length(self._path / name, bytes(prefix), size)
        header = self._read(name, 8 + length)[8:]
        found = {
            place.name: StoredTensor(
                place.dtype, place.shape, place.logical, place.end - place.start, name, place.start, self
            )
            for place in parse_header(self._path / name, header, size)
        }
        (self.weights if is_weights_file(name) else self.tensors).update(found)

    def _read(self, name: str, length: int) -> memoryview:
        target = memoryview(bytearray(length))
        self.reading([name], rest=False).read({name: [Span(0, target)]})
        return target

    def _tree(self) -> Mapping[str, Any]:
        # The size is checked before memory of that size is asked for.
        self.reading([STATE_TREE], rest=False).read({})
        data = self._read(STATE_TREE, self._manifest.files[STATE_TREE].size)
        try:
            tree = json.loads(bytes(data))
            if not isinstance(tree, dict):
                raise ValueError("it is not an object")
        except (ValueError, RecursionError) as error:
            raise fault(self._path, f"{STATE_TREE} cannot be read ({error})") from error
        return tree


def read_snapshot(path: Path, manifest: Manifest, *, verify: VerifyLevel = "digests") -> Snapshot:
    """Everything that a checkpoint holds of the training state, in memory; the files beside it are checked too.

    Raises CorruptCheckpointError naming every damaged file.
    """
    stored = StoredState(path, manifest, verify=verify)
    weights, tensors = _in_memory(stored.weights), _in_memory(stored.tensors)
    stored.fill(
        (source, target.data)
        for group, made in ((stored.weights, weights), (stored.tensors, tensors))
        for source, target in zip(group.values(), made.values(), strict=True)
    )
    return Snapshot(weights, stored.ties, stored.state, tensors)


def read_text(path: Path, name: str, manifest: Manifest) -> str:
    """One listed text file of a checkpoint, checked. Raises KeyError if it is not listed, CorruptCheckpointError."""
    record = manifest.files[name]
    reading = Reading(path, {name: record}, digests=True, rest=False)
    # The size is checked before memory of that size is asked for.
    reading.read({})
    data = memoryview(bytearray(record.size))
    reading.read({name: [Span(0, data)]})
    return bytes(data).decode()


def _in_memory(tensors: Mapping[str, StoredTensor]) -> dict[str, TensorBytes]:
    return {
        name: TensorBytes(tensor.dtype, tensor.shape, memoryview(bytearray(tensor.nbytes)), tensor.logical)
        for name, tensor in tensors.items()
    }


def _spans(pairs: Iterable[tuple[StoredTensor, memoryview]]) -> dict[str, list[Span]]:
    spans: dict[str, list[Span]] = {}
    for source, target in pairs:
        spans.setdefault(source.file, []).append(Span(source.start, target))
    return spans
