"""Signals to a real process: SIGTERM and SIGINT save and end it, twice ends it at once, SIGUSR1 saves and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.manager.training import Run, same, step_folders

ROOT = Path(__file__).parents[2]

CHILD = """
    import os, signal, sys
    from pathlib import Path
    from tests.manager.training import Run

    folder, mine = Path(sys.argv[1]), sys.argv[2] == "own handler"
    if mine:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: print("chained", number, flush=True))
    run = Run()
    with run.manager(folder, every=1000, signals=True) as manager:
        step = manager.resume()
        while step < 10_000_000:
            step += 1
            run.train_step()
            if step == 3:
                # The parent answers with a signal, which arrives before this read returns.
                print("step 3", flush=True)
                sys.stdin.readline()
            if step == 8 and mine:
                break
            manager.step(step)
            if manager.should_stop:
                print("stopped by", manager.stop_signal.name, "at", step, flush=True)
                sys.exit(128 + manager.stop_signal)
    print("ended at", step, flush=True)
"""


def _start(folder: Path, mode: str = "") -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), mode],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "step 3\n"
    return child


def _finish(child: subprocess.Popen[str]) -> str:
    output, _ = child.communicate("\n", timeout=120)
    return output


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT")])
def test_case_29_a_signal_makes_one_complete_save_of_the_current_step(tmp_path, number, name):
    child = _start(tmp_path)
    child.send_signal(number)
    assert _finish(child) == f"stopped by {name} at 3\n"
    assert child.returncode == 128 + number
    assert step_folders(tmp_path) == ["step_3"]
    run = Run()
    with run.manager(tmp_path) as manager:
        assert manager.resume() == 3
        assert manager.latest().reasons == (name,)
    unbroken = Run()
    for _ in range(3):
        unbroken.train_step()
    assert same(run.weights(), unbroken.weights())


def test_case_29_the_second_sigterm_ends_it_at_once(tmp_path):
    child = _start(tmp_path)
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGTERM)
    # Two equal signals may be delivered as one while the process does not run: ask until it is gone.
    while child.poll() is None:
        child.send_signal(signal.SIGTERM)
    assert child.returncode == -signal.SIGTERM
    assert step_folders(tmp_path) == []
    child.communicate()


def test_case_29_sigusr1_saves_and_goes_on_and_own_handlers_are_called_too(tmp_path):
    child = _start(tmp_path, "own handler")
    child.send_signal(signal.SIGUSR1)
    output = _finish(child)
    assert output == f"chained {int(signal.SIGUSR1)}\nended at 8\n"
    assert child.returncode == 0
    assert step_folders(tmp_path) == ["step_3", "step_7"]


def test_handlers_are_put_back_only_where_ours_is_still_in_place(tmp_path):
    def mine(*_: object) -> None:
        pass

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        with Run().manager(tmp_path, signals=True):
            assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
            signal.signal(signal.SIGUSR1, mine)
        assert signal.getsignal(signal.SIGUSR1) is mine
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_ignored_signal_stays_ignored(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Run().manager(tmp_path, signals=True):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
