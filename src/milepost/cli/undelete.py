"""``milepost undelete``: bring a pruned checkpoint back from the trash."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from milepost.cli.reporting import age, existing_run, print_json, reports_errors
from milepost.cli.retention import AsJson, RunDir, changing
from milepost.errors import CheckpointNotFoundError
from milepost.storage.edits import editing
from milepost.storage.layout import RunFolder
from milepost.storage.trash import read_trash


@reports_errors
def undelete(
    run_dir: RunDir,
    step: Annotated[int | None, typer.Argument(help="The step; by default what was pruned last.")] = None,
    no_pin: Annotated[bool, typer.Option("--no-pin", help="Do not pin it; the rules may prune it again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring back what was pruned, and pin it. Only what the trash still has comes back: see trash_grace.

    Exit status: 0 it is back, 1 it is gone, or there is a checkpoint of that step again, 2 usage.

    Example: milepost undelete runs/alpaca 1500
    """
    from milepost.storage.trash import undelete as bring_back

    folder = existing_run(run_dir)
    there = read_trash(RunFolder(folder))
    if step is None and not there:
        raise CheckpointNotFoundError(
            f"the trash of {folder} is empty. To keep what is pruned for a while, set trash_grace.", path=folder
        )
    wanted = there[-1].step if step is None else step
    with changing(folder, recovering=False) as (run, backend), editing(run):
        back = bring_back(run, backend, wanted, now=time.time(), pin=not no_pin)
    if as_json:
        print_json({"step": back.step, "path": str(back.path), "pinned": back.pinned, "level": back.level.value})
    else:
        pinned = " It is pinned." if back.pinned else ""
        typer.echo(f"{back.name}, saved {age(back.created)} ago, is back in {folder}.{pinned}")
