"""SIGKILL at every operation of a save and at any instant of training: the run goes on bit for bit, nothing stays."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.storage.catalog import read_catalog
from milepost.storage.verify import verify_checkpoint
from tests.crash.job import LAST_STEP, RESULT
from tests.manager import training

MODES = list(training.MODES)
ROOT = Path(__file__).parents[2]


class Server:
    """The other end of tests/crash/server.py."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.unbroken = self.result(self.fresh("unbroken"))

    def fresh(self, name: str) -> Path:
        folder = self._folder / name / "run"
        folder.mkdir(parents=True)
        return folder

    def run(self, folder: Path, **request: Any) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"folder": str(folder), **request}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def result(self, folder: Path, **request: Any) -> dict[str, Any]:
        assert self.run(folder, **request) == 0
        return json.loads((folder.parent / RESULT).read_text())  # type: ignore[no-any-return]

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("crash"))
    yield server
    server.close()


def check_after_kill(folder: Path) -> None:
    """Nothing incomplete has a final name, and no older checkpoint is harmed."""
    for path in folder.glob("step_*"):
        if "." not in path.name:
            assert verify_checkpoint(path) == [], f"{path} is visible and not whole"
    assert read_catalog(folder).damaged == ()
    assert read_catalog(folder).ignored == ()


def check_end(folder: Path, result: dict[str, Any], unbroken: dict[str, Any]) -> None:
    """The resumed run ended as the unbroken one, and left only what its rules keep."""
    assert result["state"] == unbroken["state"]
    steps = sorted(checkpoint.step for checkpoint in read_catalog(folder).checkpoints)
    assert steps[-1] == LAST_STEP and len(steps) <= 2
    left = {path.name for path in folder.iterdir()}
    assert left <= {*(f"step_{step}" for step in steps), ".milepost", ".trash", "best", "latest"}
    assert not any((folder / ".trash").glob("*"))
    assert (folder / "latest").resolve() == folder / f"step_{LAST_STEP}"
    assert (folder / "best").resolve().parent == folder and (folder / "best").is_dir()


def kill_and_resume(server: Server, name: str, **request: Any) -> None:
    """One experiment: killed once, then run to the end by the same command."""
    folder = server.fresh(name)
    code = server.run(folder, **request)
    assert code in (0, -signal.SIGKILL)
    check_after_kill(folder)
    had = read_catalog(folder).newest
    result = server.result(folder, mode=request.get("mode", "overlapped"))
    assert result["start"] == (0 if had is None else had.step)
    check_end(folder, result, server.unbroken)


def _operations(server: Server, name: str) -> int:
    return int(server.result(server.fresh(name))["operations"])


def test_case_10_a_kill_at_operations_of_any_save_leaves_a_run_that_continues_bit_for_bit(server: Server) -> None:
    total = _operations(server, "count")
    # Spread over the whole run; the long test takes every operation there is.
    for at in range(1, total + 1, max(1, total // 30)):
        kill_and_resume(server, f"at-{at}", kill_at=at, when=("before", "after", "torn")[at % 3], mode=MODES[at % 2])


def test_a_kill_at_any_instant_leaves_a_run_that_continues_bit_for_bit(server: Server) -> None:
    chance = random.Random(4)
    for at in range(12):
        kill_and_resume(server, f"instant-{at}", kill_after=chance.uniform(0.0, 0.25), mode=MODES[at % 3])


def test_a_run_killed_again_and_again_still_ends_as_the_unbroken_one(server: Server) -> None:
    folder = server.fresh("again and again")
    for at in (30, 25, 20, 15, 10):
        assert server.run(folder, kill_at=at, when="torn") == -signal.SIGKILL
        check_after_kill(folder)
    check_end(folder, server.result(folder), server.unbroken)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["before", "after", "torn"])
def test_case_10_a_kill_at_every_operation_of_every_save(server: Server, when: str, mode: str) -> None:
    total = _operations(server, f"count-{when}-{mode}")
    for at in range(1, total + 1):
        kill_and_resume(server, f"{when}-{mode}-{at}", kill_at=at, when=when, mode=mode)


@pytest.mark.long
def test_many_kills_at_random_instants(server: Server) -> None:
    chance = random.Random(8)
    for at in range(100):
        kill_and_resume(server, f"random-{at}", kill_after=chance.uniform(0.0, 0.3), mode=MODES[at % 3])
