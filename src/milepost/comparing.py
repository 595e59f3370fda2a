"""Two checkpoints, compared: every tensor, piece by piece, and every value of the training state."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milepost.storage.layout import STATE_TREE, is_state_tensors_file, is_weights_file
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.pieces import StoredTensors, item_size, logical_shape
from milepost.storage.reader import read_text
from milepost.storage.tensor_files import TensorPlace
from milepost.stored_numbers import bits_of, numbers_of

WEIGHTS, STATE = "weights", "training state"
_GENERATORS = ("rng.", ".generator")


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """How one tensor differs. Norms are Euclidean; numbers are None where there are none to compare.

    ``index`` is the place of the first element that differs, ``values`` what the two have there.
    """

    part: str
    name: str
    fault: str | None
    shape: tuple[int, ...]
    items: int = 0
    changed: int = 0
    norms: tuple[float | None, float | None] = (None, None)
    largest: float | None = None
    distance: float | None = None
    index: tuple[int, ...] | None = None
    values: tuple[Any, Any] | None = None

    @property
    def share(self) -> float:
        """The fraction of elements that differ."""
        return self.changed / self.items if self.items else 1.0

    @property
    def relative(self) -> float:
        """The norm of the difference, by the first tensor's norm."""
        if self.distance is None or self.norms[0] is None:
            return math.inf
        return self.distance / self.norms[0] if self.norms[0] else math.inf


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A value of the training state that differs; ``path`` is its place. An absent one is None."""

    path: str
    values: tuple[Any, Any]


@dataclass(slots=True)
class Comparison:
    """What two checkpoints have in common, and what not.

    ``compared`` counts the tensors of each part, ``size`` their bytes; ``states`` says that training states were too.
    """

    compared: dict[str, int] = field(default_factory=lambda: {WEIGHTS: 0, STATE: 0})
    tensors: list[TensorDifference] = field(default_factory=list)
    values: list[ValueDifference] = field(default_factory=list)
    generators: list[str] = field(default_factory=list)
    size: int = 0
    states: bool = False

    @property
    def equal(self) -> bool:
        """Whether everything that was compared is the same, bit for bit."""
        return not (self.tensors or self.values or self.generators)


def compare(
    first: Path, second: Path, *, weights_only: bool = False, on_bytes: Callable[[int], None] | None = None
) -> Comparison:
    """Compare two checkpoint folders. Raises CorruptCheckpointError for bytes that are not what was written."""
    manifests = read_manifest(first), read_manifest(second)
    found = Comparison()
    for name in sorted({*manifests[0].ties, *manifests[1].ties}):
        ties = manifests[0].ties.get(name), manifests[1].ties.get(name)
        if ties[0] != ties[1]:
            found.values.append(ValueDifference(f"ties.{name}", ties))
    for each in _tensors((first, second), manifests, WEIGHTS, is_weights_file, found, on_bytes):
        found.tensors.append(each)
    if weights_only:
        return found
    trees = [_tree(path, manifest) for path, manifest in zip((first, second), manifests, strict=True)]
    if (STATE_TREE in manifests[0].files) != (STATE_TREE in manifests[1].files):
        there = tuple("there" if STATE_TREE in manifest.files else None for manifest in manifests)
        found.values.append(ValueDifference(STATE, (there[0], there[1])))
        return found
    found.states = True
    for value in _tree_differences(trees[0], trees[1]):
        if value.path.startswith("rng."):
            found.generators.append(value.path)
        else:
            found.values.append(value)
    for each in _tensors((first, second), manifests, STATE, is_state_tensors_file, found, on_bytes):
        if each.name.startswith(_GENERATORS[0]) or each.name.endswith(_GENERATORS[1]):
            found.generators.append(each.name)
        else:
            found.tensors.append(each)
    return found


def bytes_to_read(first: Path, second: Path, *, weights_only: bool = False) -> int:
    """Bytes of the tensor files that ``compare`` reads."""
    wanted = [is_weights_file] if weights_only else [is_weights_file, is_state_tensors_file]
    files = [record for path in (first, second) for record in read_manifest(path).files.items()]
    return sum(record.size for name, record in files if any(each(name) for each in wanted))


def _tensors(
    paths: tuple[Path, Path],
    manifests: tuple[Manifest, Manifest],
    part: str,
    wanted: Callable[[str], bool],
    found: Comparison,
    on_bytes: Callable[[int], None] | None,
) -> Iterator[TensorDifference]:
    with ExitStack() as opened:
        one, other = (
            opened.enter_context(StoredTensors(path, manifest, wanted, on_bytes))
            for path, manifest in zip(paths, manifests, strict=True)
        )
        # In the order of the first one's bytes, so that each of them is read once.
        for name in (*one, *(name for name in other if name not in one)):
            found.compared[part] += 1
            if name not in one or name not in other:
                where = "first" if name in one else "second"
                shape = logical_shape(one[name] if name in one else other[name])
                yield TensorDifference(part, name, f"only in the {where}", shape)
                continue
            found.size += one[name].end - one[name].start
            difference = _compare_tensor(part, name, one, other)
            if difference is not None:
                yield difference


def _compare_tensor(part: str, name: str, one: StoredTensors, other: StoredTensors) -> TensorDifference | None:
    places = one[name], other[name]
    shapes = logical_shape(places[0]), logical_shape(places[1])
    dtypes = tuple(place.logical or place.dtype for place in places)
    if shapes[0] != shapes[1]:
        return TensorDifference(part, name, f"shape {list(shapes[0])} and {list(shapes[1])}", shapes[0])
    fault = None if dtypes[0] == dtypes[1] else f"{dtypes[0]} and {dtypes[1]}"
    sums = _Sums(places)
    for mine, yours in zip(one.pieces(name), other.pieces(name), strict=True):
        sums.add(mine, yours, same_dtype=fault is None)
    if fault is None and not sums.changed:
        return None
    index = None if sums.first is None else tuple(map(int, np.unravel_index(sums.first, shapes[0])))
    return TensorDifference(
        part,
        name,
        fault,
        shapes[0],
        items=math.prod(shapes[0]),
        changed=sums.changed,
        norms=(sums.norm(0), sums.norm(1)),
        largest=sums.largest,
        distance=None if sums.squares is None else math.sqrt(sums.squares[2]),
        index=index,
        values=sums.values,
    )


class _Sums:
    """What is added up over the pieces of two tensors of one shape."""

    def __init__(self, places: tuple[TensorPlace, TensorPlace]) -> None:
        self._places = places
        self._seen = 0
        self.changed = 0
        self.largest: float | None = None
        self.squares: list[float] | None = None
        self.first: int | None = None
        self.values: tuple[Any, Any] | None = None

    def norm(self, which: int) -> float | None:
        """The Euclidean norm of the first or the second tensor."""
        return None if self.squares is None else math.sqrt(self.squares[which])

    def add(self, mine: memoryview, yours: memoryview, *, same_dtype: bool) -> None:
        """Take note of a piece of both."""
        numbers = numbers_of(self._places[0], mine), numbers_of(self._places[1], yours)
        differs = self._differing(mine, yours, numbers, same_dtype)
        if self.first is None and differs.any():
            at = int(differs.argmax())
            self.first = self._seen + at
            if numbers[0] is not None and numbers[1] is not None:
                self.values = numbers[0][at].item(), numbers[1][at].item()
        self.changed += int(differs.sum())
        self._seen += differs.size
        if numbers[0] is not None and numbers[1] is not None:
            self._measure(numbers[0], numbers[1])

    def _differing(
        self,
        mine: memoryview,
        yours: memoryview,
        numbers: tuple[NDArray[Any] | None, NDArray[Any] | None],
        same_dtype: bool,
    ) -> NDArray[np.bool_]:
        if same_dtype or numbers[0] is None or numbers[1] is None:
            bits = [bits_of(item_size(place), data) for place, data in zip(self._places, (mine, yours), strict=True)]
            if bits[0].shape != bits[1].shape:
                return np.ones(bits[0].shape[0], dtype=np.bool_)
            unequal = bits[0] != bits[1]
            return np.asarray(unequal if unequal.ndim == 1 else unequal.any(axis=1))
        return np.asarray((numbers[0] != numbers[1]) & ~(np.isnan(numbers[0]) & np.isnan(numbers[1])))

    def _measure(self, mine: NDArray[Any], yours: NDArray[Any]) -> None:
        # Of numbers that overflow or are none, the sums are none either, and that is what is said.
        with np.errstate(all="ignore"):
            same = (mine == yours) | (np.isnan(mine) & np.isnan(yours))
            apart = np.where(same, 0.0, np.abs(mine - yours))
            sums = [float(np.sum(np.abs(each) ** 2)) for each in (mine, yours, apart)]
            largest = float(apart.max(initial=0.0))
        before = self.squares or [0.0] * len(sums)
        self.squares = [old + new for old, new in zip(before, sums, strict=True)]
        # NaN is the largest of all differences, and max() would pass it over.
        known = 0.0 if self.largest is None else self.largest
        self.largest = math.nan if math.isnan(known) or math.isnan(largest) else max(known, largest)


def _tree(path: Path, manifest: Manifest) -> Mapping[str, Any]:
    return dict(json.loads(read_text(path, STATE_TREE, manifest))) if STATE_TREE in manifest.files else {}


def _tree_differences(mine: Mapping[str, Any], yours: Mapping[str, Any]) -> Iterator[ValueDifference]:
    for name in dict.fromkeys([*mine, *yours]):
        if name not in mine or name not in yours:
            there = "only in the first" if name in mine else "only in the second"
            yield ValueDifference(name, (there, None) if name in mine else (None, there))
        else:
            yield from _differences(name, _unwrapped(mine[name]), _unwrapped(yours[name]))


def _unwrapped(entry: Any) -> Any:
    # An object with state_dict is stored with the generator that it may have.
    if isinstance(entry, dict) and entry.keys() == {"state", "generator"} and isinstance(entry["state"], dict):
        return {**entry["state"], **({"generator": entry["generator"]} if entry["generator"] is not None else {})}
    return entry


def _differences(path: str, mine: Any, yours: Any) -> Iterator[ValueDifference]:
    if isinstance(mine, dict) and isinstance(yours, dict):
        if "$tensor" in mine and "$tensor" in yours:
            # What these hold is compared as tensors.
            return
        for key in dict.fromkeys([*mine, *yours]):
            inside = path if key.startswith("$") else f"{path}.{key}"
            if key in mine and key in yours:
                yield from _differences(inside, mine[key], yours[key])
            else:
                yield ValueDifference(inside, (mine.get(key), yours.get(key)))
    elif isinstance(mine, list) and isinstance(yours, list) and len(mine) == len(yours):
        for at, (one, other) in enumerate(zip(mine, yours, strict=True)):
            yield from _differences(f"{path}.{at}", one, other)
    elif type(mine) is not type(yours) or mine != yours:
        yield ValueDifference(path, (mine, yours))
