"""The training job that crash tests kill, and a backend that kills it in the middle of one operation."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from milepost import KeepBest, KeepLast
from milepost.storage.backend import LocalBackend, WritableFile
from milepost.storage.catalog import read_catalog
from tests.manager.training import MODES, Run

LAST_STEP = 8
EVERY = 2
RESULT = "result.json"


@dataclass
class Killer:
    """Counts operations, and ends the process with SIGKILL at one of them.

    ``when`` is ``"before"`` or ``"after"`` the operation ``at``, or ``"torn"``: in the middle, for a write.
    """

    at: int
    when: str
    count: int = 0

    def around(self, operation: Any, *arguments: Any) -> Any:
        self.count += 1
        if self.count != self.at:
            return operation(*arguments)
        if self.when == "torn" and operation.__name__ == "write":
            (data,) = arguments
            operation(memoryview(data)[: memoryview(data).nbytes // 2])
        elif self.when == "after":
            operation(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


class KillingFile:
    """A file whose every operation may be the last."""

    def __init__(self, file: WritableFile, killer: Killer) -> None:
        self._file = file
        self._killer = killer

    def write(self, data: memoryview | bytes) -> None:
        self._killer.around(self._file.write, data)

    @property
    def direct(self) -> bool:
        return self._file.direct

    def sync(self) -> None:
        self._killer.around(self._file.sync)

    def close(self) -> None:
        self._killer.around(self._file.close)


class KillingBackend(LocalBackend):
    """A backend whose every operation may be the last."""

    def __init__(self, killer: Killer) -> None:
        for name in ("make_folder", "rename", "sync_folder", "remove_file", "remove_folder"):
            operation = getattr(LocalBackend, name).__get__(self)
            setattr(self, name, lambda *arguments, operation=operation: killer.around(operation, *arguments))
        self._killer = killer

    def create(self, path: Path, size: int | None = None) -> Any:
        return KillingFile(self._killer.around(super().create, path, size), self._killer)


def run_job(folder: Path, *, kill_at: int = 0, when: str = "before", mode: str = "overlapped") -> None:
    """Train to the last step from wherever the folder stands, and leave what was computed in its result file.

    ``kill_at`` counts backend operations from the run's start; 0 kills nothing. ``mode`` is a key of ``MODES``.
    """
    torch.set_num_threads(1)
    killer = Killer(kill_at, when)
    # A run that resumes must get everything from the checkpoint, so it starts from other weights.
    run = Run(seed=1 if read_catalog(folder).checkpoints else 0)
    rules = [KeepLast(1), KeepBest(1, "loss", level="weights")]
    with run.manager(folder, every=EVERY, keep=rules, backend=KillingBackend(killer), **MODES[mode]) as manager:
        start = manager.resume()
        run.train(manager, start, LAST_STEP)
    state = xxhash.xxh3_128(repr(run.counters).encode())
    for value in run.weights().values():
        state.update(value.numpy().tobytes())
    result = {"start": start, "state": state.hexdigest(), "operations": killer.count}
    (folder.parent / RESULT).write_text(json.dumps(result))
