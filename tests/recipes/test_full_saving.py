"""When the recipe saves, what it keeps, and what lies in a checkpoint's folder."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost import load_weights
from milepost.errors import CheckpointExistsError, CheckpointNotFoundError, ConfigError
from milepost.recipes import full
from milepost.recipes.config_files import load_config
from milepost.storage.catalog import read_catalog
from tests.recipes.runs import logged, run, run_until_crash, saved_steps, write_rows

PLAIN = {
    "validation_dataset": None,
    "validate_every_n_train_steps": None,
    "gradient_accumulation_steps": 1,
    "lr_scheduler__name": "constant",
}


@pytest.mark.parametrize(("steps", "expected"), [(10, [5, 10]), (11, [5, 10, 11])])
def test_case_01_every_five_steps_and_the_last_each_once(tmp_path, steps, expected):
    run(tmp_path / "run", max_steps=steps, save_every_n_train_steps=5, **PLAIN)
    catalog = read_catalog(tmp_path / "run")
    assert [checkpoint.step for checkpoint in catalog.checkpoints] == expected
    assert [checkpoint.serial for checkpoint in catalog.checkpoints] == [1, 2, 3][: len(expected)]


def test_case_02_steps_are_updates_and_nothing_is_saved_inside_a_window(tmp_path, monkeypatch):
    forwards = []
    original = full.accumulate_gradients

    def watched(model, window, device):
        forwards.append(len(window))
        return original(model, window, device)

    monkeypatch.setattr(full, "accumulate_gradients", watched)
    write_rows(tmp_path / "rows.json", 16)
    changes = {**PLAIN, "batch_size": 1, "gradient_accumulation_steps": 4, "save_every_n_train_steps": 2}
    run(tmp_path / "run", max_steps=None, epochs=1, **changes)
    assert forwards == [4, 4, 4, 4]
    assert saved_steps(tmp_path / "run") == [2, 4]


def test_case_04_the_count_of_steps_goes_on_over_epochs(tmp_path):
    write_rows(tmp_path / "rows.json", 6)
    run(tmp_path / "run", max_steps=None, epochs=4, **{**PLAIN, "save_every_n_train_steps": 5})
    assert saved_steps(tmp_path / "run") == [5, 10, 12]
    assert [checkpoint.epoch for checkpoint in read_catalog(tmp_path / "run").checkpoints] == [1, 3, 4]


@pytest.mark.parametrize(("keep", "expected"), [(None, [2, 4, 6, 8]), (-1, [2, 4, 6, 8]), (1, [8]), (3, [4, 6, 8])])
def test_case_05_the_newest_n_are_kept_or_all(tmp_path, keep, expected):
    changes = {**PLAIN, "save_every_n_train_steps": 2, "keep_last_n_checkpoints": keep}
    run(tmp_path / "run", max_steps=8, **changes)
    assert saved_steps(tmp_path / "run") == expected


def test_case_07_the_checkpoint_resumed_from_stays_until_a_newer_one_is_there(tmp_path):
    changes = {**PLAIN, "save_every_n_train_steps": 10, "keep_last_n_checkpoints": 1}
    run_until_crash(tmp_path / "run", 11, max_steps=20, **changes)
    run_until_crash(tmp_path / "run", 2, max_steps=20, **changes)
    assert saved_steps(tmp_path / "run") == [10]
    run(tmp_path / "run", max_steps=20, **changes)
    assert saved_steps(tmp_path / "run") == [20]


def test_case_08_the_best_and_the_newest_are_kept(tmp_path, monkeypatch):
    scores = iter([0.5, 0.1, 0.4, 0.6])
    monkeypatch.setattr(full, "validation_loss", lambda *arguments: next(scores))
    changes = {"keep_last_n_checkpoints": 2, "keep_best_n_checkpoints": 1}
    run(tmp_path / "run", max_steps=4, save_every_n_train_steps=1, validate_every_n_train_steps=1, **changes)
    found = {c.step: c.metrics["val_loss"] for c in read_catalog(tmp_path / "run").checkpoints}
    assert found == {2: 0.1, 3: 0.4, 4: 0.6}


def test_case_13_and_14_the_best_stays_as_weights_across_a_resume_and_scores_that_are_no_numbers(tmp_path, monkeypatch):
    scores = iter([float("nan"), 0.1, float("nan"), 0.4, 0.3])
    monkeypatch.setattr(full, "validation_loss", lambda *arguments: next(scores))
    keep = [{"last": 1}, {"best": 1, "metric": "val_loss", "level": "weights"}]
    changes = {"save_every_n_train_steps": 1, "validate_every_n_train_steps": 1, "checkpoint__keep": keep}
    run(tmp_path / "run", max_steps=3, lr_scheduler__name="constant", **changes)
    run(tmp_path / "run", max_steps=5, lr_scheduler__name="constant", **changes)
    found = read_catalog(tmp_path / "run").checkpoints
    assert {each.step: each.level.value for each in found} == {2: "weights", 5: "full"}
    assert (tmp_path / "run" / "best").resolve().name == "step_2"
    with pytest.raises(CheckpointNotFoundError, match="holds weights only"):
        run(tmp_path / "other", resume=str(tmp_path / "run" / "best"), max_steps=9)
    assert run(tmp_path / "other", resume=str(tmp_path / "run" / "latest"), max_steps=5, **changes) == 0


def test_a_disk_budget_and_a_grace_come_from_the_configuration(tmp_path):
    run(tmp_path / "one", max_steps=2, **PLAIN)
    size = read_catalog(tmp_path / "one").checkpoints[-1].size
    keep = [{"disk_budget": 4 * size}]
    run(tmp_path / "run", **{**PLAIN, "save_every_n_train_steps": 1}, checkpoint={"keep": keep, "trash_grace": "1h"})
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "metrics.jsonl"]
    assert sum(path.lstat().st_size for path in files if not path.is_symlink()) <= 4 * size
    assert saved_steps(tmp_path / "run")[-1] == 12


def test_case_09_a_folder_that_an_older_run_used_is_refused_for_a_fresh_one(tmp_path):
    run(tmp_path / "run", max_steps=4, **PLAIN)
    with pytest.raises(CheckpointExistsError, match=r"step_4.*resume: never"):
        run(tmp_path / "run", max_steps=4, resume="never", **PLAIN)
    with pytest.raises(ConfigError, match="seed"):
        run(tmp_path / "run", max_steps=8, seed=7, **PLAIN)
    assert saved_steps(tmp_path / "run") == [4]


def test_case_15_a_save_without_a_fresh_score_is_a_plain_checkpoint(tmp_path):
    changes = {"save_every_n_train_steps": 2, "validate_every_n_train_steps": 3, "keep_best_n_checkpoints": 1}
    run(tmp_path / "run", max_steps=8, keep_last_n_checkpoints=9, **changes)
    scored = {c.step: "val_loss" in c.metrics for c in read_catalog(tmp_path / "run").checkpoints}
    assert scored == {2: False, 4: False, 6: True, 8: True}
    lines = {line["step"]: line.get("val_loss") for line in logged(tmp_path / "run")}
    assert {step for step, score in lines.items() if score is not None} == {3, 6, 8}


def test_validation_changes_nothing_in_training(tmp_path):
    """Nothing is drawn, dropout is on again, and the rows are the same."""
    run(tmp_path / "often", validate_every_n_train_steps=1)
    run(tmp_path / "once", validate_every_n_train_steps=None)
    losses = [[line["loss"] for line in logged(tmp_path / name)] for name in ("often", "once")]
    assert losses[0] == losses[1]


def test_case_30_a_folder_from_the_middle_stands_alone(tmp_path, monkeypatch):
    kept = {}
    build = full.build_model

    def watched(*arguments):
        kept["model"] = build(*arguments)
        return kept["model"]

    monkeypatch.setattr(full, "build_model", watched)
    run(tmp_path / "run", max_steps=8, model__config__tie_word_embeddings=True)
    middle = tmp_path / "run" / "step_4"
    names = {path.name for path in middle.iterdir()}
    assert names >= {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert names >= {"configs_tiny.yaml", "model.safetensors", "training_state", "milepost.json"}

    tokenizer = AutoTokenizer.from_pretrained(middle)
    turns = [{"role": "user", "content": "Say red 2 times."}]
    asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    last = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "step_8")
    with torch.no_grad():
        kept["model"].eval()
        assert torch.equal(last(**asked).logits, kept["model"](**asked).logits), "a kept folder is the live model"
        opened = AutoModelForCausalLM.from_pretrained(middle)
        load_weights(middle, kept["model"])
        assert torch.equal(opened(**asked).logits, kept["model"](**asked).logits)
    assert opened.config.vocab_size == len(tokenizer)
    assert opened.config.eos_token_id == tokenizer.eos_token_id == opened.generation_config.eos_token_id
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = opened.generate(**asked, max_new_tokens=4, do_sample=False)
    assert answer.shape[1] > asked["input_ids"].shape[1]

    resolved = load_config(str(middle / "configs_tiny.yaml"))
    assert resolved.max_steps == 8
    assert resolved.lr_scheduler.on_budget_change == "refuse", "defaults are written out"
    assert read_catalog(tmp_path / "run").at(4).config == "configs_tiny.yaml"


@pytest.mark.parametrize("folder", ["footsteps/epoch_9/base", "with spaces/and ünïcödé 中"])
def test_case_32_any_folder_name_works(tmp_path, folder):
    run_until_crash(tmp_path / folder, 6)
    assert run(tmp_path / folder) == 0
    assert [line["step"] for line in logged(tmp_path / folder)] == list(range(1, 13))


def test_case_34_names_that_are_not_quite_a_checkpoints_are_left_alone(tmp_path):
    for name in ("step_4_backup", "step_04", "epoch_1"):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "milepost.json").write_text("{}")
    (tmp_path / "run" / "step_7").write_text("a file")
    changes = {**PLAIN, "keep_last_n_checkpoints": 1}
    run(tmp_path / "run", max_steps=6, **changes)
    assert {path.name for path in (tmp_path / "run").iterdir() if path.name[0] != "."} == {
        "latest", "step_6", "metrics.jsonl", "step_4_backup", "step_04", "epoch_1", "step_7",
    }  # fmt: skip


def test_a_rewind_to_a_step_goes_on_from_there(tmp_path):
    run(tmp_path / "run")
    assert run(tmp_path / "run", resume=8) == 0
    assert saved_steps(tmp_path / "run") == [4, 8, 12]
    assert [line["step"] for line in logged(tmp_path / "run")] == list(range(1, 13))


def test_a_new_folder_goes_on_from_another_runs_checkpoint(tmp_path):
    run(tmp_path / "first")
    assert run(tmp_path / "second", resume=str(tmp_path / "first" / "step_8")) == 0
    assert saved_steps(tmp_path / "second") == [12]
    assert logged(tmp_path / "second") == logged(tmp_path / "first")[8:]
    with pytest.raises(CheckpointExistsError, match="resume: auto"):
        run(tmp_path / "second", resume=str(tmp_path / "first" / "step_8"))


def test_what_is_said_at_start_and_per_step(tmp_path, capsys):
    write_rows(tmp_path / "rows.json", 26)
    run(tmp_path / "run", max_steps=None, epochs=1, keep_last_n_checkpoints=2)
    said = capsys.readouterr().out
    assert "22 rows at 2 × 2 make 5 steps an epoch; 2 rows left out each epoch; the run has 5 steps" in said  # noqa: RUF001
    assert "parameters, fp32, on cpu" in said
    assert "begins; the next save is at step 4" in said
    line = next(line for line in said.splitlines() if line.startswith("step 1/5"))
    assert all(word in line for word in ("loss", "lr 5.00e-03", "tokens/s", "next save 4"))


def test_terminal_and_jsonl_are_chosen_by_name_and_logged_by_schedule(tmp_path, capsys):
    changes = {**PLAIN, "log_every_n_steps": 3}
    run(tmp_path / "jsonl", max_steps=7, metric_loggers=["jsonl"], **changes)
    assert "step 3/7" not in capsys.readouterr().out
    assert [line["step"] for line in logged(tmp_path / "jsonl")] == [3, 6]
    run(tmp_path / "terminal", max_steps=7, metric_loggers=["terminal"], **changes)
    assert "step 3/7" in capsys.readouterr().out
    assert not (tmp_path / "terminal" / "metrics.jsonl").exists()


def test_an_incomplete_window_can_be_kept(tmp_path):
    write_rows(tmp_path / "rows.json", 11)
    changes = {**PLAIN, "batch_size": 2, "gradient_accumulation_steps": 2, "drop_incomplete_window": False}
    run(tmp_path / "run", max_steps=None, epochs=2, **changes)
    state = json.loads((tmp_path / "run" / "step_6" / "training_state" / "state.json").read_text())
    assert state["counters"]["samples"] == 22


def test_max_steps_per_epoch_ends_epochs_early(tmp_path):
    at_ends = {"save_every_n_train_steps": None, "checkpoint": {"save": [{"at_epoch_end": True}]}}
    run(tmp_path / "run", max_steps=None, epochs=2, max_steps_per_epoch=3, **{**PLAIN, **at_ends})
    assert saved_steps(tmp_path / "run") == [3, 6]
