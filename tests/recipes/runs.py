"""Tiny runs of the recipe, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from milepost.recipes import full
from milepost.recipes.config_files import parse_config
from milepost.storage.catalog import read_catalog
from milepost.storage.manifest import read_manifest
from milepost.storage.reader import read_snapshot

WORDS = ["red", "blue", "green", "black", "white", "pink", "gold", "grey", "brown", "lime"]


class Crash(Exception):  # noqa: N818
    """Stands for a process that dies: nothing after it is done."""


def rows(count: int = 24) -> list[dict[str, str]]:
    made = []
    for number in range(1, count + 1):
        word, times = WORDS[number % 10], number % 7
        made.append({"instruction": f"Say {word} {times} times.", "input": "", "output": " ".join([word] * times)})
    return made


def write_rows(path: Path, count: int = 24) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows(count)))
    return path


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run of 12 steps of 2 x 2 rows, with dropout and a cosine; ``a__b=1`` changes a key inside a section."""
    data = folder.parent / "rows.json"
    if not data.exists() and "dataset" not in changes:
        write_rows(data)
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "model": {
            "config": {
                "model_type": "llama",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "attention_dropout": 0.2,
            }
        },
        "tokenizer": {"vocab_size": 290},
        "dataset": {"source": "json", "data_files": str(data)},
        "validation_dataset": {"split_from_train": 4},
        "batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 12,
        "optimizer": {"name": "AdamW", "lr": 0.01},
        "lr_scheduler": {"name": "cosine", "num_warmup_steps": 2},
        "clip_grad_norm": 1.0,
        "save_every_n_train_steps": 4,
        "validate_every_n_train_steps": 4,
    }
    for name, value in changes.items():
        *sections, key = name.split("__")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return values


def run(folder: Path, **changes: Any) -> int:
    """The recipe in this process; gives its exit status."""
    return full.main(parse_config(yaml.safe_dump(settings(folder, **changes)), "tiny.yaml"), "configs/Tiny.yaml")


def at_update(patch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Do something in the middle of the ``number``-th update that this process makes from now on."""
    original, done = full.accumulate_gradients, []

    def watched(*arguments: Any) -> Any:
        done.append(1)
        if len(done) == number:
            act()
        return original(*arguments)

    patch.setattr(full, "accumulate_gradients", watched)


def crash() -> None:
    raise Crash


def run_until_crash(folder: Path, update: int, **changes: Any) -> None:
    """A run that dies in the middle of its ``update``-th update; what it had saved is all that is left."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        at_update(patch, update, crash)
        run(folder, **changes)


def run_until_signal(folder: Path, update: int, number: signal.Signals, **changes: Any) -> int:
    """A run that gets a signal in the middle of its ``update``-th update; gives its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        at_update(patch, update, lambda: os.kill(os.getpid(), number))
        return run(folder, **changes)


def saved_steps(folder: Path) -> list[int]:
    """Steps of the folder's checkpoints, in the order of their commits."""
    return [checkpoint.step for checkpoint in read_catalog(folder).checkpoints]


def logged(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def first_difference(first: Path, second: Path) -> str | None:
    """What differs between two checkpoints, bit for bit, over weights and the whole training state; None if nothing."""
    one, other = (read_snapshot(path, read_manifest(path)) for path in (first, second))
    for part in ("weights", "tensors", "state", "ties"):
        mine, yours = getattr(one, part), getattr(other, part)
        for name in sorted(mine.keys() | yours.keys()):
            if mine.get(name) != yours.get(name):
                return f"{part}: {name}"
    return None
