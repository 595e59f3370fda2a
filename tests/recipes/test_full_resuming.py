"""However often a run of the recipe is interrupted, it ends as if it had not been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import yaml

from milepost.errors import ConfigError
from tests.recipes.runs import (
    first_difference,
    logged,
    run,
    run_until_crash,
    run_until_signal,
    saved_steps,
    settings,
)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert run(folder) == 0
    return folder


def assert_same(folder, unbroken, step=12):
    assert first_difference(folder / f"step_{step}", unbroken / f"step_{step}") is None
    assert logged(folder) == logged(unbroken)


@pytest.mark.parametrize("crashes", [[1], [5], [6], [9, 1, 4], [12]])
def test_case_20_a_run_that_dies_and_goes_on_equals_the_unbroken_one_bit_for_bit(tmp_path, unbroken, crashes):
    """With dropout, AdamW, a cosine with warm-up, clipping, accumulation, validation, and steps over epochs' ends."""
    for update in crashes:
        run_until_crash(tmp_path / "run", update)
    assert run(tmp_path / "run") == 0
    assert_same(tmp_path / "run", unbroken)


def test_case_20_dropout_is_at_work_in_these_runs(tmp_path, unbroken):
    run(tmp_path / "run", model__config__attention_dropout=0.0, max_steps=1, lr_scheduler__name="constant")
    assert logged(tmp_path / "run")[0]["loss"] != logged(unbroken)[0]["loss"]


def test_case_16_and_17_samples_go_on_where_they_stopped_in_the_middle_of_an_epoch(tmp_path, unbroken):
    """5 steps make an epoch here; the run is stopped after step 2, and again after step 4 of the same epoch."""
    assert run_until_signal(tmp_path / "run", 2, signal.SIGTERM) == 143
    assert run_until_signal(tmp_path / "run", 2, signal.SIGTERM) == 143
    assert saved_steps(tmp_path / "run") == [2, 4]
    assert run(tmp_path / "run") == 0
    assert logged(tmp_path / "run") == logged(unbroken)


def test_case_21_the_learning_rate_of_each_resumed_step_is_that_of_the_unbroken_run(tmp_path, unbroken):
    run_until_crash(tmp_path / "run", 6)
    run(tmp_path / "run")
    rates = [line["lr"] for line in logged(tmp_path / "run")]
    assert rates == [line["lr"] for line in logged(unbroken)]
    assert rates[0] == pytest.approx(0.005) and max(rates) == pytest.approx(0.01)


def test_a_process_killed_with_sigkill_goes_on_bit_for_bit(tmp_path, unbroken):
    """In the middle of the update after a save, from a child process that starts afresh."""
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings(tmp_path / "run")))
    code = (
        "import os, signal, torch, datasets\n"
        "torch.set_num_threads(1)\n"
        f"datasets.config.HF_DATASETS_CACHE = {str(tmp_path / 'cache')!r}\n"
        "import pytest\n"
        "from milepost.recipes import full\n"
        "from milepost.recipes.config_files import load_config\n"
        "from tests.recipes.runs import at_update\n"
        "at_update(pytest.MonkeyPatch(), 6, lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        f"full.main(load_config({str(tmp_path / 'tiny.yaml')!r}), 'configs/Tiny.yaml')\n"
    )
    child = subprocess.run([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert child.returncode == -signal.SIGKILL
    assert len(logged(tmp_path / "run")) == 5, "every line up to the last whole step is there"
    assert run(tmp_path / "run") == 0
    assert_same(tmp_path / "run", unbroken)


def test_metrics_have_no_step_twice_and_none_missing(tmp_path, unbroken):
    run_until_crash(tmp_path / "run", 8)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    run_until_crash(tmp_path / "run", 3)
    run(tmp_path / "run")
    assert [line["step"] for line in logged(tmp_path / "run")] == list(range(1, 13))
    assert logged(tmp_path / "run") == logged(unbroken)


def test_the_loss_since_the_last_save_is_the_same_after_a_resume(tmp_path, unbroken):
    from milepost.storage.catalog import read_catalog

    run_until_crash(tmp_path / "run", 7)
    run(tmp_path / "run")
    scores = [{c.step: dict(c.metrics) for c in read_catalog(f).checkpoints} for f in (tmp_path / "run", unbroken)]
    assert scores[0] == scores[1]
    assert set(scores[0][8]) == {"loss", "val_loss"}


def test_the_unit_of_the_loss_is_the_token_over_all_steps_since_the_last_save(tmp_path):
    from milepost.storage.catalog import read_catalog

    run(tmp_path / "run", gradient_accumulation_steps=1, batch_size=20, max_steps=4, lr_scheduler__name="constant")
    (only,) = read_catalog(tmp_path / "run").checkpoints
    # All steps have all rows, so all have the same number of label tokens.
    losses = [line["loss"] for line in logged(tmp_path / "run")]
    assert only.metrics["loss"] == pytest.approx(sum(losses) / 4, rel=1e-6)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_the_current_step_and_the_same_command_goes_on(tmp_path, unbroken, number, status, capsys):
    assert run_until_signal(tmp_path / "run", 7, number) == status
    assert saved_steps(tmp_path / "run") == [4, 7]
    assert f"{number.name}: step 7 is saved" in capsys.readouterr().out
    assert run(tmp_path / "run") == 0
    assert logged(tmp_path / "run") == logged(unbroken)


def test_a_signal_in_the_last_step_is_no_interruption(tmp_path):
    assert run_until_signal(tmp_path / "run", 12, signal.SIGTERM) == 0


def test_case_31_a_finished_run_says_so_and_goes_on_with_more_steps(tmp_path, capsys):
    options = {"lr_scheduler__name": "constant", "validation_dataset": None, "validate_every_n_train_steps": None}
    assert run(tmp_path / "long", max_steps=None, epochs=2, **options) == 0
    assert run(tmp_path / "run", max_steps=None, epochs=1, **options) == 0
    assert saved_steps(tmp_path / "run") == [4, 6]
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert run(tmp_path / "run", max_steps=None, epochs=1, **options) == 0
    assert "this run is finished: it is at step 6 of 6" in capsys.readouterr().out
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert run(tmp_path / "run", max_steps=None, epochs=2, **options) == 0
    assert saved_steps(tmp_path / "run") == [4, 6, 8, 12]
    assert logged(tmp_path / "run") == logged(tmp_path / "long")
    # Its metrics end the interval at step 6, which the long run did not save; all that trains is the same.
    assert first_difference(tmp_path / "run" / "step_12", tmp_path / "long" / "step_12") is None


def test_a_damaged_final_checkpoint_is_not_taken_for_the_end(tmp_path, unbroken, capsys):
    run(tmp_path / "run")
    weights = tmp_path / "run" / "step_12" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert run(tmp_path / "run") == 0
    assert "passed over" in capsys.readouterr().out
    assert_same(tmp_path / "run", unbroken)


@pytest.mark.parametrize("budget", [20, 8])
def test_case_22_another_length_under_a_cosine_is_refused_and_nothing_is_touched(tmp_path, budget):
    run_until_crash(tmp_path / "run", 6, max_steps=10)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=rf"planned for 10 steps.*{budget}.*on_budget_change"):
        run(tmp_path / "run", max_steps=budget)
    assert saved_steps(tmp_path / "run") == [4]
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("budget", [20, 8])
def test_case_22_another_length_is_planned_anew_or_the_plan_kept_if_asked(tmp_path, budget, capsys):
    for answer in ("keep", "replan"):
        run_until_crash(tmp_path / answer, 6, max_steps=10)
        assert run(tmp_path / answer, max_steps=budget, lr_scheduler__on_budget_change=answer) == 0
        assert f"on_budget_change: {answer}" in capsys.readouterr().out
    run(tmp_path / "whole", max_steps=budget)
    rates = {name: [line["lr"] for line in logged(tmp_path / name)] for name in ("keep", "replan", "whole")}
    assert rates["replan"][4:] == rates["whole"][4:]
    assert rates["keep"][1:] == sorted(rates["keep"][1:], reverse=True), "after the warm-up it never rises"
    assert len(rates["keep"]) == budget
