"""A save that is due while another is written: it waits, or is skipped and said, and nothing else is lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from milepost.capturing import Capturer
from milepost.closing import finish
from milepost.errors import SaveFailedError
from milepost.storage.backend import LocalBackend
from milepost.storage.backend.local import LocalFile
from milepost.storage.catalog import read_catalog
from milepost.storage.verify import verify_checkpoint
from tests.manager.training import MODES, Run


class GatedBackend(LocalBackend):
    """Writes nothing until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Event()

    def create(self, path: Path, size: int | None = None) -> LocalFile:
        self.waiting.set()
        self.gate.wait()
        return super().create(path, size)


class FailingAtOnce(LocalBackend):
    """Makes no folder while ``bad``."""

    def __init__(self) -> None:
        self.bad = False
        self.failed = threading.Event()

    def make_folder(self, path: Path) -> None:
        if self.bad:
            self.failed.set()
            raise OSError(errno.EIO, "Input/output error")
        super().make_folder(path)


def steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in read_catalog(folder).checkpoints]


def test_skip_leaves_out_what_is_due_meanwhile_and_says_so_but_never_the_last_step(tmp_path, caplog) -> None:
    run, backend = Run(), GatedBackend()
    with run.manager(tmp_path, every=1, when_busy="skip", backend=backend) as manager:
        run.train(manager, 0, 3)
        assert [record.getMessage() for record in caplog.records if "when_busy" in record.getMessage()] == [
            f"step {step} is not saved: another is still being written (when_busy='skip')" for step in (2, 3)
        ]
        backend.gate.set()
    assert steps(tmp_path) == [1, 3]


def test_skip_skips_neither_what_is_asked_for_nor_what_a_signal_wants(tmp_path) -> None:
    run, backend = Run(), GatedBackend()
    with run.manager(tmp_path, every=2, when_busy="skip", backend=backend, signals=True) as manager:
        run.train(manager, 0, 2)
        opener = threading.Timer(0.05, backend.gate.set)
        opener.start()
        run.train(manager, 2, 3)
        assert manager.save().result().step == 3
        os.kill(os.getpid(), signal.SIGTERM)
        run.train(manager, 3, 4)
        assert manager.should_stop
        opener.join()
    assert steps(tmp_path) == [2, 3, 4]


def test_wait_saves_every_one(tmp_path) -> None:
    run, backend = Run(), GatedBackend()
    with run.manager(tmp_path, every=1, backend=backend) as manager:
        run.train(manager, 0, 1)
        opener = threading.Thread(target=lambda: backend.waiting.wait() and backend.gate.set())
        opener.start()
        run.train(manager, 1, 4)
        opener.join()
    assert steps(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", MODES)
def test_a_writer_that_fails_at_once_disturbs_no_copy(tmp_path, monkeypatch, mode) -> None:
    run, backend = Run(), FailingAtOnce()
    complete = Capturer.complete

    def late(capturer: Capturer) -> None:
        # Time enough for a writer that waits for nothing to let go of all.
        if backend.bad:
            backend.failed.wait(5)
            manager._saver.wait(0.2)
        complete(capturer)

    monkeypatch.setattr(Capturer, "complete", late)
    with run.manager(tmp_path, every=100, backend=backend, **MODES[mode]) as manager:
        run.train(manager, 0, 1)
        backend.bad = True
        with pytest.raises(SaveFailedError):
            manager.save().result()
        run.train_step()
        backend.bad = False
        manager.step(2)
    assert steps(tmp_path) == [2]


class Terminal:
    """A standard error that is a terminal, and keeps what is written to it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_wait_at_the_end_is_shown(tmp_path, monkeypatch, caplog, terminal) -> None:
    caplog.set_level("INFO", "milepost")
    monkeypatch.setattr("milepost.closing._PATIENCE", 0.0)
    monkeypatch.setattr("milepost.closing._INTERVAL", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    run, backend = Run(), GatedBackend()
    with run.manager(tmp_path, every=7, backend=backend) as manager:
        run.train(manager, 0, 7)
        if terminal:
            monkeypatch.setattr(sys, "stderr", screen)
        opener = threading.Timer(0.3, backend.gate.set)
        opener.start()
        finish(manager._saver)
        opener.join()
        monkeypatch.undo()
    assert ("writing step 7" in screen.text) is terminal
    assert ("waiting for the checkpoint of step 7" in caplog.text) is not terminal


SCRIPT = """
import sys
sys.path[:0] = [{root!r}]
from tests.manager.training import MODES, Run
run = Run(width=2000)
manager = run.manager({folder!r}, every=100)
run.train(manager, manager.resume(), 3)
manager.save()
{end}
"""


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise KeyError('my own')", 1), ("sys.exit(7)", 7)])
def test_case_28_a_program_that_ends_without_closing_leaves_a_checkpoint_or_none(tmp_path, end, status) -> None:
    script = SCRIPT.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path / "run"), end=end)
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == status, done.stderr
    assert ("my own" in done.stderr) is (status == 1)
    assert steps(tmp_path / "run") == [3]
    assert verify_checkpoint(tmp_path / "run" / "step_3") == []
