"""Every verb has help that says what it does, and an example of it."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from milepost.cli.app import app

VERBS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb):
    result = CliRunner().invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert f"Example: milepost {verb}" in result.stdout


def test_the_verbs_are_all_there():
    wanted = {"run", "prove", "validate", "configs", "ls", "show", "verify", "diff", "export", "plot", "save-now"}
    assert wanted <= {*VERBS}
