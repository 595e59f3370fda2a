"""What a run goes on from, looked at before anything heavy is loaded; and whether the two belong together.

The engine verifies and restores the state later on. Here only small files are read, so that a run that cannot go on
is refused within a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    ConfigError,
    CorruptCheckpointError,
)
from milepost.policy.resuming import resume_candidates
from milepost.records import Checkpoint
from milepost.storage.catalog import find_checkpoint, read_catalog
from milepost.storage.layout import STATE_TREE, is_reserved
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.reader import read_text
from milepost.storage.verify import read_verified


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint to go on from: its configuration (YAML), and the small facts that the recipe keeps in its state."""

    checkpoint: Checkpoint
    configuration: str | None
    data: Mapping[str, str]
    planned_for: int
    budget: int


def find_origin(folder: Path, source: str | int) -> Origin | None:
    """The checkpoint that ``source`` (``auto``, ``never``, a step or a path) leads to; None for a fresh start.

    Raises CheckpointExistsError (``never`` in a folder that has some), CheckpointNotFoundError, CorruptCheckpointError.
    """
    catalog = read_catalog(folder)
    if source == "never":
        found = [entry.path.name for entry in (*catalog.checkpoints, *catalog.damaged)]
        if found:
            raise CheckpointExistsError(
                f"{folder} already holds checkpoints ({', '.join(found[-3:])}), and resume: never asks for a fresh "
                "start. Choose another output_dir, or resume: auto to go on.",
                path=folder,
            )
        return None
    if source == "auto":
        return _first_readable(resume_candidates(catalog.checkpoints, "auto"))
    if isinstance(source, int):
        candidates = resume_candidates(catalog.checkpoints, source)
        if not candidates and not any(entry.step == source for entry in catalog.damaged):
            names = ", ".join(checkpoint.name for checkpoint in catalog.checkpoints) or "none"
            raise CheckpointNotFoundError(
                f"resume: {source}: {folder} has no checkpoint of that step. It has {names}.", path=folder, step=source
            )
        return _first_readable(candidates)
    return _elsewhere(Path(source).expanduser())


def refuse_changed_settings(origin: Origin, changed: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise ConfigError naming the settings that differ from the checkpoint's, unless each is allowed to."""
    refused = [key for key in changed if not any(key == name or key.startswith(f"{name}.") for name in allowed)]
    if refused:
        raise ConfigError(
            f"{origin.checkpoint.path} was trained with other settings: {', '.join(refused)}. The run cannot go on bit "
            f"for bit with these changed. Put them back, or choose another output_dir for a new run, or allow it: "
            f"resume.allow_changes: [{', '.join(refused)}].",
            key=refused[0],
        )


def changed_data(origin: Origin, data: Mapping[str, str]) -> list[str]:
    """The data sets whose rows are not the ones that the checkpoint's run was trained on."""
    return [name for name, digest in data.items() if name in origin.data and origin.data[name] != digest]


def _elsewhere(path: Path) -> Origin | None:
    if not path.exists():
        raise CheckpointNotFoundError(f"resume: {path} does not exist. Name a step_N folder, or a run's.", path=path)
    catalog = read_catalog(path)
    if catalog.checkpoints:
        return _first_readable(resume_candidates(catalog.checkpoints, "auto"))
    checkpoint, manifest = find_checkpoint(path)
    return _read(checkpoint, manifest)


def _first_readable(candidates: Sequence[Checkpoint]) -> Origin | None:
    for checkpoint in candidates:
        try:
            return _read(checkpoint, read_manifest(checkpoint.path))
        except CorruptCheckpointError:
            # The engine passes it over too, and says so.
            continue
    return None


def _read(checkpoint: Checkpoint, manifest: Manifest) -> Origin:
    for name, record in manifest.files.items():
        if not is_reserved(name):
            for _ in read_verified(checkpoint.path, name, record, digests=True):
                pass
    tree: Any = json.loads(read_text(checkpoint.path, STATE_TREE, manifest)) if STATE_TREE in manifest.files else {}
    rates = tree.get("lr_scheduler", {}).get("state", {})
    try:
        return Origin(
            checkpoint,
            None if manifest.config is None else read_text(checkpoint.path, manifest.config, manifest),
            tree["counters"]["data"],
            rates["planned_for"],
            rates["budget"],
        )
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{checkpoint.path} was not written by this recipe (its training state lacks {error}), so it cannot be "
            "gone on from. To start from its weights, set model.path to that folder, in another output_dir.",
            key="resume",
            value=str(checkpoint.path),
        ) from None
