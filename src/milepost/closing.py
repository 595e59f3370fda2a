"""Waiting for the last write, so that people see how far it is."""

from __future__ import annotations

import logging
import sys

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from milepost.saver import Saver

logger = logging.getLogger("milepost")

_PATIENCE = 1.0
_INTERVAL = 0.1


def finish(saver: Saver) -> None:
    """Return when nothing is being written; after a second, say so, on a terminal with a progress bar."""
    if saver.wait(_PATIENCE):
        return
    if not sys.stderr.isatty():
        logger.info("waiting for the checkpoint of step %s to be written", saver.last_step)
        saver.wait()
        return
    columns = (TextColumn("writing step {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(str(saver.last_step))
        while not saver.wait(_INTERVAL):
            done, total = saver.progress
            progress.update(task, completed=done, total=total or None)
