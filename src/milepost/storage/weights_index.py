"""``model.safetensors.index.json`` anew from the shards, where it is damaged or absent."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from milepost.errors import CorruptCheckpointError
from milepost.storage.backend import Backend
from milepost.storage.commit import rewrite_manifest, write_file
from milepost.storage.digests import FileRecord, chunk_digests
from milepost.storage.edits import editing
from milepost.storage.json_text import json_bytes
from milepost.storage.layout import WEIGHTS_INDEX, RunFolder, is_weights_file, manifest_draft_name
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.reading import Reading
from milepost.storage.tensor_files import read_header


def repair_index(run: RunFolder, backend: Backend, checkpoint: Path) -> bool:
    """Rebuild the index of a checkpoint if it is not as its manifest says; gives whether that was needed.

    The shards are verified first. Raises CorruptCheckpointError if they, or the manifest, are damaged, OSError.
    """
    with editing(run):
        manifest = read_manifest(checkpoint)
        shards = sorted(filter(is_weights_file, manifest.files))
        if len(shards) < 2 or _is_whole(checkpoint, manifest):
            return False
        content = _index(checkpoint, manifest, shards)
        draft = checkpoint / manifest_draft_name()
        try:
            write_file(backend, draft, content)
            backend.rename(draft, checkpoint / WEIGHTS_INDEX)
        except BaseException:
            with contextlib.suppress(OSError):
                backend.remove_file(draft)
            raise
        backend.sync_folder(checkpoint)
        entry = FileRecord(len(content), chunk_digests(content))
        if manifest.files.get(WEIGHTS_INDEX) != entry:
            rewrite_manifest(backend, checkpoint, lambda old: replace(old, files={**old.files, WEIGHTS_INDEX: entry}))
        return True


def _is_whole(checkpoint: Path, manifest: Manifest) -> bool:
    if WEIGHTS_INDEX not in manifest.files:
        return False
    try:
        Reading(checkpoint, {WEIGHTS_INDEX: manifest.files[WEIGHTS_INDEX]}, digests=True, rest=True).read({})
    except CorruptCheckpointError:
        return False
    return True


def _index(checkpoint: Path, manifest: Manifest, shards: list[str]) -> bytes:
    weight_map: dict[str, str] = {}
    total = 0
    Reading(checkpoint, {shard: manifest.files[shard] for shard in shards}, digests=True, rest=True).read({})
    for shard in shards:
        places = read_header(checkpoint / shard)
        weight_map.update({place.name: shard for place in places})
        total += sum(place.end - place.start for place in places)
    return json_bytes({"metadata": {"total_size": total}, "weight_map": weight_map})
