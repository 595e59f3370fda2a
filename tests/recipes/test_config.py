"""Configurations: every mistake is found before anything is loaded, and says key, value, rule and the nearest key."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from milepost.errors import ConfigError
from milepost.policy.retention import DiskBudget, KeepBest, KeepEvery, KeepLast
from milepost.policy.saving import AtEpochEnd, AtSteps, EveryMinutes, EverySteps, First, LogSpaced
from milepost.policy.spread import KeepLogSpaced, KeepWithin
from milepost.recipes.config import FIELDS, RecipeConfig
from milepost.recipes.config_files import (
    GUARDED,
    changed_keys,
    config_file_name,
    load_config,
    parse_config,
    resolved_yaml,
    shipped_configs,
)
from milepost.recipes.optimizer_settings import SETTINGS
from milepost.recipes.rules import keep_rules, keep_rules_from_texts, schedules, spell_keep_rule, stored_keep_rules


def quickstart(*overrides: str) -> RecipeConfig:
    return load_config("quickstart", overrides)


@pytest.mark.parametrize("name", shipped_configs())
def test_a_shipped_configuration_is_sound_and_its_resolved_form_is_the_same(name):
    config = load_config(name)
    assert parse_config(resolved_yaml(config), "again") == config


TEXTS = ["1e5", "10", "true", "null", "2026-01-01", "${seed}", "\\${a}", "\\\\${", "a\\", "${", "é #1: 'x'\n", "???x"]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back_from_the_resolved_form_as_it_was(text):
    shipped = quickstart()
    tokenizer = shipped.tokenizer.model_copy(update={"chat_template": text})
    config = shipped.model_copy(update={"output_dir": text, "tokenizer": tokenizer})
    assert parse_config(resolved_yaml(config), "again") == config


def test_an_error_has_its_key_and_value():
    with pytest.raises(ConfigError) as caught:
        quickstart("validation_dataset.split_from_train=0")
    assert (caught.value.key, caught.value.value) == ("validation_dataset.split_from_train", 0)
    assert str(caught.value).count("split_from_train") == 1


def test_the_rfc_story_is_shipped():
    config = load_config("llama3/8B_full_single_device")
    assert (config.batch_size, config.gradient_accumulation_steps) == (2, 16)
    assert config.save_schedules() == [EverySteps(500)]
    assert config.keep_rules() == [KeepLast(1)]


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        (["save_every_n_train_step=5"], ["save_every_n_train_step'", "did you mean 'save_every_n_train_steps'?"]),
        (["modle.path=x"], ["unknown key 'modle'", "did you mean 'model'?"]),
        (["model.pth=x"], ["unknown key 'model.pth'", "did you mean 'model.path'?"]),
        (["dataset.datafiles=x"], ["did you mean 'dataset.data_files'?"]),
        (["validation_dataset.split_from_trian=0.5"], ["split_from_trian"]),
        (["optimizer.betaz=[0.9,0.95]"], ["betaz", "did you mean 'betas'?"]),
        (["checkpoint.bakground=true"], ["did you mean 'checkpoint.background'?"]),
        (["save_every_n_train_steps=0"], ["save_every_n_train_steps: 0", "greater than or equal to 1"]),
        (["save_every_n_train_steps=-5"], ["save_every_n_train_steps: -5"]),
        (["save_every_n_train_steps=1.5"], ["save_every_n_train_steps: 1.5", "integer"]),
        (['save_every_n_train_steps="10"'], ["save_every_n_train_steps: '10'", "integer"]),
        (["save_every_n_train_steps=true"], ["save_every_n_train_steps: True", "integer"]),
        (["batch_size=0"], ["batch_size: 0"]),
        (["seed=-1"], ["seed: -1"]),
        (["optimizer.lr=0"], ["optimizer.lr: 0"]),
        (['optimizer.lr="1e-5"'], ["optimizer.lr: '1e-5'"]),
        (["optimizer.name=Adamw"], ["did you mean 'AdamW'?"]),
        (["optimizer.name=LBFGS"], ["closure"]),
        (["optimizer.name=SparseAdam"], ["sparse"]),
        (["dtype=fp16"], ["dtype: 'fp16'", "'fp32' or 'bf16'"]),
        (["lr_scheduler.name=cosin"], ["lr_scheduler.name: 'cosin'"]),
        (["lr_scheduler.warmup_ratio=0.1"], ["either num_warmup_steps or warmup_ratio"]),
        (["model.path=x"], ["either path", "or config"]),
        (["~model.config.model_type"], ["needs model_type"]),
        (["tokenizer.vocab_size=100"], ["tokenizer.vocab_size: 100"]),
        (["tokenizer.path=x"], ["either path"]),
        (["~tokenizer"], ["tokenizer.path or tokenizer.vocab_size"]),
        (["~output_dir"], ["output_dir is needed"]),
        (["dataset.source=json"], ["needs data_files"]),
        (["dataset={source: some/name, data_files: x}"], ["data_files need source"]),
        (["dataset.columns={a: b}"], ["embedded takes no"]),
        (["~nothing"], ["~nothing drops a key that is not set"]),
        (["=5"], ["must be key=value"]),
        (["checkpoint.save=[{every_n_train_steps: 5}]"], ["save_every_n_train_steps and checkpoint.save"]),
        (["checkpoint.keep=[{last: 5}]"], ["keep_last_n_checkpoints and keep_best_n_checkpoints and checkpoint.keep"]),
        (["checkpoint.max_shard_size=big"], ["max_shard_size='big'"]),
        (["metric_loggers=[terminal, wandb]"], ["metric_loggers"]),
        (["resume="], ["resume"]),
        (["lr=1"], ["unknown key 'lr'", "did you mean 'optimizer.lr'?"]),
        (["weight_decay=0.1"], ["did you mean 'optimizer.weight_decay'?"]),
        (["data_files=x"], ["did you mean 'dataset.data_files'?"]),
        (["resume={form: 7}"], ["did you mean 'resume.from'?"]),
        (["resume.allow_changes=[sed]"], ["'sed'", "did you mean 'seed'?"]),
        (["dataset={source: text, data_files: x}"], ["source: text", "form: alpaca"]),
        (["dataset={source: json, data_files: x, columns: {instrucion: q}}"], ["did you mean 'instruction'?"]),
        (["optimizer.weight_decay='0.1'"], ["weight_decay: '0.1' must be a number"]),
        (["optimizer.lr=.inf"], ["optimizer.lr: inf", "finite"]),
        (["seed=9223372036854775808"], ["seed: 9223372036854775808", "less than"]),
        (["validation_dataset.source=json"], ["validation_dataset.source", "cannot stand beside"]),
        (["validation_dataset={sorce: json}"], ["did you mean 'validation_dataset.source'?"]),
        (["output_dir=''"], ["output_dir: ''"]),
        (["lr_scheduler="], ["lr_scheduler: None", "section of keys: name, num_warmup_steps"]),
        (["checkpoint.save=[{every_n_train_steps: 1}, {evry_minutes: 1}]"], ["checkpoint.save[1]: there is no rule"]),
    ],
)
def test_case_33_a_wrong_setting_is_refused_by_key_value_and_rule(overrides, texts):
    with pytest.raises(ConfigError) as caught:
        quickstart(*overrides)
    for text in ["quickstart" if "=" in overrides[0][1:] else "", *texts]:
        assert text in str(caught.value)


@pytest.mark.parametrize(("value", "rules"), [("null", []), ("-1", []), ("1", [KeepLast(1)]), ("7", [KeepLast(7)])])
def test_case_05_keep_last_takes_a_number_or_all(value, rules):
    assert quickstart(f"keep_last_n_checkpoints={value}", "~keep_best_n_checkpoints").keep_rules() == rules


@pytest.mark.parametrize("value", ["0", "-2", '"2"', "1.5", "true", "[1]"])
def test_case_05_keep_last_refuses_everything_else(value):
    with pytest.raises(ConfigError, match="keep_last_n_checkpoints"):
        quickstart(f"keep_last_n_checkpoints={value}")


@pytest.mark.parametrize(
    "overrides",
    [
        ["~validation_dataset", "~validate_every_n_train_steps", "best_metric=val_loss"],
        ["~validation_dataset"],
        ["~validate_every_n_train_steps"],
        ["validate_every_n_train_steps=7", "save_every_n_train_steps=10", "max_steps=60"],
        ["~keep_best_n_checkpoints", "best_metric=loss"],
        ["~keep_best_n_checkpoints", "~keep_last_n_checkpoints", "checkpoint.keep=[{best: 1, metric: accuracy}]"],
        ["validate_every_n_train_steps={at_steps: [3, 5]}"],
        ["keep_last_n_checkpoints=-1"],
        ["~validation_dataset", "max_validation_batches=2", "~validate_every_n_train_steps"],
    ],
)
def test_case_15_settings_that_can_never_work_are_refused(overrides):
    with pytest.raises(ConfigError):
        quickstart(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["validate_every_n_train_steps=15"],
        ["validate_every_n_train_steps={log_spaced: {first: 25, factor: 2}}"],
        ["best_metric=loss", "~validate_every_n_train_steps"],
        ["~validation_dataset", "~validate_every_n_train_steps"],
        ["~save_every_n_train_steps", "checkpoint.save=[{every_minutes: 30}]"],
        ["~save_every_n_train_steps", "~keep_best_n_checkpoints"],
        ["~max_steps"],
        ["max_steps=5"],
    ],
)
def test_case_15_settings_that_can_work_are_not_refused(overrides):
    quickstart(*overrides)


def test_the_best_goes_by_val_loss_if_there_is_validation_else_by_loss():
    assert quickstart().keep_rules()[1] == KeepBest(1, "val_loss")
    without = quickstart("~validation_dataset", "~validate_every_n_train_steps")
    assert without.keep_rules()[1] == KeepBest(1, "loss")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (5, [EverySteps(5)]),
        ({"every_n_train_steps": 5}, [EverySteps(5)]),
        ([{"at_steps": [1, 5]}, {"first": True}], [AtSteps([1, 5]), First()]),
        ([{"log_spaced": {"first": 3, "factor": 1.5}}], [LogSpaced(3, 1.5)]),
        ([{"every_minutes": 2.5}, {"at_epoch_end": True}], [EveryMinutes(2.5), AtEpochEnd()]),
        ([], []),
    ],
)
def test_one_grammar_of_when(rules, expected):
    assert schedules(rules, "save") == expected


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([{"evry_n_train_steps": 5}], r"save\[0\]: there is no rule.*did you mean 'every_n_train_steps'"),
        ([{"every_n_train_steps": 0}], r"EverySteps\(n=0\)"),
        ([{"log_spaced": {"frist": 1}}], "did you mean 'first'"),
        ([{"log_spaced": 5}], "must name its settings"),
        ([{"first": False}], "must be true"),
        ([{"first": True, "at_steps": [1]}], "must be one rule"),
        (["first"], "must be one rule"),
    ],
)
def test_rules_that_are_none_are_refused(rules, text):
    with pytest.raises(ConfigError, match=text):
        schedules(rules, "save")


def test_one_grammar_of_what():
    rules = [{"last": 2}, {"best": 1, "metric": "val_loss", "mode": "max"}, {"every": 100}]
    assert keep_rules(rules, "keep") == [KeepLast(2), KeepBest(1, "val_loss", "max"), KeepEvery(100)]


RULES = [
    ("last=2", {"last": 2}, KeepLast(2)),
    ("last=2,level=weights", {"last": 2, "level": "weights"}, KeepLast(2, level="weights")),
    ("best=1,metric=val_loss", {"best": 1, "metric": "val_loss"}, KeepBest(1, "val_loss")),
    (
        "best=3,metric=f1,mode=max,level=weights",
        {"best": 3, "metric": "f1", "mode": "max", "level": "weights"},
        KeepBest(3, "f1", "max", level="weights"),
    ),
    ("every=1000", {"every": 1000}, KeepEvery(1000)),
    ("log_spaced=10,factor=2", {"log_spaced": {"first": 10, "factor": 2}}, KeepLogSpaced(10, 2)),
    ("log_spaced=10,factor=1.5", {"log_spaced": 10, "factor": 1.5}, KeepLogSpaced(10, 1.5)),
    ("within=2h", {"within": "2h"}, KeepWithin("2h")),
    ("within=90", {"within": 90}, KeepWithin(90)),
    ("disk_budget=500GB", {"disk_budget": "500GB"}, DiskBudget("500GB")),
    ("disk_budget=80%", {"disk_budget": "80%"}, DiskBudget("80%")),
]


@pytest.mark.parametrize(("text", "item", "rule"), RULES)
def test_one_grammar_of_keep_rules_in_yaml_and_on_the_command_line(text, item, rule):
    assert keep_rules([item], "keep") == keep_rules_from_texts([text], "--keep") == [rule]
    assert spell_keep_rule(rule) == text


def test_a_rule_of_ones_own_is_spelled_as_python_shows_it():
    class Mine:
        def __repr__(self):
            return "Mine()"

        def reasons_to_keep(self, checkpoints, facts):
            return {}

    assert spell_keep_rule(Mine()) == "Mine()"


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([{"lst": 2}], "must be one rule"),
        ([{"last": 0}], r"KeepLast\(n=0\)"),
        ([{"best": 1}], "metric"),
        ([{"best": 1, "metric": "x", "mod": "max"}], "did you mean 'mode'"),
        ([{"last": 1, "every": 2}], "must be one rule"),
        ({"last": 1}, "must be a list"),
        ([{"last": 1, "level": "half"}], r"KeepLast\(level='half'\)"),
        ([{"last": 1, "levl": "full"}], "did you mean 'level'"),
        ([{"within": "soon"}], "KeepWithin: duration='soon'"),
        ([{"disk_budget": "120%"}], "at most 100%"),
        ([{"log_spaced": {"frist": 10}}], "did you mean 'first'"),
        ([{"log_spaced": 10, "mode": "min"}], "no setting 'mode'"),
    ],
)
def test_keep_rules_that_are_none_are_refused(rules, text):
    with pytest.raises(ConfigError, match=text):
        keep_rules(rules, "keep")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("~validation_dataset", "~validate_every_n_train_steps"),
        ("best_metric=loss", "best_mode=max"),
        ("keep_last_n_checkpoints=-1", "~keep_best_n_checkpoints"),
        ("~keep_last_n_checkpoints", "~keep_best_n_checkpoints", "checkpoint.keep=[{every: 5}, {last: 1}]"),
        (
            "~keep_last_n_checkpoints",
            "~keep_best_n_checkpoints",
            "checkpoint.keep=[{log_spaced: {first: 10, factor: 2}}, {within: 2h, level: weights}, {disk_budget: 80%}]",
        ),
    ],
)
def test_the_rules_of_a_stored_configuration_are_those_it_ran_with(overrides):
    import yaml

    config = quickstart(*overrides)
    assert stored_keep_rules(yaml.safe_load(resolved_yaml(config))) == config.keep_rules()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_known_settings_of_an_optimizer_are_those_that_torch_has(name):
    assert set(SETTINGS[name]) == set(inspect.signature(getattr(torch.optim, name)).parameters) - {"params"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("llama3/8B_full_single_device", "llama3_8b_full_single_device.yaml"),
        ("quickstart", "quickstart.yaml"),
        ("my.yaml", "my.yaml"),
        ("conf/My Run.yml", "conf_my run.yaml"),
        ("/home/me/Run.yaml", "run.yaml"),
        ("../elsewhere/run.yaml", "run.yaml"),
    ],
)
def test_the_name_under_which_a_configuration_is_stored(given, name):
    assert config_file_name(given) == name


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("seed=1", ["seed"]),
        ("batch_size=4", ["batch_size"]),
        ("model.config.hidden_size=64", ["model.config.hidden_size"]),
        ("tokenizer.vocab_size=600", ["tokenizer.vocab_size"]),
        ("validation_dataset.split_from_train=0.2", ["validation_dataset.split_from_train"]),
        ("optimizer.name=Adam", ["optimizer.name"]),
        ("optimizer.lr=1", []),
        ("max_steps=500", []),
        ("save_every_n_train_steps=30", []),
        ("log_every_n_steps=7", []),
        ("output_dir=elsewhere", []),
        ("resume=never", []),
    ],
)
def test_which_changes_a_resume_refuses(override, changed):
    assert changed_keys(quickstart(), quickstart(override)) == changed


def test_fields_are_those_that_the_forms_read():
    from milepost.data.instruct import FORMS

    assert {name: form.fields for name, form in FORMS.items()} == FIELDS


def test_a_changed_source_of_validation_rows_changes_the_training_rows():
    elsewhere = quickstart("~validation_dataset", "validation_dataset.source=embedded")
    assert changed_keys(quickstart(), elsewhere) == ["validation_dataset.split_from_train"]
    assert changed_keys(elsewhere, elsewhere.model_copy(update={"validation_dataset": None})) == []


def test_guarded_keys_exist():
    for name in GUARDED:
        assert name.split(".")[0] in RecipeConfig.model_fields


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("resume=auto", "auto"),
        ("resume=never", "never"),
        ("resume=400", 400),
        ("resume=runs/a/step_4", "runs/a/step_4"),
    ],
)
def test_resume_has_a_short_form(override, expected):
    assert quickstart(override).resume.from_ == expected
    full: Any = quickstart("resume={from: 7, allow_changes: [seed]}").resume
    assert (full.from_, full.allow_changes) == (7, ["seed"])
