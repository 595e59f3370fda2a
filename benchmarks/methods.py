"""What a way of saving looks like to the benchmark, whoever made it."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.limits import sync_folder

if TYPE_CHECKING:
    from benchmarks.loops import Training


class Method:
    """A way of saving a training run into ``folder``. The defaults are those of one that saves while training waits."""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self.folder = folder
        folder.mkdir(parents=True)
        self.saves = 0

    def save(self) -> None:
        """Save the state as it is; returns when training may go on."""
        raise NotImplementedError

    def updating(self) -> AbstractContextManager[object]:
        """What the method's documentation puts around ``optimizer.step()``."""
        return contextlib.nullcontext()

    def stepped(self) -> None:
        """Called after every step that does not save."""

    def done(self) -> bool:
        """Whether the last save is durable."""
        return True

    def wait(self) -> None:
        """Return when the last save is durable. Raises what went wrong."""

    def held_up_seconds(self) -> float | None:
        """All the time that training stood still so far, if the method itself tells it."""
        return None

    def tidy(self) -> None:
        """Delete what was saved; never timed."""
        for found in self.folder.iterdir():
            if found.is_dir():
                shutil.rmtree(found)
            else:
                found.unlink()
        sync_folder(self.folder)

    def close(self) -> None:
        """End threads and processes."""

    def next_path(self) -> Path:
        """A new name in the folder."""
        self.saves += 1
        return self.folder / f"save_{self.saves}"


class Durably(threading.Thread):
    """Waits for an end and does what makes it durable, beside training; ``result`` raises what went wrong."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Do it."""
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self.is_alive()

    def result(self) -> None:
        """Wait for the end."""
        self.join()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, slots=True)
class Entry:
    """A method's name on the command line and in JSON, its label, how it is set up, and what forces it to the disk."""

    name: str
    label: str
    make: Callable[[Training, Path], Method]
    setup: str
    sync: str
    background: bool = False
    package: str | None = None
    ours: bool = False

    @property
    def installed(self) -> bool:
        """Whether the package that it needs is there."""
        return self.package is None or importlib.util.find_spec(self.package) is not None
