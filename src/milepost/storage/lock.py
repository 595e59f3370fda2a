"""One writer for a run: a POSIX record lock on ``.milepost/lock``, with the holder's name in it.

A record lock ends with its process, also when that process's forked workers live on (they do not inherit it), so a
dead run's lock is recognised at once. The file says who holds it: host, boot, process id and start time; where the
file system knows no locks, these alone decide.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import struct
import time
from pathlib import Path
from typing import Any

from milepost.errors import RunLockedError

# What is in the lock file may be anything; the year 9999 is the last that can be spelled.
_END_OF_TIME = 253_370_764_800.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
# Closing any descriptor of a locked file drops the process's record lock, so a folder that this process holds must
# be found here, before its lock file is opened again.
_held: dict[tuple[int, int], int] = {}


class RunLock:
    """The right to write in a run's folder, held from construction until ``release``. Raises RunLockedError."""

    def __init__(self, folder: Path, lock_file: Path) -> None:
        found = os.stat(folder)
        self._key = (found.st_dev, found.st_ino)
        self._pid = os.getpid()
        if _held.get(self._key) == self._pid:
            raise RunLockedError(
                f"{folder} is already in use by a CheckpointManager of this process. Close that one first.",
                path=folder,
                pid=self._pid,
            )
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(lock_file, flags, 0o666)
        try:
            self._acquire(folder, lock_file)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(_identity()).encode(), 0)
        except BaseException:
            os.close(self._descriptor)
            raise
        _held[self._key] = self._pid

    def release(self) -> None:
        """Give the right back; a second call, or one in a forked child, does nothing."""
        if _held.get(self._key) != self._pid or os.getpid() != self._pid:
            return
        del _held[self._key]
        try:
            os.ftruncate(self._descriptor, 0)
        finally:
            os.close(self._descriptor)

    def _acquire(self, folder: Path, lock_file: Path) -> None:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            taken = error.errno in (errno.EACCES, errno.EAGAIN)
            if not taken and error.errno not in _NO_LOCKS:
                raise
        holder = _read_holder(self._descriptor)
        if taken or _may_be_alive(holder):
            raise RunLockedError(_sentence(folder, lock_file, holder), path=folder, pid=holder.get("pid"))


def live_holder(folder: Path, lock_file: Path) -> dict[str, Any] | None:
    """What is known of the process that holds a run's folder (``pid``, ``host``, …); None if nobody does.

    Looks only: a run that starts at this moment is not in its way. Raises OSError if the lock file cannot be read.
    """
    try:
        found = os.stat(folder)
        # Closing the file, below, would drop a lock that this process holds itself.
        if _held.get((found.st_dev, found.st_ino)) == os.getpid():
            return _identity()
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        holder = _read_holder(descriptor)
        try:
            return holder if _is_locked(descriptor) else None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return holder if _may_be_alive(holder) else None
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    # struct flock, all of the file: the order of its fields is the system's.
    if platform.system() == "Darwin":
        layout, question, at = "qqihh", (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET), 3
    else:
        layout, question, at = "hhqqi", (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0), 0
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(layout, *question))
    return bool(struct.unpack(layout, answer)[at] != fcntl.F_UNLCK)


def _identity() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "boot": _boot_id(),
        "pid": os.getpid(),
        "started": _start_time(os.getpid()),
        "since": time.time(),
    }


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _may_be_alive(holder: dict[str, Any]) -> bool:
    if not holder:
        return False
    if holder.get("host") != platform.node():
        return True
    if holder.get("boot") != _boot_id():
        return False
    pid = holder.get("pid")
    return isinstance(pid, int) and _start_time(pid) is not None and _start_time(pid) == holder.get("started")


def _sentence(folder: Path, lock_file: Path, holder: dict[str, Any]) -> str:
    who = f"process {holder['pid']} on {holder.get('host')}" if "pid" in holder else "another process"
    since = holder.get("since")
    known = isinstance(since, float) and 0 <= since < _END_OF_TIME
    when = f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}" if known else ""
    return (
        f"{folder} is in use by {who}{when}. Wait for that run to end or stop it, or choose another folder. "
        f"(If it surely is gone and this file system keeps no locks, delete {lock_file}.)"
    )


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """The process's start in clock ticks since boot (field 22 of /proc/PID/stat); None if it is not running."""
    try:
        # The command's name, in parentheses, may hold anything: count the fields after it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
