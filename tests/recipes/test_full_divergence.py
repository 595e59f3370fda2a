"""The guard: a run that diverges ends with status 3, names the checkpoint to go on from, and goes on from it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from milepost.cli.app import app
from milepost.errors import ConfigError, DivergedError
from milepost.recipes import full
from milepost.recipes.config_going_on import DivergenceConfig
from milepost.recipes.divergence import DivergenceGuard
from milepost.storage.catalog import read_catalog
from tests.recipes.runs import first_difference, logged, run, saved_steps, settings

GUARD = {"action": "stop", "least": 4, "window": 8, "patience": 2}


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batches with these numbers, counted over the data's order, give a loss and gradients that are no numbers."""
    numbers: list[int] = []
    original = full.FullFineTuning._step

    def step(self: Any, number: int, window: Any) -> None:
        first = self.position.samples - 4

        def spoiled(*arguments: Any) -> Any:
            summed, tokens = accumulate(*arguments)
            return (summed * torch.nan, tokens) if first // 4 in numbers else (summed, tokens)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(full, "accumulate_gradients", spoiled)
            original(self, number, window)

    accumulate = full.accumulate_gradients
    monkeypatch.setattr(full.FullFineTuning, "_step", step)
    return numbers


def test_a_run_that_diverges_names_the_way_on_and_goes_it(tmp_path, poisoned):
    poisoned.append(6)
    folder = tmp_path / "run"
    with pytest.raises(DivergedError, match="the loss is nan") as caught:
        run(folder, on_divergence=GUARD)
    error = caught.value
    assert (error.step, error.checkpoint, error.skip_samples) == (7, folder / "step_4", 12)
    assert "resume: {from: 4, skip_samples: 12}" in str(error)
    assert saved_steps(folder) == [4]
    assert read_catalog(folder).checkpoints[0].healthy is True
    # The same command again comes to the same end, and costs nothing.
    with pytest.raises(DivergedError):
        run(folder, on_divergence=GUARD)
    assert saved_steps(folder) == [4]
    assert run(folder, on_divergence=GUARD, resume={"from": 4, "skip_samples": 12}) == 0
    assert saved_steps(folder) == [4, 8, 12]
    assert [each.healthy for each in read_catalog(folder).checkpoints] == [True] * 3
    state = json.loads((folder / "step_12" / "training_state" / "state.json").read_text())
    place = state["data"]["state"]
    assert place["epoch"] * 20 + place["position"] == 12 * 4 + 12
    assert state["counters"]["samples"] == 12 * 4


def test_left_out_samples_are_left_out_and_no_others(tmp_path, capsys):
    folder = tmp_path / "run"
    seen: list[int] = []
    count = full.FullFineTuning._count

    def counting(self: Any, window: Any) -> None:
        seen.append(self.position.samples)
        count(self, window)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(full.FullFineTuning, "_count", counting)
        run(folder, max_steps=4)
        run(folder, resume={"from": 4, "skip_samples": 8}, lr_scheduler={"name": "constant"}, max_steps=8)
    assert seen == [4, 8, 12, 16, 28, 32, 36, 40]
    assert "8 samples are left out, those from 16 to 23 of the run's order" in capsys.readouterr().out


def test_the_command_ends_with_3_and_prints_the_command_that_goes_on(tmp_path, poisoned):
    poisoned.append(6)
    path = tmp_path / "my run.yaml"
    path.write_text(yaml.safe_dump(settings(tmp_path / "run")))
    call = ["run", "full", "--config", str(path), "on_divergence=stop", "resume=auto"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 3
    assert result.stderr.startswith("error: training diverged at step 7: the loss is nan")
    told = shlex.split(result.stderr.splitlines()[-1])
    assert told[-3:] == [str(path), "on_divergence=stop", "resume={from: 4, skip_samples: 12}"]
    again = CliRunner().invoke(app, told[1:])
    assert again.exit_code == 0, again.output
    assert saved_steps(tmp_path / "run") == [4, 8, 12]


def test_without_a_healthy_checkpoint_that_is_said(tmp_path, poisoned):
    poisoned.append(1)
    with pytest.raises(DivergedError, match="No checkpoint is known to be healthy") as caught:
        run(tmp_path / "run", on_divergence="stop")
    assert caught.value.checkpoint is None


def test_high_losses_mark_checkpoints_and_end_the_run_when_they_stay(tmp_path, monkeypatch):
    original = full.accumulate_gradients
    taken: list[int] = []

    def high(*arguments: Any) -> Any:
        taken.append(1)
        summed, tokens = original(*arguments)
        return summed * (100 if len(taken) in (7, 8, 9) else 1), tokens

    monkeypatch.setattr(full, "accumulate_gradients", high)
    guard = {**GUARD, "patience": 3}
    with pytest.raises(DivergedError, match="3 such steps came in a row") as caught:
        run(tmp_path / "run", on_divergence=guard, keep_last_n_checkpoints=1, save_every_n_train_steps=2)
    assert caught.value.checkpoint == tmp_path / "run" / "step_6"
    catalog = read_catalog(tmp_path / "run").checkpoints
    assert [(each.step, each.healthy) for each in catalog] == [(6, True), (8, False)]
    listing = CliRunner().invoke(app, ["ls", str(tmp_path / "run")]).stdout
    assert "healthy, and a later one is not" in " ".join(listing.split()) and "UNHEALTHY" in listing
    assert "healthy        False" in CliRunner().invoke(app, ["show", str(tmp_path / "run"), "8"]).stdout
    # One high loss alone ends nothing.
    taken[:] = [1] * 100
    assert run(tmp_path / "run", on_divergence=guard, resume="healthy") == 0
    assert all(each.healthy for each in read_catalog(tmp_path / "run").checkpoints)


def test_the_guard_changes_no_bit(tmp_path):
    run(tmp_path / "plain")
    run(tmp_path / "guarded", on_divergence=GUARD)
    found = first_difference(tmp_path / "plain" / "step_12", tmp_path / "guarded" / "step_12")
    assert found == "state: divergence"
    assert logged(tmp_path / "plain") == logged(tmp_path / "guarded")
    assert {each.healthy for each in read_catalog(tmp_path / "plain").checkpoints} == {None}


def test_it_may_be_switched_on_and_off_in_mid_run_and_a_resumed_guard_judges_as_before(tmp_path):
    run(tmp_path / "unbroken", on_divergence=GUARD)
    run(tmp_path / "run", max_steps=4, on_divergence=GUARD, lr_scheduler={"name": "constant"})
    run(tmp_path / "whole", max_steps=8, on_divergence=GUARD, lr_scheduler={"name": "constant"})
    run(tmp_path / "run", max_steps=8, on_divergence=GUARD, lr_scheduler={"name": "constant"})
    assert first_difference(tmp_path / "whole" / "step_8", tmp_path / "run" / "step_8") is None
    run(tmp_path / "run", max_steps=10, lr_scheduler={"name": "constant"})
    run(tmp_path / "run", max_steps=12, on_divergence=GUARD, lr_scheduler={"name": "constant"})
    healths = [each.healthy for each in read_catalog(tmp_path / "run").checkpoints]
    assert healths == [True, True, None, True]


def test_healthy_gradients_are_asked_for_too():
    guard = DivergenceGuard(DivergenceConfig())
    model = torch.nn.Linear(2, 1)
    model(torch.full((1, 2), torch.inf)).sum().backward()
    guard.judge(torch.tensor(1.0), model)
    assert guard.healthy is False
    assert guard.fault == "the gradients have the norm inf"


def test_resume_healthy_starts_a_fresh_run_and_refuses_one_that_has_none(tmp_path, poisoned):
    assert run(tmp_path / "fresh", resume="healthy", max_steps=2) == 0
    # Of these nothing is known, and nothing speaks against them.
    assert run(tmp_path / "fresh", resume="healthy", max_steps=4, lr_scheduler__on_budget_change="replan") == 0
    assert saved_steps(tmp_path / "fresh") == [2, 4]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"on_divergence": "go on"}, "on_divergence"),
        ({"on_divergence": {"widht": 3}}, "did you mean 'on_divergence.width'?"),
        ({"on_divergence": {"least": 200}}, "least must be at most window"),
        ({"on_divergence": {"patience": 0}}, "on_divergence.patience"),
        ({"resume": {"skip_samples": 4}}, "skip_samples needs from: a step or a path"),
        ({"resume": {"from": "healthy", "skip_samples": 4}}, "skip_samples needs from: a step or a path"),
        ({"resume": {"from": 4, "skip_samples": 5}}, "no whole number of steps"),
        ({"resume": {"from": 4, "skip_samples": -4}}, "resume.skip_samples"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, changes: dict[str, Any], text: str):
    with pytest.raises(ConfigError, match=text.replace("?", r"\?")):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()
