"""How many bytes a run's folder takes, and how many a checkpoint will."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from milepost.storage.catalog import Catalog
from milepost.storage.digests import CHUNK
from milepost.storage.json_text import json_bytes
from milepost.storage.layout import MANIFEST, RunFolder, is_aside, is_staging, parse_replaced
from milepost.storage.sweep import bytes_in, trashed

_BLOCK = 4096
# What a manifest says of one tensor in a file's header at most, beside its name; and of one chunk of a file.
_TENSOR = 512
_CHUNK = 64
_FILE = 1024


class Sized(Protocol):
    """Anything with a size in bytes."""

    @property
    def nbytes(self) -> int: ...  # noqa: D102


def trash_bytes(run: RunFolder) -> int:
    """What the trash holds."""
    return sum(bytes_in(path) for path in trashed(run))


def other_bytes(run: RunFolder, catalog: Catalog) -> int:
    """What the run's folder holds beside good checkpoints and trash: unfinished saves, damaged and put aside ones.

    With it comes the room that a change to one checkpoint needs for a moment. Foreign files are not counted.
    """
    held = _size(run.control) + _size(run.superseded)
    held += sum(_size(entry.path) for entry in catalog.damaged)
    with contextlib.suppress(OSError), os.scandir(run.path) as entries:
        held += sum(_size(Path(entry.path)) for entry in entries if _in_passing(entry.name))
    with contextlib.suppress(OSError), os.scandir(run.trash) as entries:
        held += sum(_size(Path(entry.path)) for entry in entries if parse_replaced(entry.name) is not None)
    manifests = [_size(checkpoint.path / MANIFEST) for checkpoint in catalog.checkpoints]
    return held + 2 * max(manifests, default=0) + 2 * _FILE * (4 + len(manifests))


def disk_size(path: Path) -> int:
    """The size in bytes of the disk that a path is on. Raises OSError."""
    return shutil.disk_usage(path).total


def size_on_disk(
    tensors: Sequence[Mapping[str, Sized]],
    state: Mapping[str, object],
    assets: Mapping[str, bytes],
    max_shard_size: int,
) -> int:
    """Bytes that a checkpoint of these tensors (weights, and others), state and assets takes at most."""
    sizes = [(name, each.nbytes) for group in tensors for name, each in group.items()]
    data = sum(size for _, size in sizes)
    # Each name is in a header, in an index, and perhaps among the ties; a character takes six bytes at worst.
    names = sum(_TENSOR + 18 * len(name) for name, _ in sizes)
    small = len(json_bytes(state)) + sum(_FILE + 6 * len(name) + len(content) for name, content in assets.items())
    shards = min(len(sizes), 2 * (data // max_shard_size)) + 2
    chunks = data // CHUNK + shards + len(assets) + small // CHUNK
    return data + names + small + shards * (_BLOCK + _FILE) + chunks * _CHUNK + 4 * _FILE


def _in_passing(name: str) -> bool:
    return is_staging(name) or is_aside(name)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links are not followed."""
    total = 0
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        for parent, _, names in os.walk(path):
            total += sum(Path(parent, name).lstat().st_size for name in names)
    return total
