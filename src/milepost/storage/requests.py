"""Requests to save: one file each in ``.milepost/requests/``, its name being all that it says.

Making the file is the request, and removing it the last of its answer: a request is removed only after a checkpoint
whose reasons name it is durable. A process killed in between leaves both, and whoever opens the run next removes the
request then. So none is lost, and none is answered twice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from milepost.errors import MilepostError
from milepost.policy.asking import answered_requests
from milepost.storage.backend import Backend, LocalBackend
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder, new_id, parse_request, request_name
from milepost.storage.sweep import ensure_folder


def ask_to_save(run: RunFolder) -> str:
    """Ask the live run in a folder to save; gives the request's id.

    Raises MilepostError if the run answers no requests.
    """
    backend, request = LocalBackend(), new_id()
    try:
        backend.create(run.requests / request_name(request)).close()
    except (FileNotFoundError, NotADirectoryError):
        raise MilepostError(
            f"the run in {run.path} answers no requests: OnRequest() is not among the schedules of its "
            "CheckpointManager. A signal does it too, if the manager watches them: kill -USR1 PID."
        ) from None
    backend.sync_folder(run.requests)
    return request


def pending_requests(run: RunFolder) -> tuple[str, ...]:
    """Ids of the requests that nobody has removed; none where the run takes none."""
    try:
        names = os.listdir(run.requests)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(request for name in names if (request := parse_request(name)) is not None))


def begin_answering(run: RunFolder, backend: Backend) -> None:
    """Take requests from now on. Those that a checkpoint has answered already are removed. Raises OSError."""
    ensure_folder(backend, run.requests)
    if waiting := pending_requests(run):
        answered = {each for found in read_catalog(run.path).checkpoints for each in answered_requests(found)}
        remove_requests(run, backend, answered.intersection(waiting))


def refuse_requests(run: RunFolder, backend: Backend) -> None:
    """Take no requests from now on: those of an earlier run in this folder would wait for ever. Raises OSError."""
    if run.requests.is_symlink() or not run.requests.is_dir():
        return
    remove_requests(run, backend, pending_requests(run))
    # Somebody's own file may lie in it.
    with contextlib.suppress(OSError):
        backend.remove_folder(run.requests)


def remove_requests(run: RunFolder, backend: Backend, requests: Collection[str]) -> None:
    """Remove requests; one that is gone already is no error. Raises OSError."""
    for request in requests:
        with contextlib.suppress(FileNotFoundError):
            backend.remove_file(run.requests / request_name(request))
