"""What ``CheckpointManager.step`` costs when nothing is due, beside an empty loop, in microseconds.

    python benchmarks/step_cost.py [--json]

Prints the median and the spread of repeated runs. The limit the project sets itself is 10 µs a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time

import torch
from torch import nn

from milepost import CheckpointManager, EveryMinutes, EverySteps, KeepLast, LogSpaced

STEPS = 20_000
REPEATS = 7
LIMIT = 10.0


def microseconds_a_step(with_metrics: bool) -> float:
    """One run of many steps, none of which saves."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.zeros(())
    schedules = [EverySteps(10**9), LogSpaced(first=10**9, factor=2), EveryMinutes(10**6)]
    with tempfile.TemporaryDirectory() as folder:
        manager = CheckpointManager(
            folder, {"model": model, "optimizer": optimizer}, save=schedules, keep=KeepLast(1), signals=False
        )
        manager.resume()
        begin = time.perf_counter()
        if with_metrics:
            for step in range(1, STEPS + 1):
                manager.step(step, metrics={"loss": loss})
        else:
            for step in range(1, STEPS + 1):
                manager.step(step)
        taken = time.perf_counter() - begin
        manager.close()
    return taken / STEPS * 1e6


def main() -> int:
    """Measure, print, and end with 1 if the limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    as_json = parser.parse_args().json
    rows = {}
    for name, with_metrics in (("step(n)", False), ("step(n, metrics={'loss': tensor})", True)):
        runs = [microseconds_a_step(with_metrics) for _ in range(REPEATS)]
        rows[name] = {"median_us": statistics.median(runs), "least_us": min(runs), "most_us": max(runs)}
    if as_json:
        print(json.dumps({"steps": STEPS, "repeats": REPEATS, "limit_us": LIMIT, "rows": rows}))
    else:
        for name, row in rows.items():
            spread = f"{row['least_us']:.2f} to {row['most_us']:.2f}"
            print(f"{name:36} {row['median_us']:6.2f} µs  ({spread}), limit {LIMIT}")
    return 0 if all(row["median_us"] < LIMIT for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
