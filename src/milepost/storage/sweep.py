"""Taking checkpoints out of the catalog, and giving bytes back: moved aside first, deleted after.

Nothing outside the run's folder is touched, symbolic links are removed and never followed, and files that no manifest
lists are left where they are.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import stat
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from milepost.errors import MilepostError
from milepost.records import Checkpoint, Damaged
from milepost.storage.backend import Backend
from milepost.storage.edits import editing
from milepost.storage.layout import (
    MANIFEST,
    RunFolder,
    aside_name,
    is_aside,
    is_manifest_draft,
    is_pointer_draft,
    is_staging,
    parse_aside,
    parse_replaced,
    parse_step,
    step_name,
)
from milepost.storage.log import Event, record, unexpired
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.state_files import finish_demotion

logger = logging.getLogger("milepost")


def ensure_folder(backend: Backend, path: Path) -> None:
    """Make a folder that may be there already, durably. Raises NotADirectoryError for a symbolic link."""
    if path.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "it is a symbolic link, and those are not followed", str(path))
    if not path.is_dir():
        backend.make_folder(path)
        backend.sync_folder(path.parent)


def prune(run: RunFolder, backend: Backend, checkpoints: Iterable[Checkpoint], names: Sequence[str] = ()) -> None:
    """Take checkpoints out of the catalog durably, by moving them to the trash, under ``names``. Raises OSError."""
    folders = [checkpoint.path for checkpoint in checkpoints]
    _move_all(run, backend, folders, run.trash, names or [aside_name(each.name, "pruned") for each in folders])


def supersede(run: RunFolder, backend: Backend, checkpoints: Iterable[Checkpoint | Damaged]) -> None:
    """Move what a rewind leaves behind aside, unreadable ones and the newest first, durably. Raises OSError."""
    newest_first = sorted(checkpoints, key=lambda entry: -entry.serial if isinstance(entry, Checkpoint) else -math.inf)
    folders = [entry.path for entry in newest_first]
    _move_all(run, backend, folders, run.superseded, [aside_name(each.name, "superseded") for each in folders])


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


def make_room(run: RunFolder, backend: Backend, final: Path, run_id: str) -> Path | None:
    """Move what has a checkpoint's final name aside, durably, and give its new place; None if nothing has it.

    That is the trash for this run's own checkpoint of this step, and the run's folder for all else: what another run
    wrote, what nobody can read, links and files are kept. ``put_back`` or ``settle_replaced`` comes next; a crash
    before that is put right by ``recover``. Raises OSError, with everything as it was.
    """
    if not os.path.lexists(final):
        return None
    manifest = None if final.is_symlink() else _manifest(final)
    own = manifest is not None and manifest.run_id == run_id and step_name(manifest.step) == final.name
    to = run.trash if own else run.path
    if own:
        ensure_folder(backend, run.trash)
    aside = to / aside_name(final.name, "replaced")
    try:
        backend.rename(final, aside)
        # Durable before the name is used again, the new place first: one of the two always has it.
        backend.sync_folder(to)
        if own:
            backend.sync_folder(run.path)
    except BaseException:
        put_back(backend, aside, final)
        raise
    return aside


def put_back(backend: Backend, aside: Path, final: Path) -> None:
    """Undo ``make_room`` as far as the disk allows; ``recover`` does the rest."""
    with contextlib.suppress(OSError):
        if os.path.lexists(aside) and not os.path.lexists(final):
            backend.rename(aside, final)
            backend.sync_folder(final.parent)


def settle_replaced(run: RunFolder, backend: Backend, name: str) -> None:
    """Let nothing bring back what was moved aside for ``name``, now that its replacement is durable. Raises OSError."""
    for path in _replaced(run):
        if parse_replaced(path.name) == name:
            why = "pruned" if path.parent == run.trash else "displaced"
            settled = path.with_name(aside_name(name, why))
            backend.rename(path, settled)
            backend.sync_folder(path.parent)
            if why == "displaced":
                logger.warning("what had the name %s is not this run's, and is kept as %s", name, settled)


def trashed(run: RunFolder) -> list[Path]:
    """What lies in the trash and is Milepost's own; links and files with such names are not."""
    return [
        path
        for path in _children(run.trash)
        if is_aside(path.name) and parse_replaced(path.name) is None and not path.is_symlink() and path.is_dir()
    ]


def bytes_in(path: Path) -> int:
    """What a sweep of this folder would give back: the files that its manifest lists, and that itself.

    Without a manifest that can be read, all that is in it.
    """
    manifest = _manifest(path)
    if manifest is None:
        files = [Path(parent, name) for parent, _, names in os.walk(path) for name in names]
    else:
        files = [path / name for name in (*manifest.files, MANIFEST)]
    sizes = 0
    for file in files:
        with contextlib.suppress(OSError):
            sizes += file.lstat().st_size
    return sizes


def sweep_trash(run: RunFolder, backend: Backend, spare: Collection[str] = (), why: str = "") -> None:
    """Give the trash's bytes back, but for the names to ``spare``; the log says what went, and ``why``.

    What cannot be removed is named in a warning and tried again at the next sweep. Raises OSError if the trash cannot
    be made durable first.
    """
    doomed = [path for path in trashed(run) if path.name not in spare]
    if doomed:
        # No byte goes before the move to the trash is durable: a power failure must not bring half a checkpoint back.
        _sync_moves(run, backend)
    events = []
    with editing(run):
        for path in doomed:
            size = bytes_in(path)
            try:
                _remove_checkpoint(backend, path)
            except (OSError, MilepostError) as error:
                logger.warning("%s could not be removed from the trash (%s); it is tried again later", path, error)
            if not os.path.lexists(path):
                events.append(Event(time.time(), "swept", parse_aside(path.name), why, size, path.name))
        record(run, backend, events)


def recover(run: RunFolder, backend: Backend) -> None:
    """Clear what a killed run left behind: unfinished saves go, unfinished replacements are reverted, trash is swept.

    Call it with the run's lock held. Raises OSError.
    """
    with editing(run):
        _put_right(run, backend)


def _put_right(run: RunFolder, backend: Backend) -> None:
    for path in _children(run.path):
        if is_staging(path.name) and not path.is_symlink():
            remove_tree(backend, path)
        elif parse_step(path.name) is not None and not path.is_symlink():
            for draft in filter(_is_draft, _children(path)):
                backend.remove_file(draft)
            finish_demotion(backend, path)
    for draft in _children(run.control):
        if is_pointer_draft(draft.name) and (draft.is_symlink() or draft.is_file()):
            backend.remove_file(draft)
    if replaced := _replaced(run):
        # What is seen here may not be durable yet: neither the move aside nor, with it, the replacement.
        _sync_moves(run, backend)
    for path in replaced:
        name = parse_replaced(path.name) or ""
        if not os.path.lexists(run.path / name):
            backend.rename(path, run.path / name)
            backend.sync_folder(run.path)
        else:
            settle_replaced(run, backend, name)
    sweep_trash(run, backend, spare=unexpired(run, time.time()))


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
    try:
        manifest = read_manifest(path)
    except FileNotFoundError:
        # The manifest goes last, so all that can be left is what a power failure brought back.
        remove_tree(backend, path)
        return
    before = len(_children(path))
    for name in manifest.files:
        _remove_listed(backend, path, name)
    folders = {parent for name in manifest.files for parent in (path / name).parents if path in parent.parents}
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        if folder.is_dir() and not folder.is_symlink() and not _children(folder):
            backend.remove_folder(folder)
    for draft in filter(_is_draft, _children(path)):
        backend.remove_file(draft)
    left = [child.name for child in _children(path) if child.name != MANIFEST]
    if not left:
        # Last: a sweep that was cut short still knows which files are its own.
        backend.remove_file(path / MANIFEST)
        backend.remove_folder(path)
    elif len(left) + 1 < before:
        logger.warning("%s holds files that Milepost did not write; they are left there: %s", path, ", ".join(left))


def _remove_listed(backend: Backend, path: Path, name: str) -> None:
    file = path / name
    inside = all(not parent.is_symlink() for parent in file.parents if path in parent.parents)
    if inside and os.path.lexists(file) and not (file.is_dir() and not file.is_symlink()):
        backend.remove_file(file)


def _move_all(run: RunFolder, backend: Backend, folders: Sequence[Path], to: Path, names: Sequence[str]) -> None:
    moved = False
    for folder, name in zip(folders, names, strict=True):
        if folder.parent != run.path:
            raise ValueError(f"{folder} is not a checkpoint of {run.path}")
        ensure_folder(backend, to)
        backend.rename(folder, to / name)
        moved = True
    if moved:
        backend.sync_folder(to)
        backend.sync_folder(run.path)


def _sync_moves(run: RunFolder, backend: Backend) -> None:
    # Where things went first, then where they were: at no moment are they durable in neither.
    if run.trash.is_dir() and not run.trash.is_symlink():
        backend.sync_folder(run.trash)
    backend.sync_folder(run.path)


def _replaced(run: RunFolder) -> list[Path]:
    """What was moved aside and is not settled, the newest commit first."""
    found = [path for path in (*_children(run.trash), *_children(run.path)) if parse_replaced(path.name) is not None]
    manifests = {path: _manifest(path) for path in found}
    return sorted(found, key=lambda path: -manifest.serial if (manifest := manifests[path]) else 0)


def _is_draft(path: Path) -> bool:
    return is_manifest_draft(path.name) and not stat.S_ISDIR(path.lstat().st_mode)


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
