"""What the shell completes: verbs, options, names of configurations, and the steps of the run on the line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.samples import save

MAIN = "import sys; sys.argv[0] = 'milepost'; from milepost.cli.app import main; main()"


def ask(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", MAIN],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stdout


def completed(line: str, shell: str = "bash") -> list[str]:
    words = line.split(" ")
    return ask(_MILEPOST_COMPLETE=f"complete_{shell}", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)).split()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("milepost sa", ["save-now"]),
        ("milepost save-now --wa", ["--wait"]),
        ("milepost run q", ["quickstart"]),
        ("milepost run full --config llama3/", ["llama3/8B_full_single_device"]),
        ("milepost prove -c q", ["quickstart"]),
        ("milepost validate q", ["quickstart"]),
    ],
)
def test_a_line_is_completed(line, found):
    assert completed(line) == found


def test_steps_are_those_of_the_run_on_the_line(tmp_path: Path):
    for step in (5, 15, 150):
        save(tmp_path, step)
    assert completed(f"milepost show {tmp_path} 1") == ["15", "150"]
    assert completed(f"milepost verify {tmp_path} ") == ["5", "15", "150"]
    assert completed(f"milepost export {tmp_path} ") == ["best", "latest", "5", "15", "150"]
    assert completed(f"milepost show {tmp_path / 'nowhere'} ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell):
    assert "_MILEPOST_COMPLETE" in ask(_MILEPOST_COMPLETE=f"source_{shell}")
