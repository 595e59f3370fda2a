"""The nouns that the rooms hand to each other: frozen, and free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

JSON = Any
"""A value that ``json`` writes and reads back as it was."""


class Level(StrEnum):
    """How much of a checkpoint is on disk: all, or what is needed to load the model."""

    FULL = "full"
    WEIGHTS = "weights"

    @property
    def rank(self) -> int:
        """Its place among the levels: the more is there, the higher."""
        return _RANKS[self]


_RANKS = {Level.WEIGHTS: 1, Level.FULL: 2}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One committed checkpoint, as its manifest tells it.

    ``serial`` counts commits within a run: the newest checkpoint is the one with the highest serial, whatever its
    step. ``created`` is in seconds since 1970 (UTC), ``size`` in bytes (all files the manifest lists, and itself),
    ``state_size`` those of them that are the training state.
    """

    step: int
    path: Path
    serial: int
    run_id: str
    id: str
    created: float
    size: int
    level: Level = Level.FULL
    epoch: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    pinned: bool = False
    config: str | None = None
    state_size: int = 0

    def size_at(self, level: Level) -> int:
        """Bytes that it takes, or would take at a lower level."""
        return self.size - self.state_size if level.rank < Level.FULL.rank else self.size

    @property
    def name(self) -> str:
        """The folder's name, ``step_500``."""
        return self.path.name

    @property
    def resumable(self) -> bool:
        """Whether a run can go on from here (weights alone are not enough)."""
        return self.level is Level.FULL


@dataclass(frozen=True, slots=True)
class Damaged:
    """A folder that carries a manifest but is not a checkpoint that can be used, and why.

    ``newer_format`` is the format's version where that is the only thing against it; ``passed_over`` the checkpoint
    where all that is against it is that a resume could not use it then.
    """

    step: int
    path: Path
    reason: str
    newer_format: str | None = None
    passed_over: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """The facts at the end of one step, read once; every schedule decides from these alone.

    ``previous_step`` is the step of the ``step()`` call before (or the resumed step, or 0). ``seconds`` is training
    time over the whole run, stops not counted, and ``previous_seconds`` its value one call earlier: both are stored
    in checkpoints, so that a schedule sees the same series across restarts.
    """

    step: int
    previous_step: int = 0
    seconds: float = 0.0
    previous_seconds: float = 0.0
    epoch_end: bool = False


class TensorSource(Protocol):
    """One tensor to be stored, wherever it is: ``nbytes`` contiguous bytes, row-major, little-endian.

    ``dtype`` is safetensors' spelling (``"BF16"``). Where safetensors has no such dtype, ``logical`` names torch's
    (``"complex128"``) and ``shape``/``dtype`` describe the bytes stored.
    """

    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def logical(self) -> str | None: ...  # noqa: D102
    @property
    def nbytes(self) -> int: ...  # noqa: D102

    def copy_into(self, target: memoryview, start: int) -> None:
        """Copy the bytes from ``start`` on into all of ``target``."""


class StoredSource(TensorSource, Protocol):
    """A tensor that was stored, wherever its bytes are."""

    @property
    def data(self) -> memoryview:
        """All of its bytes in host memory."""


Fill = Callable[[Iterable[tuple[StoredSource, memoryview]]], None]
"""Brings the bytes of stored tensors to memory of their sizes."""


class Restorable(Protocol):
    """A stored state, to be restored; the fields are those of ``Snapshot``, the tensors may still be in files."""

    @property
    def weights(self) -> Mapping[str, StoredSource]: ...  # noqa: D102
    @property
    def ties(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def state(self) -> Mapping[str, JSON]: ...  # noqa: D102
    @property
    def tensors(self) -> Mapping[str, StoredSource]: ...  # noqa: D102

    def fill(self, pairs: Iterable[tuple[StoredSource, memoryview]]) -> None:
        """Bring the bytes of tensors to memory, and make sure of all others. Raises CorruptCheckpointError."""

    def fill_again(self, pairs: Iterable[tuple[StoredSource, memoryview]]) -> None:
        """Bring the bytes of tensors to memory after all was made sure of. Raises CorruptCheckpointError."""


class Storable(Protocol):
    """A state to be stored; the fields are those of ``Snapshot``, the tensors may still be the live ones."""

    @property
    def weights(self) -> Mapping[str, TensorSource]: ...  # noqa: D102
    @property
    def ties(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def state(self) -> Mapping[str, JSON]: ...  # noqa: D102
    @property
    def tensors(self) -> Mapping[str, TensorSource]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor's bytes in host memory, as ``TensorSource`` describes them; ``data`` is a flat view of them."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    logical: str | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.data.nbytes

    def copy_into(self, target: memoryview, start: int) -> None:
        """Copy the bytes from ``start`` on into all of ``target``."""
        target[:] = self.data[start : start + target.nbytes]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The training state in host memory: what is written to, and what is read from, a checkpoint.

    ``weights`` are the model's tensors by parameter name, each shared tensor once; ``ties`` maps the other names of
    a shared tensor to the one that is stored. ``state`` holds for every entry a JSON tree in which
    ``{"$tensor": name}`` stands for ``tensors[name]``.
    """

    weights: Mapping[str, TensorBytes]
    ties: Mapping[str, str]
    state: Mapping[str, JSON]
    tensors: Mapping[str, TensorBytes]

    def fill(self, pairs: Iterable[tuple[StoredSource, memoryview]]) -> None:
        """Copy tensors to memory of their sizes."""
        for source, target in pairs:
            source.copy_into(target, 0)

    def fill_again(self, pairs: Iterable[tuple[StoredSource, memoryview]]) -> None:
        """The same as ``fill``: what is in memory needs no second look."""
        self.fill(pairs)


@dataclass(frozen=True, slots=True)
class TextAsset:
    """A small text file to be written beside the weights of every checkpoint, such as a resolved configuration."""

    name: str
    text: str
