"""The commit: files in a staging folder, forced to the disk, manifest last, one rename. See docs/format-v1.md."""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from milepost.errors import DiskFullError
from milepost.records import Checkpoint, Storable
from milepost.storage.backend import Backend, WritableFile
from milepost.storage.digests import FileRecord, chunk_digests
from milepost.storage.edits import editing
from milepost.storage.image import Content, Image, plan_image
from milepost.storage.json_text import json_bytes
from milepost.storage.layout import (
    MANIFEST,
    STATE_TREE,
    TRAINING_STATE,
    WEIGHTS_INDEX,
    RunFolder,
    is_reserved,
    is_safe_name,
    manifest_draft_name,
    new_id,
    staging_name,
)
from milepost.storage.manifest import Manifest, encode, read_manifest
from milepost.storage.streaming import StreamedContent
from milepost.storage.sweep import make_room, put_back, remove_tree, settle_replaced, sweep_trash

logger = logging.getLogger("milepost")

_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint to be: what its manifest will say, and what goes into its files (``assets``: name to bytes).

    ``state`` is a snapshot, or the live state. ``image`` and ``content`` are its layout and its bytes where those are
    in memory already; without them it is laid out and read while it is written, and must not change meanwhile.
    ``on_bytes`` is told the number of bytes each time some of the large files are written.
    """

    step: int
    serial: int
    run_id: str
    state: Storable
    image: Image | None = None
    content: Content | None = None
    assets: Mapping[str, bytes] = field(default_factory=dict)
    epoch: int | None = None
    seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    config: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    healthy: bool | None = None
    on_bytes: Callable[[int], object] = lambda count: None

    @property
    def tensor_bytes(self) -> int:
        """Bytes of tensor data, which is nearly all that the checkpoint will need."""
        tensors = (*self.state.weights.values(), *self.state.tensors.values())
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
        write_file(backend, fresh, encode(manifest))
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
        files, direct = _write_files(backend, staging, draft, max_shard_size)
        manifest = _manifest(draft, files, direct)
        write_file(backend, staging / MANIFEST, encode(manifest))
        backend.sync_folder(staging)
        with editing(run):
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


def _write_files(
    backend: Backend, staging: Path, draft: Draft, max_shard_size: int
) -> tuple[dict[str, FileRecord], bool]:
    """Write all files, then force them all to the disk; gives their records, and whether large ones went direct.

    In this order, because forcing the first one makes the disk do most of the work for the others.
    """
    image = plan_image(draft.state, max_shard_size) if draft.image is None else draft.image
    with contextlib.ExitStack() as stack:
        content: Content
        if draft.content is None:
            content = streamed = StreamedContent(image, image.sources(draft.state))
            stack.callback(streamed.close)
        else:
            content = draft.content
        open_files: list[WritableFile] = []
        files: dict[str, FileRecord] = {}
        backend.make_folder(staging / TRAINING_STATE)
        for file in image.files:
            raw = backend.create(staging / file.name, file.size)
            stack.callback(raw.close)
            open_files.append(raw)
            for number in file.chunks:
                data = content.chunk(number)
                raw.write(data)
                draft.on_bytes(data.nbytes)
        content.confirm()
        direct = all(raw.direct for raw in open_files)
        for name, text in _small_files(draft, image).items():
            _make_parents(backend, staging, name, files)
            raw = backend.create(staging / name)
            stack.callback(raw.close)
            open_files.append(raw)
            raw.write(text)
            files[name] = FileRecord(len(text), chunk_digests(text))
        for raw in open_files:
            raw.sync()
        for file in image.files:
            files[file.name] = FileRecord(file.size, tuple(content.digest(number) for number in file.chunks))
    parents = {parent for name in files for parent in (staging / name).parents}
    for folder in sorted(folder for folder in parents if staging in folder.parents):
        backend.sync_folder(folder)
    return files, direct


def _small_files(draft: Draft, image: Image) -> dict[str, bytes]:
    files = dict(draft.assets)
    if len(set(image.weight_map.values())) > 1:
        total = sum(tensor.nbytes for tensor in draft.state.weights.values())
        files[WEIGHTS_INDEX] = json_bytes({"metadata": {"total_size": total}, "weight_map": image.weight_map})
    files[STATE_TREE] = json_bytes(draft.state.state)
    return files


def _make_parents(backend: Backend, staging: Path, name: str, files: Mapping[str, FileRecord]) -> None:
    known = {staging / TRAINING_STATE, *(parent for other in files for parent in (staging / other).parents)}
    for parent in reversed((staging / name).parents):
        if staging in parent.parents and parent not in known:
            backend.make_folder(parent)


def write_file(backend: Backend, path: Path, content: bytes) -> None:
    """A new file with this content, forced to the disk; its name is durable with its folder. Raises OSError."""
    raw = backend.create(path)
    try:
        raw.write(content)
        raw.sync()
    finally:
        raw.close()


def _manifest(draft: Draft, files: Mapping[str, FileRecord], direct: bool) -> Manifest:
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
        ties=draft.state.ties,
        software={**draft.software, "io": "direct" if direct else "buffered"},
        healthy=draft.healthy,
    )
