"""The verbs over a folder of checkpoints: what they print, and their exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from milepost.cli.app import app
from milepost.records import Snapshot, TensorBytes
from milepost.storage.backend import LocalBackend
from milepost.storage.commit import Draft, commit
from milepost.storage.run import open_run

CONFIG = b"keep_last_n_checkpoints: 2\nkeep_best_n_checkpoints: 1\nvalidation_dataset: {split_from_train: 0.1}\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three checkpoints with scores, one of them no number, and things that are no checkpoints."""
    folder = tmp_path / "a run"
    opened, lock = open_run(folder, LocalBackend())
    data = TensorBytes("F32", (64,), memoryview(bytearray(256)))
    for serial, (step, score) in enumerate([(2, 0.5), (10, float("nan")), (9, 0.7)], start=1):
        draft = Draft(
            step,
            serial,
            "one",
            Snapshot({"weight": data}, {"head": "weight"}, {"counters": {}}, {}),
            assets={"run.yaml": CONFIG},
            metrics={"val_loss": score},
            reasons=("every step",),
            epoch=0,
            config="run.yaml",
        )
        commit(opened, LocalBackend(), draft, max_shard_size=10**9)
    lock.release()
    for name in ("step_4_backup", "step_04", "epoch_1", "step_5"):
        (folder / name).mkdir()
    (folder / "step_7").write_text("a file")
    return folder


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_case_06_and_34_ls_lists_checkpoints_in_commit_order_and_nothing_else(run):
    result = call("ls", run)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["2", "10", "9"]
    assert "best val_loss (0.5)" in lines[1]
    assert "last 2" in lines[2] and "nan" in lines[2]
    assert "newest; last 2" in lines[3]
    assert lines[4].startswith("3 checkpoints, ")
    assert "no checkpoint: step_5: it has no milepost.json" in result.stdout
    for name in ("backup", "step_04", "epoch_1", "step_7"):
        assert name not in result.stdout
    assert max(map(len, lines[:4])) <= 80


def test_ls_as_json_is_strict(run):
    found = json.loads(call("ls", run, "--json").stdout, parse_constant=pytest.fail)
    assert [checkpoint["step"] for checkpoint in found["checkpoints"]] == [2, 10, 9]
    assert found["checkpoints"][1]["metrics"] == {"val_loss": "nan"}
    assert found["checkpoints"][2]["kept_because"] == ["newest", "last 2"]
    assert found["ignored"][0]["path"].endswith("step_5")


def test_ls_names_what_is_damaged(run):
    (run / "step_10" / "milepost.json").write_text("{")
    result = call("ls", run)
    assert result.exit_code == 0
    assert "damaged: step_10: milepost.json cannot be read" in result.stdout


def test_ls_of_an_empty_folder_says_so(tmp_path):
    result = call("ls", tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path} has no checkpoints.\n")


@pytest.mark.parametrize("verb", ["ls", "show", "verify"])
def test_a_folder_that_is_not_there_is_an_error_without_a_traceback(tmp_path, verb):
    result = call(verb, tmp_path / "nowhere")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no run folder")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_step_that_is_not_there_is_an_error_that_names_those_that_are(run, verb):
    result = call(verb, run, "3")
    assert result.exit_code == 1
    assert "no checkpoint of step 3. Steps that it has: 2, 9, 10." in result.stderr


def test_show_tells_what_the_manifest_says(run):
    result = call("show", run)
    assert result.exit_code == 0
    for text in ("step           9", "val_loss 0.7", "every step", "head = weight", "model.safetensors", "run.yaml"):
        assert text in result.stdout
    facts = json.loads(call("show", run, "10", "--json").stdout, parse_constant=pytest.fail)
    assert facts["step"] == 10 and facts["metrics"] == {"val_loss": "nan"}
    assert "training_state/state.json" in facts["files"]


def test_verify_finds_every_kind_of_damage(run):
    assert call("verify", run).exit_code == 0
    weights = run / "step_10" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    (run / "step_9" / "run.yaml").unlink()
    result = call("verify", run)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "step_2: whole"
    assert "step_9: run.yaml is missing" in result.stdout
    assert "step_10: model.safetensors differs from its digest" in result.stdout
    assert call("verify", run, "2").exit_code == 0
    assert call("verify", run, "10", "--sizes").exit_code == 0
    found = json.loads(call("verify", run, "10", "--json").stdout)
    assert len(found[0]["problems"]) == 1


@pytest.mark.parametrize("arguments", [["nothing"], ["ls"], ["show", ".", "two"], ["ls", ".", "--nothing"]])
def test_wrong_usage_ends_with_2(arguments):
    result = call(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("verb", ["run", "configs", "validate", "ls", "show", "verify"])
def test_help_has_an_example(verb):
    result = call(verb, "--help")
    assert result.exit_code == 0
    assert "Example: milepost" in result.stdout


def test_the_version_is_that_of_the_package():
    import milepost

    assert call("--version").stdout == f"milepost {milepost.__version__}\n"
