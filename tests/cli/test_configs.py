"""Configurations on the command line: shipped ones, checking, and the mistakes of people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from milepost.cli.app import app


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_configs_lists_copies_and_prints(tmp_path):
    listed = json.loads(call("configs", "--json").stdout)
    assert [entry["name"] for entry in listed] == [
        "llama3/8B_full_single_device",
        "llama3_2/1B_full_single_device",
        "quickstart",
    ]
    assert "quickstart" in call("configs").stdout
    to = tmp_path / "my.yaml"
    assert call("configs", "copy", "quickstart", to).exit_code == 0
    assert to.read_text() == call("configs", "cat", "quickstart").stdout
    again = call("configs", "copy", "quickstart", to)
    assert again.exit_code == 2 and "exists already" in again.stderr
    unknown = call("configs", "cat", "quickstrat")
    assert unknown.exit_code == 2 and "did you mean 'quickstart'?" in unknown.stderr


@pytest.mark.parametrize("name", ["quickstart", "llama3/8B_full_single_device", "llama3_2/1B_full_single_device"])
def test_validate_prints_what_would_run(name):
    result = call("validate", name, "seed=7")
    assert result.exit_code == 0
    printed = yaml.safe_load(result.stdout.split("\n\n", 1)[1])
    assert printed["seed"] == 7
    assert json.loads(call("validate", name, "seed=7", "--json").stdout) == printed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "fulll"], "did you mean 'full'?"),
        (["run", "full"], "needs --config"),
        (["run", "quickstart", "--config", "x.yaml"], "has its own configuration"),
        (["run", "full", "--config", "nowhere.yaml"], "cannot be read: No such file"),
        (["run", "full", "--config", "quikstart"], "did you mean 'quickstart'?"),
        (["run", "quickstart", "save_every_n_train_step=5"], "did you mean 'save_every_n_train_steps'?"),
        (["validate", "quickstart", "oops"], "must be key=value"),
    ],
)
def test_case_33_a_mistake_is_one_paragraph_and_status_2(arguments, text):
    result = call(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "", "a: ${b}", "\x00", "just words"])
def test_a_file_that_is_no_configuration_is_said_so(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    result = call("validate", path)
    assert result.exit_code == 2
    assert str(path) in result.stderr
