"""``milepost save-now``: ask a live run for a checkpoint."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from milepost.cli.reporting import existing_run, print_json, reports_errors
from milepost.errors import MilepostError
from milepost.policy.asking import answer_to
from milepost.records import Checkpoint
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.lock import live_holder
from milepost.storage.requests import ask_to_save, pending_requests

_SECONDS_BETWEEN_LOOKS = 0.1


@reports_errors
def save_now(
    run_dir: Annotated[Path, typer.Argument(help="The run's folder (output_dir).")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the checkpoint is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask a live run to save at the end of its step. Exit status 1 if no run is live in the folder.

    Example: milepost save-now runs/quickstart --wait
    """
    run = RunFolder(existing_run(run_dir).resolve())
    holder = live_holder(run.path, run.lock)
    if holder is None:
        raise MilepostError(f"no run is live in {run.path}, so nobody would save. `milepost ls` lists what it saved.")
    request = ask_to_save(run)
    told: dict[str, Any] = {"run": str(run.path), "request": request, "pid": holder.get("pid")}
    if not wait:
        if as_json:
            print_json(told)
        else:
            typer.echo(f"asked process {holder.get('pid')}, which saves at the end of its step")
        return
    with _spinner(f"waiting for a checkpoint in {run.path}", shown=not as_json):
        checkpoint = _answer(run, request)
    if as_json:
        print_json({**told, "step": checkpoint.step, "path": str(checkpoint.path)})
    else:
        typer.echo(f"saved {checkpoint.path}")


def _answer(run: RunFolder, request: str) -> Checkpoint:
    """The checkpoint that answers a request. Raises MilepostError if the run ends without one."""
    while True:
        # In this order: what is saved between two of these looks is seen by the later one.
        alive = live_holder(run.path, run.lock) is not None
        waiting = request in pending_requests(run)
        catalog = read_catalog(run.path)
        found = answer_to(request, catalog.checkpoints)
        if found is None and not waiting:
            # Answered by the run's last step, or by a checkpoint that was pruned since: the newest is no older.
            found = catalog.newest
        if found is not None:
            return found
        if not alive:
            raise MilepostError(
                f"the run in {run.path} ended without a save. It answers the request when it is started again."
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextmanager
def _spinner(text: str, *, shown: bool) -> Iterator[None]:
    if not shown or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
