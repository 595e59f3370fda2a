"""The checkpoint that a run goes on from: found, checked while it is read, restored."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from milepost.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    SaveFailedError,
    UnsupportedFormatError,
)
from milepost.policy.resuming import resume_candidates
from milepost.records import Checkpoint, Restorable
from milepost.storage.backend import Backend
from milepost.storage.catalog import Catalog, find_checkpoint, read_catalog
from milepost.storage.commit import rewrite_manifest
from milepost.storage.layout import MANIFEST, RunFolder, parse_step
from milepost.storage.log import Event, record
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.pointers import follow
from milepost.storage.reader import StoredState
from milepost.storage.sweep import supersede
from milepost.storage.verify import VerifyLevel

logger = logging.getLogger("milepost")


@dataclass(frozen=True, slots=True)
class Origin:
    """The checkpoint a run goes on from. ``inside`` says whether it is one of the run's own folder."""

    checkpoint: Checkpoint
    manifest: Manifest
    inside: bool


@dataclass(frozen=True, slots=True)
class Restorer:
    """How a checkpoint is checked, and what is then done with it (``restore``)."""

    verify: VerifyLevel
    restore: Callable[[Restorable], None]


def resume_from(run: RunFolder, backend: Backend, source: str | int | Path, restorer: Restorer) -> Origin | None:
    """Restore the checkpoint that ``source`` names, and give it; None where ``"auto"`` or ``"healthy"`` find none.

    Raises what ``restore`` raises; a CorruptCheckpointError of these two only if no older checkpoint is good. Raises
    CheckpointNotFoundError, CheckpointExistsError, UnsupportedFormatError.
    """
    catalog = read_catalog(run.path)
    if source in ("auto", "healthy"):
        return _newest_good(run, backend, catalog, restorer, healthy=source == "healthy")
    if isinstance(source, int):
        return _restore(_at(run, catalog, source), restorer, inside=True)
    # A link that somebody names is followed; links found in a run's folder are not.
    path = follow(Path(source))
    if path.parent == run.path and (step := parse_step(path.name)) is not None:
        return _restore(_at(run, catalog, step), restorer, inside=True)
    if catalog.checkpoints or catalog.damaged:
        raise CheckpointExistsError(
            f"{run.path} already holds checkpoints, so a run from {path} cannot start in it. Use resume='auto' to go "
            "on with what is there, or another folder for the new run.",
            path=run.path,
        )
    if not (path / MANIFEST).exists():
        found = read_catalog(path)
        if found.checkpoints or found.damaged:
            return _newest_good(RunFolder(path), None, found, restorer)
    return _restore(find_checkpoint(path)[0], restorer, inside=False)


def _newest_good(
    run: RunFolder, backend: Backend | None, catalog: Catalog, restorer: Restorer, *, healthy: bool = False
) -> Origin | None:
    for newer in (entry for entry in catalog.damaged if entry.newer_format is not None):
        raise UnsupportedFormatError(
            f"{newer.path} was {newer.reason}. Install a newer Milepost to go on with this run.",
            path=newer.path,
            version=newer.newer_format,
        )
    problems = []
    for entry in (*catalog.damaged, *catalog.ignored):
        if entry.passed_over is None:
            logger.warning("passed over %s: %s", entry.path, entry.reason)
    # What was damaged at an earlier resume may be whole now: files come back from a copy.
    earlier = {entry.path: entry.passed_over for entry in catalog.damaged if entry.passed_over is not None}
    problems += [f"{entry.path}: {entry.reason}" for entry in catalog.damaged if entry.path not in earlier]
    known = sorted((*catalog.checkpoints, *earlier.values()), key=lambda checkpoint: checkpoint.serial)
    for checkpoint in resume_candidates(known, "healthy" if healthy else "auto"):
        try:
            origin = _restore(checkpoint, restorer, inside=backend is not None)
            if checkpoint.healthy is False:
                logger.warning("%s is marked unhealthy; 'healthy' goes on from one that is not", checkpoint.path)
        except CorruptCheckpointError as error:
            reason = "; ".join(error.problems)
            logger.warning("passed over %s: %s", checkpoint.path, reason)
            problems.append(f"{checkpoint.path}: {reason}")
            if backend is not None and not error.unread:
                _mark(backend, checkpoint, reason)
            continue
        if backend is not None and checkpoint.path in earlier:
            logger.warning("%s can be used again", checkpoint.path)
            _mark(backend, checkpoint, None)
        return origin
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


def _mark(backend: Backend, checkpoint: Checkpoint, damage: str | None) -> None:
    # Durable, so that retention never counts it among the good ones, in this process or in later ones.
    with contextlib.suppress(OSError, CorruptCheckpointError):
        rewrite_manifest(backend, checkpoint.path, lambda manifest: replace(manifest, damage=damage))


def _restore(checkpoint: Checkpoint, restorer: Restorer, *, inside: bool) -> Origin:
    if not checkpoint.resumable:
        raise CheckpointNotFoundError(
            f"{checkpoint.path} holds weights only, and a run cannot be resumed from those. Choose a full checkpoint, "
            "or load the weights with milepost.load_weights.",
            path=checkpoint.path,
            step=checkpoint.step,
        )
    manifest = read_manifest(checkpoint.path)
    restorer.restore(StoredState(checkpoint.path, manifest, verify=restorer.verify))
    return Origin(checkpoint, manifest, inside)


def _at(run: RunFolder, catalog: Catalog, step: int) -> Checkpoint:
    found = catalog.at(step)
    if found is not None:
        return found
    for entry in catalog.damaged:
        if entry.step == step and entry.passed_over is not None:
            return entry.passed_over
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

    Those that cannot be read now go too if their steps are later: they may be readable at the next resume. It is done
    before the first new update, so that a crash cannot undo the choice. Raises SaveFailedError.
    """
    catalog = read_catalog(run.path)
    passed_over = [entry.passed_over for entry in catalog.damaged if entry.passed_over is not None]
    later = [other for other in (*catalog.checkpoints, *passed_over) if other.serial > checkpoint.serial]
    unreadable = [entry for entry in catalog.damaged if entry.passed_over is None and entry.step > checkpoint.step]
    why = f"the run went back to step {checkpoint.step}"
    gone = [(entry.step, 0) for entry in unreadable] + [(other.step, other.size) for other in later]
    events = [Event(time.time(), "superseded", step, why, size) for step, size in gone]
    try:
        record(run, backend, events)
        supersede(run, backend, [*unreadable, *later])
    except OSError as error:
        raise SaveFailedError(
            f"the checkpoints after {checkpoint.path} could not be put aside: {error}. Nothing is lost; try again.",
            path=run.path,
        ) from error
    return max((other.serial for other in later), default=checkpoint.serial)
