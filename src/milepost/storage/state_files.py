"""Removing a checkpoint's training state, whose manifest does not list it any more."""

from __future__ import annotations

import os
from pathlib import Path

from milepost.errors import MilepostError
from milepost.records import Level
from milepost.storage.backend import Backend
from milepost.storage.layout import STATE_TREE, TRAINING_STATE, is_state_tensors_file
from milepost.storage.manifest import read_manifest


def remove_state_files(backend: Backend, checkpoint: Path) -> None:
    """Remove what Milepost calls so in ``training_state/``, and the folder if nothing else is in it. Raises OSError."""
    folder = checkpoint / TRAINING_STATE
    for path in _state_files(folder):
        backend.remove_file(path)
    if folder.is_dir() and not folder.is_symlink() and not os.listdir(folder):
        backend.remove_folder(folder)


def finish_demotion(backend: Backend, checkpoint: Path) -> None:
    """Remove what a demotion that was cut short left behind its new manifest. Raises OSError."""
    if not (checkpoint / TRAINING_STATE).is_dir():
        return
    try:
        manifest = read_manifest(checkpoint)
    except (OSError, MilepostError):
        return
    if manifest.level.rank < Level.FULL.rank:
        if _state_files(checkpoint / TRAINING_STATE):
            # The manifest that is seen may not be durable yet, and the one before it needs these files.
            backend.sync_folder(checkpoint)
        remove_state_files(backend, checkpoint)


def _state_files(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    found = [folder / name for name in sorted(os.listdir(folder)) if _is_ours(f"{TRAINING_STATE}/{name}")]
    return [path for path in found if path.is_symlink() or not path.is_dir()]


def _is_ours(listed: str) -> bool:
    return listed == STATE_TREE or is_state_tensors_file(listed)
