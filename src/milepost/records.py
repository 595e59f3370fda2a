"""The nouns that the rooms hand to each other: frozen, and free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

JSON = Any
"""A value that ``json`` writes and reads back as it was."""


class Level(StrEnum):
    """How much of a checkpoint is on disk."""

    FULL = "full"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One committed checkpoint, as its manifest tells it.

    ``serial`` counts commits within a run: the newest checkpoint is the one with the highest serial, whatever its
    step. ``created`` is in seconds since 1970 (UTC), ``size`` in bytes (all files the manifest lists, and itself).
    ``healthy`` says whether training was sound at this step; None where nobody judged.
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
    healthy: bool | None = None

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

    ``newer_format`` is the format's version where that is the only thing against it.
    """

    step: int
    path: Path
    reason: str
    newer_format: str | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """The facts at the end of one step, read once; every schedule decides from these alone.

    ``previous_step`` is the step of the ``step()`` call before (or the resumed step, or 0). ``seconds`` is training
    time over the whole run, stops not counted, and ``previous_seconds`` its value one call earlier: both are stored
    in checkpoints, so that a schedule sees the same series across restarts. ``signal`` is the name of a signal that
    asked for a save since then, ``requests`` are the ids of requests to save that nobody has answered yet.
    """

    step: int
    previous_step: int = 0
    seconds: float = 0.0
    previous_seconds: float = 0.0
    epoch_end: bool = False
    signal: str | None = None
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """One tensor's bytes in host memory: contiguous, row-major, little-endian.

    ``dtype`` is safetensors' spelling (``"BF16"``). ``data`` is a flat view of unsigned bytes. Where safetensors has
    no such dtype, ``logical`` names torch's (``"complex128"``) and ``shape``/``dtype`` describe the bytes stored.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    logical: str | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.data.nbytes


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


@dataclass(frozen=True, slots=True)
class TextAsset:
    """A small text file to be written beside the weights of every checkpoint, such as a resolved configuration."""

    name: str
    text: str
