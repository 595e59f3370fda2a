"""The tables that people read, and the JSON that programs read, from the samples of a run."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.catalog import BY_NAME, CAPTURE, METHODS
from benchmarks.engine import knows_capture
from benchmarks.figures import Interval, Samples, interval, promises, verdict

WIDTH = 118
NONE = "-"
COLOURS = {"met": "green", "missed": "red", "undecided": "yellow"}
LIMITS = {
    "limit.copy": "copy the state into a kept buffer, 2 threads",
    "limit.disk": "write as many bytes with O_DIRECT from a kept buffer, fsync",
    "limit.read-cold": "read a checkpoint's files, 2 threads, into fresh memory, cold",
    "limit.read-warm": "the same, warm",
}


def environment(folder: Path, state_bytes: int, tensors: int) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "file_system": file_system(folder),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "not set"),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := version(name)) is not None},
        "state_bytes": state_bytes,
        "tensors": tensors,
    }


PACKAGES = ("milepost", "torch", "numpy", "safetensors", "torch-checkpointing", "lightning", "pytorch-lightning")


def version(package: str) -> str | None:
    """The installed version of a package, if there is one."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(folder: Path) -> str:
    """The kind and options of the file system that holds a folder."""
    found = "unknown"
    longest = -1
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, at, kind, options, *_ = line.split(" ")
        if folder.resolve().is_relative_to(at) and len(at) >= longest:
            found, longest = f"{kind} ({options})", len(at)
    return found


def number(value: float, digits: int = 2) -> str:
    """A number short enough for a column."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 1000:
        return f"{value:.3g}"
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.0f}"


def spread(found: Interval, digits: int = 2) -> str:
    """An interval as text."""
    return f"{number(found.low, digits)} to {number(found.high, digits)}"


def verdict_rows(samples: Samples) -> list[dict[str, Any]]:
    """Every promise with its median, interval, target and verdict; those without samples are ``not measured``."""
    peers = {entry.name: entry.label for entry in METHODS if entry.background and not entry.ours}
    rows = []
    for figure in promises(peers):
        row: dict[str, Any] = {"title": figure.title, "target": figure.target, "unit": figure.unit}
        numbers = figure.samples(samples)
        if numbers:
            found = interval(numbers)
            row |= {"interval": found, "verdict": verdict(found, figure.target), "samples": numbers}
        else:
            row |= {"verdict": "not measured"}
        rows.append(row)
    return rows


def verdict_table(rows: Iterable[dict[str, Any]]) -> Table:
    """The promises as a table."""
    table = Table(title="What was promised", title_justify="left", width=WIDTH)
    table.add_column("figure", ratio=1)
    for name in ("median", "95 %", "target", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        found: Interval | None = row.get("interval")
        said = Text(row["verdict"], style=COLOURS.get(row["verdict"], "dim"))
        target = f"≤ {row['target']:g} {row['unit']}"
        if found is None:
            table.add_row(row["title"], NONE, NONE, target, "0", said)
        else:
            table.add_row(row["title"], number(found.median), spread(found), target, str(found.n), said)
    return table


def limits_table(samples: Samples, state_bytes: int) -> Table:
    """What this machine can do, in seconds and bytes a second."""
    table = Table(title="Limits, measured in the same run", title_justify="left", width=WIDTH)
    table.add_column("limit", ratio=1)
    for name in ("median s", "spread s", "GB/s", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, title in LIMITS.items():
        if numbers := samples.of(name):
            median = interval(numbers).median
            whole = f"{min(numbers):.3f} to {max(numbers):.3f}"
            table.add_row(title, f"{median:.3f}", whole, number(state_bytes / median / 1e9), str(len(numbers)))
    return table


def comparison_table(samples: Samples) -> Table:
    """Every method beside the limits, each number a median with its interval."""
    table = Table(
        title="Beside each other (multiples of the limit: median, 95 % interval)", title_justify="left", width=WIDTH
    )
    table.add_column("method", ratio=1)
    columns = [
        "durable\n÷ disk",
        "held up\n÷ copy",
        "training lost\n÷ copy",
        "first save held\n÷ copy",
        "memory\n÷ state",
    ]
    for name in columns:
        table.add_column(name, justify="right")
    labels = {entry.name: entry for entry in METHODS}
    for name in [*labels, CAPTURE]:
        label = labels[name].label if name in labels else "Milepost, capture alone"
        if name in labels and not labels[name].installed:
            table.add_row(label, Text("not installed", style="dim"), *[NONE] * 4)
            continue
        cells = _cells(name, samples)
        if name in samples.failures:
            cells[0] = Text("failed", style="red")
        if name in samples.failures or any(cell != NONE for cell in cells):
            table.add_row(label, *cells)
    return table


def _cells(name: str, samples: Samples) -> list[str | Text]:
    blocking = name in BY_NAME and not BY_NAME[name].background
    columns: list[Sequence[float]] = [
        samples.ratios(f"durable.{name}", "limit.disk"),
        samples.ratios(f"held.{name}", "limit.copy"),
        samples.ratios(f"lost.{name}", "limit.copy"),
        samples.ratios(f"first-held.{name}", "limit.copy"),
        [] if blocking else samples.of(f"memory.{name}"),
    ]
    cells: list[str | Text] = []
    for numbers in columns:
        if not numbers:
            cells.append(NONE)
            continue
        found = interval(numbers)
        cells.append(f"{number(found.median)}\n{spread(found, 1 if found.high >= 10 else 2)}")
    if blocking and columns[0]:
        cells[1] = "blocking"
    return cells


def notes(samples: Samples, facts: dict[str, Any], names: Iterable[str]) -> list[str]:
    """How each method was set up, what forced it to the disk, and what the columns mean."""
    chosen = set(names)
    lines = [
        f"state {facts['state_bytes'] / 1e9:.2f} GB in {facts['tensors']} tensors; {facts['cores']} cores, "
        f"{facts['memory_gb']} GB of memory, {facts['processor']}; Linux {facts['kernel']}, {facts['file_system']}",
        ", ".join(f"{name} {found}" for name, found in facts["versions"].items())
        + f"; OMP_WAIT_POLICY {facts['omp_wait_policy']}; {facts['date']}",
        "durable: save and wait, nothing else running, fsync of files and folders within. held up: in the save call, "
        "in optimizer hooks and in a method's own locks, beside training. lost: wall clock of training with a save "
        "until it is durable, less as many steps as its two neighbours without one took. memory: peak above training "
        "alone (shared memory counts; other processes do not). Intervals are order statistics of the paired numbers.",
    ]
    for entry in METHODS:
        if entry.name in chosen and entry.installed:
            lines.append(f"{entry.label}: {entry.setup}. fsync: {entry.sync}.")
    if not knows_capture():
        lines.append(
            "This Milepost has no capture=: the rows of both modes are its one way, a copy before step() returns."
        )
    lines += [f"FAILED {name}: {text}" for name, text in samples.failures.items()]
    return lines


def show(console: Console, samples: Samples, facts: dict[str, Any], names: Iterable[str]) -> None:
    """Print the report."""
    parts: list[RenderableType] = [
        limits_table(samples, facts["state_bytes"]),
        comparison_table(samples),
        verdict_table(verdict_rows(samples)),
        *(Text(f"• {line}") for line in notes(samples, facts, names)),
    ]
    console.print(Group(*parts))


def as_json(samples: Samples, facts: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """Everything, raw samples included."""
    rows = []
    for row in verdict_rows(samples):
        found: Interval | None = row.pop("interval", None)
        if found is not None:
            row |= {"median": found.median, "low": found.low, "high": found.high, "coverage": found.coverage}
        rows.append(row)
    methods = {
        entry.name: {"label": entry.label, "setup": entry.setup, "fsync": entry.sync, "installed": entry.installed}
        for entry in METHODS
    }
    return {
        "environment": facts,
        "plan": plan,
        "command": sys.argv,
        "figures": rows,
        "methods": methods,
        "samples": samples.values,
        "failures": samples.failures,
    }
