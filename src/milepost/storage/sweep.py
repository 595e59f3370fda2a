"""Taking checkpoints out of the catalog, and giving bytes back: moved aside first, deleted after.

Nothing outside the run's folder is touched, symbolic links are removed and never followed, and files that no manifest
lists are left where they are.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from milepost.errors import MilepostError
from milepost.records import Checkpoint
from milepost.storage.backend import Backend
from milepost.storage.layout import MANIFEST, RunFolder, aside_name, is_staging, parse_replaced
from milepost.storage.manifest import Manifest, read_manifest

logger = logging.getLogger("milepost")


def ensure_folder(backend: Backend, path: Path) -> None:
    """Make a folder that may be there already, durably."""
    if not path.is_dir():
        backend.make_folder(path)
        backend.sync_folder(path.parent)


def prune(run: RunFolder, backend: Backend, checkpoints: Iterable[Checkpoint]) -> None:
    """Take checkpoints out of the catalog durably, by moving them to the trash. Raises OSError."""
    _move_all(run, backend, checkpoints, run.trash, "pruned")


def supersede(run: RunFolder, backend: Backend, checkpoints: Iterable[Checkpoint]) -> None:
    """Move the checkpoints after a rewind's step out of the way, the newest first, durably. Raises OSError."""
    newest_first = sorted(checkpoints, key=lambda checkpoint: -checkpoint.serial)
    _move_all(run, backend, newest_first, run.superseded, "superseded")


def superseded_serial(run: RunFolder) -> int:
    """The highest serial among superseded checkpoints: a later commit must have a higher one."""
    return max((manifest.serial for manifest in map(_manifest, _children(run.superseded)) if manifest), default=0)


def release_superseded(run: RunFolder, backend: Backend, newest_serial: int) -> None:
    """Turn superseded checkpoints into trash once a checkpoint was committed after them. Raises OSError."""
    for path in _children(run.superseded):
        manifest = _manifest(path)
        if manifest is not None and manifest.serial < newest_serial:
            ensure_folder(backend, run.trash)
            backend.rename(path, run.trash / path.name)


def sweep_trash(run: RunFolder, backend: Backend) -> None:
    """Give the trash's bytes back. What cannot be removed is named in a warning and tried again at the next sweep."""
    for path in _children(run.trash):
        try:
            _remove_checkpoint(backend, path)
        except OSError as error:
            logger.warning("%s could not be removed from the trash (%s); it is tried again later", path, error)


def recover(run: RunFolder, backend: Backend) -> None:
    """Clear what a killed run left behind: unfinished saves go, an unfinished replacement is reverted, trash is swept.

    Call it with the run's lock held. Raises OSError.
    """
    for path in _children(run.path):
        if is_staging(path.name) and not path.is_symlink():
            remove_tree(backend, path)
    for path in _children(run.trash):
        name = parse_replaced(path.name)
        if name is not None and not (run.path / name).exists():
            backend.rename(path, run.path / name)
            backend.sync_folder(run.path)
    sweep_trash(run, backend)


def remove_tree(backend: Backend, path: Path) -> None:
    """Remove a folder that is Milepost's own, with all that is in it; an absent one is no error."""
    for child in _children(path):
        if stat.S_ISDIR(child.lstat().st_mode):
            remove_tree(backend, child)
        else:
            backend.remove_file(child)
    if path.is_dir():
        backend.remove_folder(path)


def _remove_checkpoint(backend: Backend, path: Path) -> None:
    manifest = _manifest(path)
    if path.is_symlink() or not path.is_dir():
        return
    if manifest is None:
        remove_tree(backend, path)
        return
    for name in manifest.files:
        _remove_listed(backend, path, name)
    folders = {parent for name in manifest.files for parent in (path / name).parents if path in parent.parents}
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        if folder.is_dir() and not _children(folder):
            backend.remove_folder(folder)
    left = [child.name for child in _children(path) if not child.name.startswith(MANIFEST)]
    if left:
        logger.warning("%s holds files that Milepost did not write; they are left there: %s", path, ", ".join(left))
        return
    # The manifest goes last: a sweep that was cut short still knows which files are its own.
    for child in _children(path):
        backend.remove_file(child)
    backend.remove_folder(path)


def _remove_listed(backend: Backend, path: Path, name: str) -> None:
    file = path / name
    inside = all(not parent.is_symlink() for parent in file.parents if path in parent.parents)
    if inside and os.path.lexists(file) and not (file.is_dir() and not file.is_symlink()):
        backend.remove_file(file)


def _move_all(run: RunFolder, backend: Backend, checkpoints: Iterable[Checkpoint], to: Path, why: str) -> None:
    moved = False
    for checkpoint in checkpoints:
        ensure_folder(backend, to)
        backend.rename(checkpoint.path, to / aside_name(checkpoint.path.name, why))
        moved = True
    if moved:
        backend.sync_folder(to)
        backend.sync_folder(run.path)


def _manifest(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except (OSError, MilepostError):
        return None


def _children(path: Path) -> list[Path]:
    if path.is_symlink():
        return []
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
