"""Changes to committed checkpoints, one process at a time: a live run and the command line beside it.

The lock is held for the moment of a change, not for the life of a run (that is ``lock.RunLock``). Whoever holds it
reads the catalog again before acting, so that each sees what the other did.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from milepost.storage.layout import RunFolder

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
# Record locks belong to the process, so threads need one of their own. Reentrant: a change may be part of a larger.
_threads = threading.RLock()
_held: dict[Path, int] = {}


@contextmanager
def editing(run: RunFolder) -> Iterator[None]:
    """Hold the right to change what is committed; waits for another process's change to end.

    Where the file system knows no locks, or no run was ever opened for writing, nothing is held. Raises OSError.
    """
    with _threads:
        if run.path in _held or not run.control.is_dir():
            yield
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(run.edits, flags, 0o666)
        try:
            _lock(descriptor)
            _held[run.path] = os.getpid()
            yield
        finally:
            _held.pop(run.path, None)
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
