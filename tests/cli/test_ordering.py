"""``milepost ls --sort``: any order, what is no number last, and the footer says what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from milepost.cli.app import app
from tests.storage.samples import save

SCORES = {1: 0.5, 2: float("nan"), 3: 0.1, 4: None, 5: float("inf"), 6: -3.0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step, score in SCORES.items():
        save(tmp_path, step, metrics={} if score is None else {"val_loss": score})
    return tmp_path


def listed(run: Path, *options: str) -> list[int]:
    found = CliRunner().invoke(app, ["ls", str(run), "--json", *options])
    assert found.exit_code == 0, found.output
    return [each["step"] for each in json.loads(found.stdout)["checkpoints"]]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ([], [1, 2, 3, 4, 5, 6]),
        (["--reverse"], [6, 5, 4, 3, 2, 1]),
        (["--limit", "2"], [5, 6]),
        (["--limit", "2", "--reverse"], [6, 5]),
        (["--limit", "99"], [1, 2, 3, 4, 5, 6]),
        (["--sort", "val_loss"], [6, 3, 1, 5, 2, 4]),
        (["--sort", "val_loss", "--reverse"], [5, 1, 3, 6, 2, 4]),
        (["--sort", "val_loss", "--limit", "2"], [6, 3]),
        (["--sort", "step", "--reverse", "--limit", "1"], [6]),
        (["--sort", "age"], [6, 5, 4, 3, 2, 1]),
        (["--sort", "epoch"], [1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_listing_has_the_order_that_was_asked_for(run, options, steps):
    assert listed(run, *options) == steps


def test_the_footer_tells_of_all(run):
    result = CliRunner().invoke(app, ["ls", str(run), "--sort", "val_loss", "--limit", "2"])
    assert [line.split()[0] for line in result.stdout.splitlines()[1:3]] == ["6", "3"]
    assert "2 of 6 checkpoints, " in result.stdout


@pytest.mark.parametrize(
    ("options", "text"), [(["--sort", "val_los"], "step, epoch, age, size, val_loss"), (["--limit", "0"], "--limit")]
)
def test_a_mistake_ends_with_2(run, options, text):
    result: Any = CliRunner().invoke(app, ["ls", str(run), *options])
    assert result.exit_code == 2 and text in result.stderr and "Traceback" not in result.output


def test_an_empty_run_may_be_sorted_by_anything(tmp_path):
    assert listed(tmp_path, "--sort", "val_loss") == []
