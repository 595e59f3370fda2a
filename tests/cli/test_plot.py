"""``milepost plot``: what a run's log and manifests say, as a picture, as text and as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from milepost.cli.app import app
from tests.storage.samples import save


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["plot", *map(str, arguments)])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten steps of falling loss, one of them no number; scores at two saves, the later one unhealthy."""
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / "a run"
    folder.mkdir()
    lines = [json.dumps({"step": step, "loss": 10 / step if step != 7 else "nan", "lr": 0.1}) for step in range(1, 11)]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 11, "lo']))
    save(folder, 5, metrics={"val_loss": 3.0, "loss": 2.5}, healthy=True)
    save(folder, 10, metrics={"val_loss": float("inf"), "loss": 1.5}, healthy=False)
    return folder


def test_json_has_the_logs_numbers_and_the_manifests_scores(run):
    found = json.loads(call(run, "--json").stdout, parse_constant=pytest.fail)
    assert found["saved"] == [5, 10] and found["unhealthy"] == [10]
    assert {*found["metrics"]} == {"loss", "val_loss"}
    assert found["metrics"]["loss"][4] == [5, 2.0] and found["metrics"]["loss"][6] == [7, "nan"]
    assert found["metrics"]["val_loss"] == [[5, 3.0], [10, "inf"]]
    chosen = json.loads(call(run, "--json", "--metric", "lr").stdout)
    assert {*chosen["metrics"]} == {"lr"}


def test_text_fits_the_terminal_and_marks_the_saves(run):
    lines = call(run, "--ascii").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("   10 |*") and lines[13].split()[0] == "1"
    assert "".join(lines[:14]).count("*") == 9 and "".join(lines[:14]).count("o") == 1
    assert lines[14].count("^") == 1 and lines[14].endswith("!")
    assert lines[15].split() == ["1", "10"]
    assert lines[16] == "* loss, o val_loss; ^ saved; ! unhealthy"


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_picture_is_written_and_replaced(run, tmp_path, suffix):
    path = tmp_path / f"loss{suffix}"
    path.write_text("an older one")
    result = call(run, "-o", path, "--metric", "loss", "--metric", "lr")
    assert (result.exit_code, result.stdout) == (0, f"wrote {path}\n")
    assert path.stat().st_size > 1000
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a run", path.name]


def test_a_run_without_a_log_has_its_scores(tmp_path):
    save(tmp_path, 5, metrics={"accuracy": 0.5})
    save(tmp_path, 9, metrics={"accuracy": 0.5})
    assert "* accuracy; ^ saved" in call(tmp_path, "--ascii").stdout


def test_without_matplotlib_a_picture_is_refused_and_text_is_not(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = call(run, "-o", tmp_path / "loss.png")
    assert result.exit_code == 2
    assert 'pip install "milepost[plot]"' in result.stderr and "--ascii" in result.stderr
    assert not (tmp_path / "loss.png").exists()
    assert call(run, "--ascii").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["{run}"], 2, "-o loss.png, or --ascii"),
        (["{run}", "-o", "loss.gif"], 2, "ends in .png, .svg or .pdf"),
        (["{run}", "--ascii", "--metric", "accuracy"], 2, "no metric 'accuracy'; it has loss, lr, val_loss"),
        (["{run}/..", "--ascii"], 1, "nothing to show"),
        (["{run}/nowhere", "--ascii"], 1, "there is no run folder"),
    ],
)
def test_a_mistake_is_one_paragraph(run, arguments, status, text):
    result = call(*(each.replace("{run}", str(run)) for each in arguments))
    assert result.exit_code == status
    assert text in result.stderr and result.stderr.count("\n") == 1


def test_numbers_that_are_all_none_are_told(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": "nan"}\n')
    result = call(tmp_path, "--ascii")
    assert result.exit_code == 1 and "none of these numbers is finite" in result.stderr
