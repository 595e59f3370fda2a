"""``milepost demote``: give back a checkpoint's training state, and keep its weights."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from milepost.cli.reporting import existing_run, print_json, reports_errors
from milepost.cli.retention import AsJson, RunDir, changing, checkpoint_at
from milepost.errors import ConfigError
from milepost.policy.retention import Facts, plan_retention
from milepost.quantities import format_size
from milepost.records import Level
from milepost.storage.edits import editing
from milepost.storage.levels import demote as reduce_to
from milepost.storage.log import Event, record


@reports_errors
def demote(
    run_dir: RunDir,
    step: Annotated[int, typer.Argument(help="The checkpoint's step.")],
    as_json: AsJson = False,
) -> None:
    """Drop a checkpoint's training state. It opens with from_pretrained as before, and cannot be resumed from.

    This cannot be undone. The newest checkpoint, the newest that can be resumed, and pinned ones are refused.

    Exit status: 0 it holds weights only, 1 failure (there is no such checkpoint), 2 usage, or refused.

    Example: milepost demote runs/alpaca 1500
    """
    with changing(existing_run(run_dir)) as (run, backend), editing(run):
        catalog, found = checkpoint_at(run, step)
        decision = plan_retention(catalog.checkpoints, (), Facts(run_id=found.run_id)).about(found)
        if decision.bound and found.resumable:
            raise ConfigError(
                f"{found.path} stays whole: {'; '.join(decision.reasons)}. "
                + ("Unpin it first." if found.pinned else "Choose an older one."),
                key="step",
                value=step,
            )
        freed = found.size - found.size_at(Level.WEIGHTS)
        if found.resumable:
            record(run, backend, [Event(time.time(), "demoted", step, "asked for", freed)])
        left = reduce_to(run, backend, found)
    if as_json:
        print_json({"step": step, "path": str(left.path), "level": left.level.value, "frees": freed})
    else:
        typer.echo(f"{left.name} holds weights only; {format_size(freed)} freed.")
