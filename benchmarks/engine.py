"""Milepost as the benchmark drives it: through its public door only."""

from __future__ import annotations

import inspect
import logging
import shutil
from pathlib import Path
from typing import Any

from benchmarks.limits import sync_folder
from benchmarks.methods import Method
from milepost import CheckpointManager, Moment
from milepost.storage.backend import LocalBackend

# What is written beside the weights' files stays real, so that a checkpoint without weights is found and removed.
_REAL = {".json"}


class Asked:
    """A schedule that is due when it was asked."""

    def __init__(self) -> None:
        self.due = False

    def reason_to_save(self, moment: Moment) -> str | None:
        """The reason, once asked for."""
        return "the benchmark asked" if self.due else None


class Nowhere:
    """A file that takes every byte and keeps none."""

    direct = True

    def __init__(self, real: Any) -> None:
        self._real = real

    def write(self, data: memoryview | bytes) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Close the empty file that stands for it."""
        self._real.close()


class SwitchedBackend(LocalBackend):
    """The local backend, whose large files go ``nowhere`` while that is set: capture alone."""

    nowhere = False

    def create(self, path: Path, *arguments: Any, **named: Any) -> Any:
        """A new file, real or not."""
        if self.nowhere and path.suffix not in _REAL:
            return Nowhere(super().create(path))
        return super().create(path, *arguments, **named)


def knows_capture() -> bool:
    """Whether this Milepost lets one choose how the state is captured."""
    return "capture" in inspect.signature(CheckpointManager).parameters


class Milepost(Method):
    """A ``CheckpointManager`` in one of its modes. ``capture`` is passed on only where the constructor knows it."""

    def __init__(self, training: Any, folder: Path, *, background: bool, capture: str | None = None) -> None:
        super().__init__(training, folder)
        self.asked = Asked()
        self.backend = SwitchedBackend()
        # Every checkpoint is kept: pruning deletes, which takes a second and is not what is measured.
        options: dict[str, Any] = {"background": background, "signals": False, "backend": self.backend}
        if capture is not None and knows_capture():
            options["capture"] = capture
        state = {"model": training.model, "optimizer": training.optimizer, "lr_scheduler": training.scheduler}
        logging.getLogger("milepost").setLevel(logging.WARNING)
        self.manager = CheckpointManager(folder / "run", state, save=self.asked, keep=(), **options)
        self.manager.resume()
        self.steps = 0
        self.job: Any = None

    def save(self) -> None:
        """One ``step()`` that is due."""
        self.asked.due = True
        try:
            self.stepped()
        finally:
            self.asked.due = False
        # The job of the step just saved, not another save.
        self.job = self.manager.save()

    def stepped(self) -> None:
        """One ``step()`` that is not."""
        self.steps += 1
        self.manager.step(self.steps)

    def done(self) -> bool:
        """Whether the job has ended."""
        return bool(self.job.done())

    def wait(self) -> None:
        """Wait for the job."""
        self.job.result()

    def held_up_seconds(self) -> float | None:
        """What the manager counts."""
        return getattr(self.manager, "held_up_seconds", None)

    def tidy(self) -> None:
        """Delete the checkpoints; the folder stays the manager's."""
        for found in self.manager.folder.glob("step_*"):
            shutil.rmtree(found)
        sync_folder(self.manager.folder)

    def close(self) -> None:
        """Close the manager; what it saves at its end goes nowhere."""
        self.backend.nowhere = True
        self.manager.close()


class CaptureAlone(Method):
    """The overlapped manager of another method, its writes going nowhere."""

    def __init__(self, other: Milepost) -> None:
        self.other = other
        self.training, self.folder = other.training, other.folder

    def save(self) -> None:
        """Save, writing nothing."""
        self.other.backend.nowhere = True
        self.other.save()

    def wait(self) -> None:
        """Wait, and write again from then on."""
        self.other.wait()
        self.other.backend.nowhere = False

    def done(self) -> bool:
        """Whether the job has ended."""
        return self.other.done()

    def stepped(self) -> None:
        """As the other."""
        self.other.stepped()

    def held_up_seconds(self) -> float | None:
        """As the other."""
        return self.other.held_up_seconds()

    def tidy(self) -> None:
        """As the other."""
        self.other.tidy()
