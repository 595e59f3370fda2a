"""``milepost save-now``: beside a live run, and without one."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from milepost.cli.app import app
from milepost.storage.backend import LocalBackend
from milepost.storage.layout import RunFolder
from milepost.storage.requests import begin_answering, pending_requests
from milepost.storage.run import open_run

ROOT = Path(__file__).parents[2]
CHILD = """
    import sys
    from milepost import CheckpointManager, KeepLast, OnRequest
    counters = {"n": 0}
    with CheckpointManager(sys.argv[1], {"counters": counters}, save=OnRequest(), keep=KeepLast(1)) as manager:
        step = manager.resume()
        print("ready", flush=True)
        while not manager.should_stop:
            step += 1
            counters["n"] = step
            manager.step(step)
"""


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_live_run_saves_and_the_command_waits_for_it(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        try:
            told = json.loads(call("save-now", tmp_path, "--wait", "--json").stdout)
            assert told["pid"] == child.pid
            assert Path(told["path"]).name == f"step_{told['step']}"
            again = call("save-now", tmp_path, "--wait")
            assert again.exit_code == 0
            assert again.stdout.startswith(f"saved {tmp_path}/step_")
            asked = call("save-now", tmp_path)
            assert asked.stdout == f"asked process {child.pid}, which saves at the end of its step\n"
        finally:
            child.terminate()
    assert pending_requests(RunFolder(tmp_path)) == ()


def test_without_a_live_run_it_says_so(tmp_path):
    result = call("save-now", tmp_path, "--wait")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: no run is live in {tmp_path}") and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_takes_no_requests_is_said_to_take_none(tmp_path):
    _, lock = open_run(tmp_path, LocalBackend())
    try:
        result = call("save-now", tmp_path)
        assert result.exit_code == 1 and "answers no requests" in result.stderr
    finally:
        lock.release()


def test_a_run_that_ends_without_a_save_is_not_waited_for(tmp_path, monkeypatch):
    run, lock = open_run(tmp_path, LocalBackend())
    begin_answering(run, LocalBackend())
    # The run dies as soon as it was asked.
    monkeypatch.setattr("milepost.cli.save_now.read_catalog", lambda path: lock.release() or catalog(path))
    from milepost.storage.catalog import read_catalog as catalog

    result = call("save-now", tmp_path, "--wait")
    assert result.exit_code == 1 and "ended without a save" in result.stderr
    assert len(pending_requests(run)) == 1


@pytest.mark.parametrize("arguments", [["save-now"], ["save-now", ".", "--nothing"]])
def test_wrong_usage_ends_with_2(arguments):
    assert call(*arguments).exit_code == 2
