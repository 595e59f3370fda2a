"""What a run goes on from, looked at before anything heavy is loaded; and whether the two belong together.

The engine verifies and restores the state later on. Here only small files are read, so that a run that cannot go on
is refused within a second.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from milepost.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    ConfigError,
    CorruptCheckpointError,
    SaveFailedError,
)
from milepost.policy.resuming import resume_candidates
from milepost.records import Checkpoint
from milepost.storage.backend import LocalBackend
from milepost.storage.catalog import find_checkpoint, read_catalog
from milepost.storage.layout import STATE_TREE, is_reserved
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.pointers import follow
from milepost.storage.reader import read_text
from milepost.storage.reading import Reading
from milepost.storage.run import open_run
from milepost.storage.verify import verify_checkpoint


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint to go on from: its configuration (YAML), its data's fingerprint, and its run's length in steps.

    ``changed`` are the settings that are meant to differ now.
    """

    checkpoint: Checkpoint
    configuration: str | None
    data: str
    budget: int
    changed: tuple[str, ...] = ()


def find_origin(folder: Path, source: str | int) -> Origin | None:
    """The checkpoint that ``source`` (``auto``, ``never``, a step or a path) leads to; None for a fresh start.

    Raises CheckpointExistsError (``never`` in a folder that has some), CheckpointNotFoundError, CorruptCheckpointError.
    """
    try:
        catalog = read_catalog(folder)
    except OSError as error:
        raise SaveFailedError(
            f"output_dir: {folder} cannot be written to or read: {error.strerror}. Choose a folder that you may use.",
            path=folder,
        ) from error
    if source == "never":
        found = [checkpoint.name for checkpoint in catalog.checkpoints] + [fault.path.name for fault in catalog.damaged]
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
    return _elsewhere(folder, Path(source).expanduser())


def check_settings(origin: Origin, changed: Sequence[str], allowed: Sequence[str]) -> Origin:
    """The origin, knowing which settings differ from its own. Raises ConfigError naming those not ``allowed`` to."""
    refused = [key for key in changed if not any(key == name or key.startswith(f"{name}.") for name in allowed)]
    if refused:
        raise ConfigError(
            f"{origin.checkpoint.path} was trained with other settings: {', '.join(refused)}. The run cannot go on bit "
            "for bit with these changed. Put them back, or choose another output_dir for a new run, or allow it: "
            f"resume.allow_changes: [{', '.join(refused)}].",
            key=refused[0],
        )
    return replace(origin, changed=tuple(changed))


def refuse_changed_data(origin: Origin, fingerprint: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError if the training rows, as tokens, are not the checkpoint's, and no change of data is allowed."""
    if origin.data != fingerprint and not any(name.split(".")[0] in ("dataset", "tokenizer") for name in allowed):
        raise ConfigError(
            f"{origin.checkpoint.path} was trained on other rows than the data set gives now, under the same settings: "
            "a file has changed. Put the old one back, or choose another output_dir for a new run, or allow it, and "
            "a new epoch of the new rows begins: resume.allow_changes: [dataset].",
            key="dataset",
        )


def is_whole(origin: Origin) -> bool:
    """Whether every file of the checkpoint is as it was written."""
    return not verify_checkpoint(origin.checkpoint.path)


def check_run_folder(folder: Path) -> None:
    """Raise RunLockedError or SaveFailedError now, if the manager would after the model was loaded."""
    _, lock = open_run(folder, LocalBackend())
    lock.release()


def _elsewhere(folder: Path, path: Path) -> Origin | None:
    if not path.exists():
        raise CheckpointNotFoundError(f"resume: {path} does not exist. Name a step_N folder, or a run's.", path=path)
    path = follow(path)
    inside = path.parent == folder.resolve()
    if not inside and (found := read_catalog(folder).newest) is not None:
        raise CheckpointExistsError(
            f"{folder} already holds checkpoints (the newest is {found.name}), so a run from {path} cannot start in "
            "it. Use resume: auto to go on with what is there, or another output_dir.",
            path=folder,
        )
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
    if not checkpoint.resumable:
        raise CheckpointNotFoundError(
            f"resume: {checkpoint.path} holds weights only, and a run cannot be resumed from those. Choose a full "
            "checkpoint; or set model.path to that folder, in another output_dir, to start from its weights.",
            path=checkpoint.path,
            step=checkpoint.step,
        )
    beside = {name: record for name, record in manifest.files.items() if not is_reserved(name)}
    Reading(checkpoint.path, beside, digests=True, rest=True).read({})
    tree: Any = json.loads(read_text(checkpoint.path, STATE_TREE, manifest)) if STATE_TREE in manifest.files else {}
    try:
        return Origin(
            checkpoint,
            None if manifest.config is None else read_text(checkpoint.path, manifest.config, manifest),
            tree["data"]["state"]["fingerprint"],
            tree["lr_scheduler"]["state"]["budget"],
        )
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{checkpoint.path} was not written by this recipe (its training state lacks {error}), so it cannot be "
            "gone on from. To start from its weights, set model.path to that folder, in another output_dir.",
            key="resume",
            value=str(checkpoint.path),
        ) from None
