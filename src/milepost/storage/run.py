"""Opening a run's folder for writing: made if absent, locked, and cleared of what a killed run left behind."""

from __future__ import annotations

from pathlib import Path

from milepost.errors import SaveFailedError
from milepost.storage.backend import Backend
from milepost.storage.layout import RunFolder
from milepost.storage.lock import RunLock
from milepost.storage.sweep import ensure_folder, recover


def open_run(folder: Path, backend: Backend) -> tuple[RunFolder, RunLock]:
    """The run's folder and the right to write in it.

    Raises RunLockedError if a live manager has it, SaveFailedError if it cannot be made or written to.
    """
    try:
        path = folder.expanduser().resolve()
        _make_folders(backend, path)
        run = RunFolder(path)
        ensure_folder(backend, run.control)
        lock = RunLock(path, run.lock)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        recover(run, backend)
    except OSError as error:
        lock.release()
        raise _unwritable(folder, error) from error
    except BaseException:
        lock.release()
        raise
    return run, lock


def _make_folders(backend: Backend, path: Path) -> None:
    if path.is_dir():
        return
    _make_folders(backend, path.parent)
    try:
        backend.make_folder(path)
    except FileExistsError:
        # Another process made it in between; if it is no folder, the next use of it says so.
        if not path.is_dir():
            raise
    backend.sync_folder(path.parent)


def _unwritable(folder: Path, error: OSError) -> SaveFailedError:
    return SaveFailedError(
        f"the run folder {folder} cannot be written to: {error.strerror} ({error.filename or folder}). "
        "Choose a folder on a disk that you may write to.",
        path=folder,
    )
