"""``milepost diff``: the table, the JSON, and statuses as those of diff(1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from milepost.cli.app import app
from tests.comparing.test_comparing import STATE, floats, save, snapshot

CONFIG = b"keep_last_n_checkpoints: 2\nkeep_best_n_checkpoints: 1\nvalidation_dataset: {split_from_train: 0.1}\n"


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    later = {"counters": {**STATE["counters"], "tokens": 12}}
    common: dict[str, Any] = {"assets": {"run.yaml": CONFIG}, "config": "run.yaml"}
    save(folder, 1, state=snapshot(), metrics={"val_loss": 0.5}, **common)
    save(folder, 2, state=snapshot(), metrics={"val_loss": float("nan")}, **common)
    save(folder, 3, state=snapshot(weights={"w": floats(1, 2, 3, 5)}, state=later), metrics={"val_loss": 1}, **common)
    return folder


def test_equal_ones_end_with_0(run):
    result = call("diff", run, "1", "2")
    assert result.exit_code == 0
    assert "equal, bit for bit: 4 tensors" in result.stdout
    assert "val_loss: 0.5 → nan" in result.stdout


def test_different_ones_end_with_1_and_a_table(run):
    result = call("diff", run, "best", "latest")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0].startswith(f"A  {run}/step_1 (full, ")
    for text in (
        "weights: 1 of 2 tensors differ",
        "training state: 0 of 2 tensors differ",
        "random number generators: the same",
        "counters.tokens  5 → 12",
        "changed  max |A-B|  ‖A-B‖   ‖A‖   ‖B‖  tensor",
        "  25.0%          1      1  5.48  6.24  w",
    ):
        assert text in result.stdout
    assert max(map(len, result.stdout.splitlines()[2:])) <= 80


def test_two_folders_may_be_named(run):
    assert call("diff", run / "step_1", run / "step_2").exit_code == 0
    assert call("diff", run / "step_1", run / "step_3").exit_code == 1
    assert call("diff", run / "step_1", run / "step_3", "--weights").exit_code == 1


def test_json_is_strict_and_says_all(run):
    result = call("diff", run, "2", "3", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    assert found["equal"] is False
    assert found["compared"] == {"weights": 2, "training_state": 2}
    assert found["tensors"][0]["name"] == "w" and found["tensors"][0]["max_abs_difference"] == 1.0
    assert found["tensors"][0]["first_index"] == [3]
    assert found["values"] == [{"path": "counters.tokens", "a": 5, "b": 12}]
    assert found["metrics"]["a"] == {"val_loss": "nan"}


def test_many_tensors_are_cut_short_unless_all_are_asked_for(tmp_path):
    many = {f"layer.{number:02}": floats(number) for number in range(30)}
    moved = {f"layer.{number:02}": floats(number + 1) for number in range(30)}
    values = {f"n{number}": number for number in range(40)}
    save(tmp_path, 1, state=snapshot(weights=many, state={"counters": values}))
    save(tmp_path, 2, state=snapshot(weights=moved, state={"counters": {name: -1 for name in values}}))
    short = call("diff", tmp_path, "1", "2").stdout
    assert "and 10 more (--all shows them)" in short and "and 20 more values" in short
    whole = call("diff", tmp_path, "1", "2", "--all").stdout
    assert all(name in whole for name in (*many, *values)) and "more (--all" not in whole


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{run}", "1", "9"], "no checkpoint of step 9. Steps that it has: 1, 2, 3."),
        (["{run}", "1", "newest"], "'newest' is no checkpoint of a run"),
        (["{run}", "{run}"], "is not a checkpoint"),
        (["{run}/nowhere", "1", "2"], "there is no run folder"),
    ],
)
def test_a_mistake_ends_with_2_and_one_paragraph(run, arguments, text):
    result = call("diff", *(each.replace("{run}", str(run)) for each in arguments))
    assert result.exit_code == 2
    assert text in result.stderr and result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


def test_damage_ends_with_2(run):
    (run / "step_2" / "model.safetensors").write_bytes(b"")
    result = call("diff", run, "1", "2")
    assert result.exit_code == 2 and "has 0 bytes" in result.stderr
