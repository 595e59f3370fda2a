"""Levels: how much of a checkpoint is on disk, and how a checkpoint loses one.

A level says which files a checkpoint of it lists, and how the model's weights are read back. A further one (a
lossless difference to another checkpoint) is one more entry of ``LEVELS`` and its own way of reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from milepost.records import Checkpoint, Level, Restorable
from milepost.storage.backend import Backend
from milepost.storage.commit import rewrite_manifest
from milepost.storage.edits import editing
from milepost.storage.layout import RunFolder, is_training_state
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.reader import StoredState
from milepost.storage.state_files import remove_state_files
from milepost.storage.verify import VerifyLevel


class WeightsReader(Protocol):
    """How the weights of a checkpoint of some level come back: as they were, bit for bit."""

    def __call__(self, path: Path, manifest: Manifest, *, verify: VerifyLevel) -> Restorable:
        """The model's tensors, described, and to be read. Raises CorruptCheckpointError."""


def _read_plain_weights(path: Path, manifest: Manifest, *, verify: VerifyLevel) -> Restorable:
    return StoredState(path, manifest, verify=verify, state=False)


@dataclass(frozen=True, slots=True)
class LevelOnDisk:
    """What a level is: which of a full checkpoint's files it has, and how its weights are read."""

    has: Callable[[str], bool]
    read_weights: WeightsReader


LEVELS: Mapping[Level, LevelOnDisk] = {
    Level.FULL: LevelOnDisk(lambda name: True, _read_plain_weights),
    Level.WEIGHTS: LevelOnDisk(lambda name: not is_training_state(name), _read_plain_weights),
}


def stored_weights(path: Path, manifest: Manifest, *, verify: VerifyLevel = "digests") -> Restorable:
    """The model's tensors alone, whatever the checkpoint's level. Raises CorruptCheckpointError."""
    return LEVELS[manifest.level].read_weights(path, manifest, verify=verify)


def demote(run: RunFolder, backend: Backend, checkpoint: Checkpoint, level: Level = Level.WEIGHTS) -> Checkpoint:
    """Reduce a checkpoint to ``level`` and give its new record; one that is not above it stays as it is.

    First the new manifest becomes durable, then files go: at any crash it is what it was or what was asked, and
    ``recover`` removes what is left. Raises ValueError for a checkpoint of another folder, FileNotFoundError if it is
    gone, CorruptCheckpointError, UnsupportedFormatError, OSError.
    """
    if checkpoint.path.parent != run.path:
        raise ValueError(f"{checkpoint.path} is not a checkpoint of {run.path}")
    with editing(run):
        found = read_manifest(checkpoint.path)
        if found.level.rank <= level.rank:
            return found.as_checkpoint(checkpoint.path)
        # A newer checkpoint may be seen whose rename is not durable yet; without that one, this is needed whole.
        backend.sync_folder(run.path)
        reduced = rewrite_manifest(backend, checkpoint.path, lambda manifest: _reduced(manifest, level))
        remove_state_files(backend, checkpoint.path)
        return reduced


def _reduced(manifest: Manifest, level: Level) -> Manifest:
    has = LEVELS[level].has
    return replace(manifest, level=level, files={name: entry for name, entry in manifest.files.items() if has(name)})
