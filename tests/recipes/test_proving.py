"""``milepost prove``: kills a run where it says, resumes it, and finds the first difference if there is one."""

from __future__ import annotations

import json
import os
import struct
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from milepost.cli.app import app
from milepost.errors import MilepostError
from milepost.recipes import proving
from milepost.recipes.proving import Proof, Trial, compare_runs, kill_in_a_save, kill_in_training, prove
from tests.recipes.runs import settings
from tests.storage.samples import save, snapshot, tensor

ROOT = Path(__file__).parents[2]

# A run of six steps that saves at three and six. Where a second argument says so, it waits to be killed: when it is
# started first, after its second step, and when it is started again, with a folder half written.
FAKE = """
    import json, signal, sys
    from pathlib import Path
    from tests.storage.samples import save, steps

    folder, mode = Path(sys.argv[1]), sys.argv[2]
    waits = mode in ("killed", "forgets")
    folder.mkdir(parents=True, exist_ok=True)
    starts = folder / "starts"
    starts.write_text(starts.read_text() + "." if starts.exists() else ".")
    started = len(starts.read_text())
    done = max(steps(folder), default=0)
    for name in folder.glob("*.staging-*"):
        name.rmdir()
    log = folder / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)[:done] if log.exists() else []
    log.write_text("".join(lines))
    for step in range(done + 1, 7):
        with log.open("a") as file:
            file.write(json.dumps({"step": step, "loss": 1 / step if mode != "forgets" or started < 3 else 9}) + "\\n")
        if waits and step == 2 and started == 1:
            signal.pause()
        if step % 3 == 0:
            if waits and started == 2:
                (folder / "step_3.staging-0123abcd").mkdir()
                signal.pause()
            save(folder, step)
    sys.exit(4 if mode == "fails" else 0)
"""


def fake(folder: Path, mode: str) -> Trial:
    command = [sys.executable, "-c", textwrap.dedent(FAKE), str(folder), mode]
    return Trial(folder, command, {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(ROOT)])})


def script(folder: Path, text: str) -> Trial:
    folder.mkdir(exist_ok=True)
    return Trial(folder, [sys.executable, "-c", f"import os, signal; os.chdir({str(folder)!r}); {text}"])


def test_a_run_is_killed_twice_and_compared(tmp_path):
    said: list[str] = []
    proof = prove(fake(tmp_path / "a", "unbroken"), fake(tmp_path / "b", "killed"), said.append)
    assert proof.holds and proof.difference is None and proof.step == 6 and proof.losses == 6
    assert proof.kills == [
        "killed with SIGKILL after step 2; the newest checkpoint is step_0",
        "killed with SIGKILL while step_3.staging-0123abcd was being written; the newest checkpoint is step_0",
    ]
    assert (tmp_path / "b" / "starts").read_text() == "..."
    assert said[0] == f"1. the unbroken run, in {tmp_path / 'a'}" and said[-1] == "5. compared"


def test_what_a_resume_got_wrong_is_found(tmp_path):
    proof = prove(fake(tmp_path / "a", "unbroken"), fake(tmp_path / "b", "forgets"), lambda _: None)
    assert not proof.holds
    assert proof.difference == "metrics.jsonl: the loss of step 1 is 1.0 and 9"


def test_a_run_that_fails_is_an_error_and_no_difference(tmp_path):
    with pytest.raises(MilepostError, match="the run ended with status 4"):
        prove(fake(tmp_path / "a", "fails"), fake(tmp_path / "b", "killed"), lambda _: None)


@pytest.mark.parametrize("kill", [lambda trial: kill_in_training(trial, 1), kill_in_a_save])
def test_a_run_that_ends_first_is_not_killed_and_one_that_fails_is_an_error(tmp_path, kill):
    assert kill(script(tmp_path, "pass")) is None
    with pytest.raises(MilepostError, match="with status 7, before it was killed"):
        kill(script(tmp_path, "raise SystemExit(7)"))


def pair(folder: Path, **changes: Any) -> tuple[Path, Path]:
    runs = folder / "a", folder / "b"
    for run in runs:
        run.mkdir()
        (run / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss"')
    save(runs[0], 4)
    save(runs[1], 4, **changes)
    return runs


def changed(part: str, **values: Any) -> dict[str, Any]:
    from dataclasses import replace

    before = snapshot(4)
    return {"state": replace(before, **{part: {**getattr(before, part), **values}})}


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, None),
        (
            changed("weights", **{"a.weight": tensor("F32", (2, 3), struct.pack("<6f", 1, 1, 1, 1, 2, 1))}),
            "weights: a.weight[0, 0] is 5.605193857299268e-45 and 1.0 (6 of 6 elements differ)",
        ),
        (changed("weights", **{"b.weight": tensor("BF16", (1,), b"ab")}), "weights: b.weight: shape [2] and [1]"),
        (changed("weights", **{"new": tensor("BF16", (1,), b"ab")}), "weights: new: only in the second"),
        (
            changed("tensors", **{"optimizer.m": tensor("F32", (6,), bytes(20) + (4).to_bytes(4, "little"))}),
            "training state: optimizer.m[0] is 5.605193857299268e-45 and 0.0 (5 of 6 elements differ)",
        ),
        (changed("state", counters={"step": 5}), "training state: counters.step is 4 and 5"),
    ],
)
def test_the_first_difference_says_which_where_and_what(tmp_path, changes, difference):
    proof = Proof()
    compare_runs(*pair(tmp_path, **changes), proof)
    assert proof.difference == difference
    assert proof.losses == 1


@pytest.mark.parametrize(
    ("spoil", "difference"),
    [
        (lambda run: (run / "step_5.staging-0123abcd").mkdir(), "step_5.staging-0123abcd is still there"),
        (lambda run: save(run, 5), "one ends with step_4, the other with step_5"),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"step": 1, "loss": "nan"}\n'),
            "metrics.jsonl: the loss of step 1 is 0.5 and nan",
        ),
    ],
)
def test_what_lies_beside_the_checkpoints_counts_too(tmp_path, spoil, difference):
    runs = pair(tmp_path)
    spoil(runs[1])
    proof = Proof()
    compare_runs(*runs, proof)
    assert proof.difference == difference


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["prove", *map(str, arguments)])


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The command line's runs are the fake; ``["interrupted"]`` says how the second one is."""
    modes = {"unbroken": "unbroken", "interrupted": "killed"}
    monkeypatch.setattr(proving, "recipe_trial", lambda folder, *_, **__: fake(folder, modes[folder.name]))
    return modes


def test_the_command_ends_with_0_and_leaves_nothing(tmp_path, monkeypatch, faked):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = call()
    assert result.exit_code == 0, result.output
    assert "The same, bit for bit, at step 6 after having been killed twice: 3 tensors" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_difference_ends_with_1_and_both_runs_are_kept(tmp_path, faked):
    faked["interrupted"] = "forgets"
    told = call("-o", tmp_path / "kept", "--json")
    assert told.exit_code == 1
    found = json.loads(told.stdout)
    assert found["equal"] is False and found["first_difference"].startswith("metrics.jsonl: the loss of step 1")
    assert len(found["kills"]) == 2 and found["folder"] == str(tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["interrupted", "unbroken"]
    again = call("-o", tmp_path / "kept")
    assert again.exit_code == 1 and "exists already and is not empty" in again.stderr


def test_a_run_that_was_never_killed_proves_nothing(tmp_path, monkeypatch, faked):
    faked["interrupted"] = "unbroken"
    for kill in ("kill_in_training", "kill_in_a_save"):
        monkeypatch.setattr(proving, kill, lambda *_, **__: None)
    result = call("-o", tmp_path / "kept")
    assert result.exit_code == 1 and "Nothing is proved" in result.stdout


def test_a_run_that_fails_says_where_it_is(tmp_path, faked):
    faked["unbroken"] = "fails"
    result = call("-o", tmp_path / "kept")
    assert result.exit_code == 1 and f"is in {tmp_path / 'kept'}" in result.stderr


@pytest.mark.parametrize("arguments", [["--config", "quikstart"], ["sed=1"], ["--config", "nowhere.yaml"]])
def test_a_mistake_in_the_configuration_is_told_before_anything_runs(tmp_path, monkeypatch, arguments):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = call(*arguments)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_recipe_holds_its_promise(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings(tmp_path / "ignored", max_steps=200)))
    result = call("--config", path, "-o", tmp_path / "runs", "save_every_n_train_steps=5", "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["kills"]) == 2
