"""``milepost log``: what became of a run's checkpoints."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from milepost.cli.reporting import existing_run, print_json, reports_errors
from milepost.cli.retention import AsJson, RunDir
from milepost.cli.table import table
from milepost.quantities import format_size
from milepost.storage.layout import RunFolder
from milepost.storage.log import read_log


@reports_errors
def log(
    run_dir: RunDir,
    step: Annotated[int | None, typer.Argument(help="One checkpoint's step; all of them by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what was pruned, demoted, swept, superseded, undeleted, pinned and unpinned: when, and why.

    Exit status: 0, also if there is nothing to list; 1 failure, 2 usage.

    Example: milepost log runs/alpaca
    """
    folder = existing_run(run_dir)
    events = [event for event in read_log(RunFolder(folder)) if step is None or event.step == step]
    if as_json:
        print_json([asdict(event) for event in events])
        return
    if not events:
        typer.echo(f"nothing has become of {'any checkpoint' if step is None else f'step {step}'} in {folder}.")
        return
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time)),
            "" if event.step is None else str(event.step),
            event.what,
            format_size(event.bytes) if event.bytes else "",
            event.why,
        )
        for event in events
    ]
    typer.echo("\n".join(table(("time", "step", "what", "bytes", "because"), rows, left=("what",))))
