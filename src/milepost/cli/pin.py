"""``milepost pin`` and ``unpin``: exempt a checkpoint from every rule, and let the rules decide again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milepost.cli.reporting import existing_run, print_json, reports_errors
from milepost.cli.retention import AsJson, RunDir, changing, checkpoint_at
from milepost.storage.edits import editing

Step = Annotated[int | None, typer.Argument(help="The checkpoint's step; the newest one's by default.")]


@reports_errors
def pin(run_dir: RunDir, step: Step = None, as_json: AsJson = False) -> None:
    """Keep a checkpoint whatever the rules say. A live run sees it at once.

    Exit status: 0 pinned, 1 failure (there is no such checkpoint), 2 usage.

    Example: milepost pin runs/alpaca 1500
    """
    _set(run_dir, step, pinned=True, as_json=as_json)


@reports_errors
def unpin(run_dir: RunDir, step: Step = None, as_json: AsJson = False) -> None:
    """Let the rules decide again about a checkpoint, at the next save or `milepost prune`.

    Exit status: 0 not pinned, 1 failure (there is no such checkpoint), 2 usage.

    Example: milepost unpin runs/alpaca 1500
    """
    _set(run_dir, step, pinned=False, as_json=as_json)


def _set(run_dir: Path, step: int | None, *, pinned: bool, as_json: bool) -> None:
    from milepost.keeping import Keeper

    with changing(existing_run(run_dir)) as (run, backend), editing(run):
        _, found = checkpoint_at(run, step)
        changed = found.pinned != pinned
        if changed:
            Keeper(run, backend, ()).change(found, {"pinned": pinned})
    if as_json:
        print_json({"step": found.step, "path": str(found.path), "pinned": pinned, "changed": changed})
    else:
        typer.echo(f"{found.name} is {'' if changed else 'already '}{'pinned' if pinned else 'not pinned'}.")
