"""Finding the checkpoint that a run goes on from, and reading it: catalog, choice, verification, restore."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from milepost.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    UnsupportedFormatError,
)
from milepost.policy.resuming import resume_candidates
from milepost.records import Checkpoint, Snapshot
from milepost.storage.backend import Backend
from milepost.storage.catalog import Catalog, find_checkpoint, read_catalog
from milepost.storage.commit import rewrite_manifest
from milepost.storage.layout import RunFolder, parse_step
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.reader import read_snapshot
from milepost.storage.sweep import supersede
from milepost.storage.verify import VerifyLevel

logger = logging.getLogger("milepost")


@dataclass(frozen=True, slots=True)
class Origin:
    """The checkpoint a run goes on from. ``inside`` says whether it is one of the run's own folder."""

    checkpoint: Checkpoint
    manifest: Manifest
    snapshot: Snapshot
    inside: bool


def find_origin(run: RunFolder, backend: Backend, source: str | int | Path, verify: VerifyLevel) -> Origin | None:
    """The checkpoint that ``source`` names, verified and read; None where ``"auto"`` or ``"healthy"`` find none.

    Raises CheckpointNotFoundError, CheckpointExistsError, CorruptCheckpointError (for these two only if no good one
    is left), UnsupportedFormatError.
    """
    catalog = read_catalog(run.path)
    if source in ("auto", "healthy"):
        return _newest_good(run, backend, catalog, verify, healthy=source == "healthy")
    if isinstance(source, int):
        return _read(_at(run, catalog, source), verify, inside=True)
    # A link that somebody names is followed; links found in a run's folder are not.
    path = Path(source).expanduser().resolve()
    if path.parent == run.path and (step := parse_step(path.name)) is not None:
        return _read(_at(run, catalog, step), verify, inside=True)
    if catalog.checkpoints or catalog.damaged:
        raise CheckpointExistsError(
            f"{run.path} already holds checkpoints, so a run from {path} cannot start in it. Use resume='auto' to go "
            "on with what is there, or another folder for the new run.",
            path=run.path,
        )
    if parse_step(path.name) is None and (found := read_catalog(path)).checkpoints:
        return _newest_good(RunFolder(path), None, found, verify)
    return _read(find_checkpoint(path)[0], verify, inside=False)


def _newest_good(
    run: RunFolder, backend: Backend | None, catalog: Catalog, verify: VerifyLevel, *, healthy: bool = False
) -> Origin | None:
    for newer in (entry for entry in catalog.damaged if entry.newer_format is not None):
        raise UnsupportedFormatError(
            f"{newer.path} was {newer.reason}. Install a newer Milepost to go on with this run.",
            path=newer.path,
            version=newer.newer_format,
        )
    problems = [f"{entry.path}: {entry.reason}" for entry in catalog.damaged]
    for entry in (*catalog.damaged, *catalog.ignored):
        logger.warning("passed over %s: %s", entry.path, entry.reason)
    for checkpoint in resume_candidates(catalog.checkpoints, "healthy" if healthy else "auto"):
        try:
            origin = _read(checkpoint, verify, inside=backend is not None)
            if checkpoint.healthy is False:
                logger.warning("%s is marked unhealthy; 'healthy' goes on from one that is not", checkpoint.path)
            return origin
        except CorruptCheckpointError as error:
            reason = "; ".join(error.problems)
            logger.warning("passed over %s: %s", checkpoint.path, reason)
            problems.append(f"{checkpoint.path}: {reason}")
            if backend is not None:
                _mark_damaged(backend, checkpoint, reason)
    if problems:
        raise CorruptCheckpointError(
            f"no checkpoint in {run.path} can be used, and starting again from step 0 would hide that: "
            + "; ".join(problems)
            + ". Restore one from a copy, or start a new run in another folder.",
            path=run.path,
            problems=problems,
        )
    if catalog.checkpoints:
        raise CheckpointNotFoundError(
            f"{run.path} has no {'healthy' if healthy else 'full'} checkpoint to go on from, and starting again from "
            f"step 0 would hide that. It has {_steps(catalog.checkpoints)}: resume from one of these steps, or start a "
            "new run in another folder.",
            path=run.path,
        )
    return None


def _mark_damaged(backend: Backend, checkpoint: Checkpoint, reason: str) -> None:
    # Durable, so that retention never counts it among the good ones, in this process or in later ones.
    with contextlib.suppress(OSError, CorruptCheckpointError):
        rewrite_manifest(backend, checkpoint.path, lambda manifest: replace(manifest, damage=reason))


def _read(checkpoint: Checkpoint, verify: VerifyLevel, *, inside: bool) -> Origin:
    if not checkpoint.resumable:
        raise CheckpointNotFoundError(
            f"{checkpoint.path} holds weights only, and a run cannot be resumed from those. Choose a full checkpoint, "
            "or load the weights with milepost.load_weights.",
            path=checkpoint.path,
            step=checkpoint.step,
        )
    manifest = read_manifest(checkpoint.path)
    return Origin(checkpoint, manifest, read_snapshot(checkpoint.path, manifest, verify=verify), inside)


def _at(run: RunFolder, catalog: Catalog, step: int) -> Checkpoint:
    found = catalog.at(step)
    if found is not None:
        return found
    for entry in catalog.damaged:
        if entry.step == step and entry.newer_format is not None:
            raise UnsupportedFormatError(
                f"{entry.path} was {entry.reason}", path=entry.path, version=entry.newer_format
            )
        if entry.step == step:
            raise CorruptCheckpointError(f"{entry.path}: {entry.reason}", path=entry.path, problems=[entry.reason])
    raise CheckpointNotFoundError(
        f"{run.path} has no checkpoint of step {step}. It has {_steps(catalog.checkpoints)}.", path=run.path, step=step
    )


def _steps(checkpoints: Sequence[Checkpoint]) -> str:
    return ", ".join(checkpoint.name for checkpoint in checkpoints) or "none"


def refuse_used(run: RunFolder) -> None:
    """Raise CheckpointExistsError if the folder holds checkpoints, which a run that begins there would mix with."""
    found = [path.name for path in read_catalog(run.path).folders.values()]
    if found:
        raise CheckpointExistsError(
            f"{run.path} already holds checkpoints ({', '.join(found[-3:])}). Call resume() before the first step to "
            "go on with that run, or use another folder for a new one.",
            path=run.path,
        )


def rewind(run: RunFolder, backend: Backend, checkpoint: Checkpoint) -> int:
    """Put the checkpoints committed after this one aside, durably; gives the highest serial among them (or its own).

    It is done before the first new update, so that a crash cannot undo the choice.
    """
    later = [other for other in read_catalog(run.path).checkpoints if other.serial > checkpoint.serial]
    supersede(run, backend, later)
    return max((other.serial for other in later), default=checkpoint.serial)
