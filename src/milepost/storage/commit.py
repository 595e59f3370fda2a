"""The commit: files in a staging folder, forced to the disk, manifest last, one rename. See docs/format-v1.md."""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from milepost.errors import DiskFullError
from milepost.records import Checkpoint, Snapshot, TensorBytes
from milepost.storage.backend import Backend
from milepost.storage.digests import DigestingFile, FileRecord
from milepost.storage.json_text import json_bytes
from milepost.storage.layout import (
    MANIFEST,
    STATE_TENSORS,
    STATE_TREE,
    TRAINING_STATE,
    WEIGHTS,
    WEIGHTS_INDEX,
    RunFolder,
    is_reserved,
    is_safe_name,
    manifest_draft_name,
    new_id,
    shard_names,
    staging_name,
)
from milepost.storage.manifest import Manifest, encode, read_manifest
from milepost.storage.sweep import make_room, put_back, remove_tree, settle_replaced, sweep_trash
from milepost.storage.tensor_files import plan_tensor_file, split_into_shards, write_tensor_file

logger = logging.getLogger("milepost")

_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint to be: what its manifest will say, and what goes into its files (``assets``: name to bytes)."""

    step: int
    serial: int
    run_id: str
    snapshot: Snapshot
    assets: Mapping[str, bytes] = field(default_factory=dict)
    epoch: int | None = None
    seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    config: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    healthy: bool | None = None

    @property
    def tensor_bytes(self) -> int:
        """Bytes of tensor data, which is nearly all that the checkpoint will need."""
        tensors = (*self.snapshot.weights.values(), *self.snapshot.tensors.values())
        return sum(tensor.nbytes for tensor in tensors)


def commit(run: RunFolder, backend: Backend, draft: Draft, *, max_shard_size: int) -> Checkpoint:
    """Make a draft durable and visible under its final name; it is there whole, or not at all.

    A full disk is tried once more after the trash is emptied. Raises DiskFullError with the numbers, or the OSError
    that stopped the commit; the staging folder is removed either way. Raises ValueError for an asset whose name is
    not relative or is one of the checkpoint's own.
    """
    for name in draft.assets:
        if is_reserved(name) or not is_safe_name(name):
            raise ValueError(f"asset {name!r} has a name that no file beside the weights may have; rename it")
    try:
        return _commit_once(run, backend, draft, max_shard_size)
    except OSError as error:
        if error.errno not in _FULL:
            raise
    sweep_trash(run, backend)
    try:
        return _commit_once(run, backend, draft, max_shard_size)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        needed, free = draft.tensor_bytes, backend.free_bytes(run.path)
        raise DiskFullError(
            f"step {draft.step} could not be saved in {run.path}: the disk is full. It needs about {needed:,} bytes, "
            f"{free:,} are free after the trash was emptied. Older checkpoints are untouched. Free some space, or "
            "keep fewer checkpoints.",
            path=run.path,
            step=draft.step,
            needed=needed,
            free=free,
        ) from error


def rewrite_manifest(backend: Backend, path: Path, change: Callable[[Manifest], Manifest]) -> Checkpoint:
    """Replace a checkpoint's manifest atomically by a changed one, and give its new record.

    Raises FileNotFoundError, CorruptCheckpointError, UnsupportedFormatError, or the OSError that stopped it: the old
    manifest stays, unless only making the new one durable failed.
    """
    manifest = change(read_manifest(path))
    fresh = path / manifest_draft_name()
    try:
        _write(backend, fresh, encode(manifest))
        backend.rename(fresh, path / MANIFEST)
    except BaseException:
        with contextlib.suppress(OSError):
            backend.remove_file(fresh)
        raise
    backend.sync_folder(path)
    return manifest.as_checkpoint(path)


def _commit_once(run: RunFolder, backend: Backend, draft: Draft, max_shard_size: int) -> Checkpoint:
    staging = run.path / staging_name(draft.step)
    final = run.checkpoint(draft.step)
    aside: Path | None = None
    try:
        backend.make_folder(staging)
        files = _write_files(backend, staging, draft, max_shard_size)
        manifest = _manifest(draft, files)
        _write(backend, staging / MANIFEST, encode(manifest))
        backend.sync_folder(staging)
        aside = make_room(run, backend, final, draft.run_id)
        # From here on the checkpoint exists: a reader sees it whole, and nothing below may undo it.
        backend.rename(staging, final)
    except BaseException:
        if aside is not None:
            put_back(backend, aside, final)
        with contextlib.suppress(OSError):
            remove_tree(backend, staging)
        raise
    backend.sync_folder(run.path)
    try:
        settle_replaced(run, backend, final.name)
    except OSError as error:
        logger.warning("what %s replaced could not be put away (%s); it is tried again later", final, error)
    return manifest.as_checkpoint(final)


def _write_files(backend: Backend, staging: Path, draft: Draft, max_shard_size: int) -> dict[str, FileRecord]:
    snapshot = draft.snapshot
    files: dict[str, FileRecord] = {}
    for name, content in draft.assets.items():
        _make_parents(backend, staging, name, files)
        files[name] = _write(backend, staging / name, content)
    weight_map = _write_tensors(backend, staging, WEIGHTS, snapshot.weights, max_shard_size, files)
    if len(set(weight_map.values())) > 1:
        index = {"metadata": {"total_size": _total(snapshot.weights)}, "weight_map": weight_map}
        files[WEIGHTS_INDEX] = _write(backend, staging / WEIGHTS_INDEX, json_bytes(index))
    backend.make_folder(staging / TRAINING_STATE)
    _write_tensors(backend, staging, STATE_TENSORS, snapshot.tensors, max_shard_size, files)
    files[STATE_TREE] = _write(backend, staging / STATE_TREE, json_bytes(snapshot.state))
    parents = {parent for name in files for parent in (staging / name).parents}
    for folder in sorted(folder for folder in parents if staging in folder.parents):
        backend.sync_folder(folder)
    return files


def _write_tensors(
    backend: Backend,
    staging: Path,
    stem: str,
    tensors: Mapping[str, TensorBytes],
    max_shard_size: int,
    files: dict[str, FileRecord],
) -> dict[str, str]:
    shards = split_into_shards(tensors, max_shard_size)
    names = shard_names(stem, len(shards))
    weight_map: dict[str, str] = {}
    for name, shard in zip(names, shards, strict=True):
        plan = plan_tensor_file(shard)
        files[name] = _write_with(backend, staging / name, partial(write_tensor_file, plan=plan))
        weight_map.update(dict.fromkeys(shard, name))
    return weight_map


def _make_parents(backend: Backend, staging: Path, name: str, files: Mapping[str, FileRecord]) -> None:
    known = {parent for other in files for parent in (staging / other).parents}
    for parent in reversed((staging / name).parents):
        if staging in parent.parents and parent not in known:
            backend.make_folder(parent)


def _write(backend: Backend, path: Path, content: bytes) -> FileRecord:
    return _write_with(backend, path, lambda file: file.write(content))


def _write_with(backend: Backend, path: Path, fill: Callable[[DigestingFile], None]) -> FileRecord:
    raw = backend.create(path)
    try:
        file = DigestingFile(raw)
        fill(file)
        return file.finish()
    finally:
        raw.close()


def _manifest(draft: Draft, files: Mapping[str, FileRecord]) -> Manifest:
    return Manifest(
        step=draft.step,
        serial=draft.serial,
        run_id=draft.run_id,
        id=new_id() + new_id(),
        created=time.time(),
        files=files,
        epoch=draft.epoch,
        seconds=draft.seconds,
        metrics=draft.metrics,
        reasons=draft.reasons,
        config=draft.config,
        ties=draft.snapshot.ties,
        software=draft.software,
        healthy=draft.healthy,
    )


def _total(tensors: Mapping[str, TensorBytes]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
