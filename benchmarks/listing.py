"""What ``milepost ls`` takes over 200 checkpoints, as a whole process, in seconds.

    python benchmarks/listing.py [--json]

Prints the median and the spread of repeated runs, beside a bare start of the same Python. The limit that the project
sets itself is 0.5 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from milepost.records import Snapshot, TensorBytes
from milepost.storage.backend import LocalBackend
from milepost.storage.commit import Draft, commit
from milepost.storage.run import open_run

CHECKPOINTS = 200
REPEATS = 9
LIMIT = 0.5
CONFIG = b"keep_last_n_checkpoints: 2\nkeep_best_n_checkpoints: 1\nbest_metric: loss\n"


def make_run(folder: Path) -> None:
    """A run of many small checkpoints, written as training writes them."""
    run, lock = open_run(folder, LocalBackend())
    data = TensorBytes("F32", (64,), memoryview(bytearray(256)))
    snapshot = Snapshot({"weight": data}, {}, {"counters": {"tokens": 1}}, {"optimizer.weight": data})
    for step in range(1, CHECKPOINTS + 1):
        draft = Draft(
            step * 10,
            step,
            "benchmark",
            snapshot,
            assets={"run.yaml": CONFIG},
            metrics={"loss": 1 / step},
            reasons=("every 10 steps",),
            config="run.yaml",
        )
        commit(run, LocalBackend(), draft, max_shard_size=10**9)
    lock.release()


def seconds(*arguments: str) -> float:
    """One process from start to end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> int:
    """Measure, print, and end with 1 if the limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder))
        commands = {"milepost ls": ("-m", "milepost", "ls", folder), "python -c pass": ("-c", "pass")}
        seconds(*commands["milepost ls"])
        runs: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(REPEATS):
            for name, command in commands.items():
                runs[name].append(seconds(*command))
    rows = {name: {"median_s": statistics.median(r), "least_s": min(r), "most_s": max(r)} for name, r in runs.items()}
    if as_json:
        print(json.dumps({"checkpoints": CHECKPOINTS, "limit_s": LIMIT, "rows": rows}))
    else:
        for name, row in rows.items():
            print(f"{name:16} {row['median_s']:.3f} s  ({row['least_s']:.3f} to {row['most_s']:.3f})")
        print(f"warm cache, {CHECKPOINTS} checkpoints, limit {LIMIT} s")
    return 0 if rows["milepost ls"]["median_s"] < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
