"""Measurements that want a process of their own: first saves, memory, resuming. Prints one JSON object.

    python -m benchmarks.alone TASK '{"name": value, …}'

``first`` saves three times beside training, ``memory`` once while training waits, ``resume`` reads a checkpoint.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.catalog import BY_NAME
from benchmarks.limits import drop_from_cache, pages_in_cache, read_seconds
from benchmarks.loops import Training
from benchmarks.memory import peak_bytes, reset_peak
from benchmarks.methods import Durably, Method

WARM_UP = 2
LATER_SAVES = 2


def timed_save(training: Training, method: Method, least: int) -> tuple[float, float]:
    """One save beside training: seconds that training was held up, and until it was durable."""
    ended: list[float] = []

    def watch() -> None:
        method.wait()
        ended.append(time.perf_counter())

    hooks = training.hooks
    hooks.seconds = 0.0
    begin = time.perf_counter()
    method.save()
    held = time.perf_counter() - begin
    watching = Durably(watch)
    hooks.come_last()
    steps = 0
    while steps < least or not watching.done():
        waited, _ = training.step(method)
        before = time.perf_counter()
        method.stepped()
        held += waited + time.perf_counter() - before
        steps += 1
    watching.result()
    return held + hooks.seconds, ended[0] - begin


def first(name: str, state_bytes: int, folder: str, least: int) -> dict[str, Any]:
    """A process's first save, later ones, and what all that takes in memory beside the training itself."""
    training = Training(state_bytes)
    for _ in range(WARM_UP):
        training.step()
    reset_peak()
    for _ in range(WARM_UP):
        training.step()
    without = peak_bytes()
    begin = time.perf_counter()
    method = BY_NAME[name].make(training, Path(folder) / name)
    made = time.perf_counter() - begin
    # A run has steps before its first save, and a method may use them to make ready.
    for _ in range(WARM_UP):
        training.step(method)
        method.stepped()
    saves, peaks = [], []
    for _ in range(1 + LATER_SAVES):
        saves.append(timed_save(training, method, least))
        peaks.append(peak_bytes() - without)
        method.tidy()
    method.close()
    return {
        "made": made,
        "first_held": saves[0][0],
        "first_durable": saves[0][1],
        "later_held": statistics.median(held for held, _ in saves[1:]),
        "later_durable": statistics.median(durable for _, durable in saves[1:]),
        "memory_first": peaks[0] / training.state_bytes,
        "memory_last": peaks[-1] / training.state_bytes,
    }


def memory(name: str, state_bytes: int, folder: str) -> dict[str, Any]:
    """What two blocking saves take in memory at most, the making of the method included."""
    training = Training(state_bytes)
    for _ in range(WARM_UP):
        training.step()
    before = reset_peak()
    method = BY_NAME[name].make(training, Path(folder) / name)
    for _ in range(2):
        method.stepped()
        method.save()
        method.wait()
    extra = peak_bytes() - before
    method.tidy()
    method.close()
    return {"extra_mb": extra / 1e6}


def in_cache(paths: Sequence[Path]) -> float:
    """The share of the files' pages that the page cache has, as mincore tells."""
    counts = []
    for path in paths:
        with path.open("rb") as file:
            counts.append(pages_in_cache(file.fileno()))
    return sum(resident for resident, _ in counts) / max(1, sum(pages for _, pages in counts))


def resume(state_bytes: int, folder: str, cold: bool, raw_first: bool) -> dict[str, Any]:
    """Resuming a run, beside reading the same files and nothing else; both cold or both warm."""
    from milepost import CheckpointManager

    training = Training(state_bytes)
    weights = training.state_bytes
    state = {"model": training.model, "optimizer": training.optimizer, "lr_scheduler": training.scheduler}
    files = [path for path in sorted(Path(folder).glob("step_*/**/*")) if path.is_file()]
    found: dict[str, Any] = {"bytes": sum(path.stat().st_size for path in files)}
    shares = []
    for what in ("raw", "resume") if raw_first else ("resume", "raw"):
        if cold:
            shares.append(drop_from_cache(files))
        else:
            read_seconds(files)
            shares.append(in_cache(files))
        if what == "raw":
            found["raw"] = read_seconds(files)
            continue
        manager = CheckpointManager(folder, state, keep=(), signals=False)
        before = reset_peak()
        begin = time.perf_counter()
        manager.resume()
        found["resume"] = time.perf_counter() - begin
        made = training.state_bytes - weights
        found["extra_mb"] = (peak_bytes() - before - made) / 1e6
        manager.close()
    return found | {"in_cache": shares}


def main() -> int:
    """Do one task."""
    tasks: dict[str, Callable[..., dict[str, Any]]] = {"first": first, "memory": memory, "resume": resume}
    task = tasks[sys.argv[1]]
    print(json.dumps(task(**json.loads(sys.argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
