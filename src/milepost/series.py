"""A run's numbers by step: from its log, and from the manifests of its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.errors import ConfigError
from milepost.storage.catalog import read_catalog

METRICS_FILE = "metrics.jsonl"


@dataclass(slots=True)
class Series:
    """``numbers`` by metric and step; the steps that are ``saved``, and those among them that are ``unhealthy``."""

    numbers: dict[str, dict[int, float]] = field(default_factory=dict)
    saved: list[int] = field(default_factory=list)
    unhealthy: list[int] = field(default_factory=list)


def read_series(folder: Path, metrics: Sequence[str]) -> Series:
    """The numbers of these metrics; without any, of those that checkpoints have scores of, and the loss.

    A checkpoint's loss is a mean over many steps, so where the log has a metric, the log's numbers are taken. Raises
    ConfigError naming the metrics there are.
    """
    found: dict[str, dict[int, float]] = {}
    for line in _lines(folder / METRICS_FILE):
        step = line.pop("step", None)
        for name, value in line.items():
            number = _number(value)
            if isinstance(step, int) and number is not None:
                found.setdefault(name, {})[step] = number
    series = Series()
    logged = set(found)
    for checkpoint in read_catalog(folder).checkpoints:
        series.saved.append(checkpoint.step)
        if checkpoint.healthy is False:
            series.unhealthy.append(checkpoint.step)
        for name, value in checkpoint.metrics.items():
            if name not in logged:
                found.setdefault(name, {})[checkpoint.step] = value
    scored = {name for checkpoint in read_catalog(folder).checkpoints for name in checkpoint.metrics}
    wanted = list(metrics) or [name for name in found if name in scored or name in ("loss", "val_loss")]
    for name in wanted:
        if name not in found:
            raise ConfigError(f"{folder} has no metric {name!r}; it has {', '.join(found) or 'none'}", key=name)
    series.numbers = {name: dict(sorted(found[name].items())) for name in wanted}
    return series


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        content = path.read_bytes()
    except OSError:
        return []
    lines = []
    for text in content.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            # The last line of a live run's log may be half written.
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
