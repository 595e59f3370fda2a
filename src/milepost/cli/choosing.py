"""The checkpoint that a command line means: a step of a run, or its newest."""

from __future__ import annotations

from pathlib import Path

from milepost.errors import CheckpointNotFoundError
from milepost.storage.catalog import read_catalog


def checkpoint_folder(run: Path, step: int | None) -> Path:
    """The folder of a step's checkpoint, damaged or not; of the newest one without a step.

    Raises CheckpointNotFoundError naming the steps there are.
    """
    catalog = read_catalog(run)
    if step is None and catalog.newest is not None:
        return catalog.newest.path
    if step in catalog.folders:
        return catalog.folders[step]
    there = ", ".join(map(str, sorted(catalog.folders))) or "none"
    wanted = "no checkpoints" if step is None else f"no checkpoint of step {step}"
    raise CheckpointNotFoundError(f"{run} has {wanted}. Steps that it has: {there}.", path=run, step=step)
