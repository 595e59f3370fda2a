"""Mistakes are told in one paragraph, before a model is loaded: what, where, and what to do next."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from milepost.cli.app import app
from milepost.errors import (
    CheckpointNotFoundError,
    ConfigError,
    MilepostError,
    RunLockedError,
    SaveFailedError,
)
from milepost.recipes import full
from tests.recipes.runs import logged, rows, run, saved_steps, settings, write_rows
from tests.recipes.test_full_saving import PLAIN


@pytest.fixture
def no_model(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(full, "build_model", refuse)


def broken_row(path):
    found = rows(9)
    del found[6]["output"]
    path.write_text(json.dumps(found))


DATA = {
    "absent": (lambda path: None, r"dataset\.data_files: .*rows\.json cannot be read: No such file"),
    "a folder": (lambda path: path.mkdir(), r"rows\.json cannot be read: Is a directory"),
    "no JSON": (lambda path: path.write_text("{oops"), r"dataset: .*rows\.json cannot be read as json \(.+\)"),
    "no bytes": (lambda path: path.write_bytes(b""), r"rows\.json (has no rows|cannot be read as json)"),
    "no rows": (lambda path: path.write_text("[]"), r"dataset: .*rows\.json has no rows"),
    "a row without a field": (broken_row, r'rows\.json, row 7 \(counted from 1\): the field "output"'),
    "another form": (lambda path: path.write_text('[{"prompt": "a"}]'), r'row 1 .*"instruction" is missing.*"prompt"'),
}


@pytest.mark.parametrize("case", DATA)
def test_data_that_cannot_be_used(tmp_path, no_model, case):
    make, told = DATA[case]
    values = settings(tmp_path / "run")
    (tmp_path / "rows.json").unlink()
    make(tmp_path / "rows.json")
    with pytest.raises(ConfigError, match=told) as caught:
        run(tmp_path / "run", dataset=values["dataset"])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


SETTINGS = {
    "no such model": ({"model": {"path": "/no/such/model"}}, "model.path: there is no folder /no/such/model"),
    "a folder without a model": ({"model": {"path": "."}}, r"model\.path: the folder \. has no config\.json"),
    "no such tokenizer": ({"tokenizer": {"path": "./nowhere"}}, "tokenizer: there is no folder nowhere"),
    "too small a vocabulary": ({"tokenizer__vocab_size": 260}, r"tokenizer\.vocab_size: 260 is too few.* 261"),
    "more rows held out than there are": ({"validation_dataset": {"split_from_train": 24}}, "none would be left"),
    "a step larger than the data": ({"batch_size": 50}, r"20 rows are fewer than the 50 . 2 of one step"),
    "no such device": ({"device": "cuda:77"}, "device: cuda:77 cannot be used here"),
    "no such split": ({"dataset__split": "tset"}, r"dataset: .*cannot be read as json.*tset"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_cannot_work(tmp_path, no_model, case):
    changes, told = SETTINGS[case]
    with pytest.raises(ConfigError, match=told) as caught:
        run(tmp_path / "run", **changes)
    assert "\n" not in str(caught.value)


MODELS = {
    "no such kind": ({"model__config__model_type": "lama"}, r"model\.config: .*lama"),
    "heads that do not divide": ({"model__config__num_attention_heads": 5}, r"model\.config: "),
    "an embedding too small": ({"model__config__vocab_size": 100}, "the tokenizer has .* only 100 rows"),
    "a value the optimizer refuses": ({"optimizer__betas": [2.0, 0.9]}, "torch.optim.AdamW refuses"),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_and_optimizers_that_cannot_be_made(tmp_path, case):
    changes, told = MODELS[case]
    with pytest.raises(ConfigError, match=told):
        run(tmp_path / "run", **changes)


def test_a_folder_that_a_live_run_holds(tmp_path, no_model):
    from milepost import CheckpointManager

    with CheckpointManager(tmp_path / "run", {"counters": {}}), pytest.raises(RunLockedError, match="in use"):
        run(tmp_path / "run")


def test_a_folder_that_cannot_be_made(tmp_path, no_model):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveFailedError, match="cannot be written to"):
        run(tmp_path / "run" / "inner", output_dir=str(tmp_path / "file" / "run"))


@pytest.fixture
def finished(tmp_path):
    run(tmp_path / "run", max_steps=4, **PLAIN)
    return tmp_path / "run"


CHANGES = {
    "seed": {"seed": 9},
    "batch_size": {"batch_size": 4},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
    "model.config.hidden_size": {"model__config__hidden_size": 64},
    "tokenizer.vocab_size": {"tokenizer__vocab_size": 299},
    "dtype": {"dtype": "bf16"},
}


@pytest.mark.parametrize("key", CHANGES)
def test_changed_settings_are_refused_by_name(finished, no_model, key):
    with pytest.raises(ConfigError, match=f"other settings: {key}.*allow_changes: .{key}"):
        run(finished, max_steps=8, **{**PLAIN, **CHANGES[key]})
    assert saved_steps(finished) == [4]


@pytest.mark.parametrize(
    "changes", [{"keep_last_n_checkpoints": 1}, {"save_every_n_train_steps": 3}, {"log_every_n_steps": 2}]
)
def test_length_saving_and_logging_change_freely(finished, changes):
    assert run(finished, max_steps=8, **{**PLAIN, **changes}) == 0


@pytest.mark.parametrize("key", ["seed", "batch_size"])
def test_a_change_that_is_allowed_goes_on(finished, key, capsys):
    changes = {**PLAIN, **CHANGES[key], "resume": {"allow_changes": [key]}}
    assert run(finished, max_steps=8, **changes) == 0
    assert saved_steps(finished) == [4, 8]
    told = capsys.readouterr().out
    assert ("going on with epoch 2" in told) == (key == "seed"), "another order of rows begins a new epoch"


def test_another_learning_rate_counts_from_the_next_step_on(finished):
    run(finished, max_steps=6, **{**PLAIN, "optimizer__lr": 0.003})
    assert [line["lr"] for line in logged(finished)] == [0.005, 0.01, 0.01, 0.01, 0.003, 0.003]


def test_a_changed_data_file_is_refused_unless_allowed(finished, no_model, monkeypatch, capsys):
    write_rows(finished.parent / "rows.json", 40)
    with pytest.raises(ConfigError, match=r"trained on other rows.*allow_changes: \[dataset\]"):
        run(finished, max_steps=8, **PLAIN)
    monkeypatch.undo()
    assert run(finished, max_steps=8, resume={"allow_changes": ["dataset"]}, **PLAIN) == 0
    assert "going on with epoch 2" in capsys.readouterr().out
    assert run(finished, max_steps=10, **PLAIN) == 0, "from then on it is the run's own data"


@pytest.mark.parametrize(
    ("source", "told"),
    [(3, r"no checkpoint of that step. It has step_4"), ("/no/such/step_4", "does not exist"), (".", "milepost.json")],
)
def test_a_checkpoint_that_is_not_there(tmp_path, finished, no_model, source, told):
    folder = finished if isinstance(source, int) else tmp_path / "new"
    with pytest.raises(CheckpointNotFoundError, match=told):
        run(folder, max_steps=8, resume=source, **PLAIN)


def test_a_checkpoint_of_another_program_is_no_origin(tmp_path, no_model):
    from milepost import CheckpointManager

    with CheckpointManager(tmp_path / "run", {"counters": {}}, signals=False) as checkpoints:
        checkpoints.step(1)
    with pytest.raises(ConfigError, match="not written by this recipe"):
        run(tmp_path / "run")


@pytest.mark.parametrize(
    ("error", "status"), [(ConfigError("no such thing"), 2), (MilepostError("it failed"), 1), (OSError("disk"), 1)]
)
def test_the_command_line_tells_errors_in_one_paragraph_with_a_status(monkeypatch, error, status):
    def fail(config, name):
        raise error

    monkeypatch.setattr(full, "main", fail)
    ended = CliRunner().invoke(app, ["run", "quickstart"])
    assert ended.exit_code == status
    assert ended.stderr == f"error: {error}\n"
