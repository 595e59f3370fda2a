"""``latest`` and ``best`` in a run's folder: relative symbolic links to checkpoints, for people and scripts.

Where a file system has no links, a text file with the checkpoint's name stands in. Nothing depends on them: the
catalog ignores them, and they are made anew after each change.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from milepost.storage.backend import Backend
from milepost.storage.layout import POINTERS, RunFolder, parse_step, pointer_draft_name

logger = logging.getLogger("milepost")

_LONGEST = 64


def read_pointer(path: Path) -> str | None:
    """The checkpoint's name that a pointer says; None where there is none, or something else."""
    try:
        if path.is_symlink():
            target = os.readlink(path)
        elif path.is_file() and path.lstat().st_size <= _LONGEST:
            target = path.read_text(encoding="ascii").removesuffix("\n")
        else:
            return None
    except (OSError, ValueError):
        return None
    return target if parse_step(target) is not None else None


def follow(path: Path) -> Path:
    """The path, links resolved; of a pointer that is a text file, the checkpoint that it names."""
    resolved = path.expanduser().resolve()
    target = read_pointer(resolved) if resolved.name in POINTERS else None
    return resolved if target is None else resolved.parent / target


def point(run: RunFolder, backend: Backend, name: str, target: str | None) -> None:
    """Let ``latest`` or ``best`` name a checkpoint, atomically; None leaves it, unless what it names is gone.

    What has this name and is no pointer is left alone. Raises OSError.
    """
    path = run.path / name
    now = read_pointer(path)
    if now is None and os.path.lexists(path):
        return
    if target is None:
        if now is not None and not (run.path / now).is_dir():
            backend.remove_file(path)
        return
    if now == target:
        return
    draft = run.control / pointer_draft_name(name)
    try:
        _write(backend, draft, target)
        backend.rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            backend.remove_file(draft)
        raise


def _write(backend: Backend, draft: Path, target: str) -> None:
    try:
        backend.link(draft, target)
    except OSError as error:
        logger.debug("no symbolic link could be made (%s); a text file takes its place", error)
        file = backend.create(draft)
        try:
            file.write(f"{target}\n".encode())
        finally:
            file.close()
