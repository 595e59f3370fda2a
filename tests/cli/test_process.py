"""The command as a process of its own: how it starts, ends, and bears a reader that leaves."""

from __future__ import annotations

import subprocess
import sys

import pytest

import milepost


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "milepost", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_package_is_the_command():
    with start("--version") as process:
        assert process.communicate() == (f"milepost {milepost.__version__}\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["ls", "no/such/run"], 1), (["validate", "quickstart", "sed=1"], 2), (["run", "quickstart", "sed=1"], 2)],
)
def test_a_mistake_is_told_on_stderr_and_by_the_status(arguments, status):
    with start(*arguments) as process:
        output, told = process.communicate()
    assert (output, process.returncode) == ("", status)
    assert told.startswith("error: ") and told.count("\n") == 1


def test_a_reader_that_leaves_is_no_mistake():
    with start("configs", "cat", "quickstart") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
