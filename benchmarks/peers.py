"""Blocking ways of saving that people use today, each forced to the disk."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.limits import aligned_buffer, sync_tree, write_direct
from benchmarks.methods import Durably, Method


class BareWriter(Method):
    """No saving at all: a thread that writes as many bytes from a kept buffer past the cache, and syncs."""

    def __init__(self, training: Any, folder: Path) -> None:
        super().__init__(training, folder)
        self.buffer = aligned_buffer(training.state_bytes)
        self.writing: Durably | None = None

    def save(self) -> None:
        """Start the thread."""
        path = self.next_path()
        self.writing = Durably(lambda: write_direct(path, self.buffer))

    def done(self) -> bool:
        """Whether the thread has ended."""
        return self.writing is None or self.writing.done()

    def wait(self) -> None:
        """Join the thread."""
        if self.writing is not None:
            self.writing.result()


def whole_state(training: Any) -> dict[str, Any]:
    """The state as most loops put it together."""
    return {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "lr_scheduler": training.scheduler.state_dict(),
        "step": training.steps,
    }


class TorchSave(Method):
    """``torch.save`` of the whole state into one file, then fsync."""

    def save(self) -> None:
        """Save and sync."""
        path = self.next_path()
        path.mkdir()
        torch.save(whole_state(self.training), path / "state.pt")
        sync_tree(path)


class Safetensors(Method):
    """``safetensors.torch.save_file`` of all tensors into one file, then fsync."""

    def save(self) -> None:
        """Save and sync."""
        from safetensors.torch import save_file

        path = self.next_path()
        path.mkdir()
        tensors = {f"model.{name}": tensor for name, tensor in self.training.model.state_dict().items()}
        for index, state in self.training.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in state.items()}
        save_file(tensors, path / "state.safetensors")
        sync_tree(path)


class TrainerLike(Method):
    """The files of a Hugging Face Trainer's checkpoint, then fsync (which Trainer does not do)."""

    def save(self) -> None:
        """Save and sync."""
        from safetensors.torch import save_file

        path, training = self.next_path(), self.training
        path.mkdir()
        save_file(training.model.state_dict(), path / "model.safetensors", metadata={"format": "pt"})
        torch.save(training.optimizer.state_dict(), path / "optimizer.pt")
        torch.save(training.scheduler.state_dict(), path / "scheduler.pt")
        generators = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
        torch.save(generators, path / "rng_state.pth")
        (path / "trainer_state.json").write_text(json.dumps({"global_step": training.steps}))
        sync_tree(path)


def distributed_state(training: Any) -> dict[str, Any]:
    """The state as torch's own guide puts it together for a distributed checkpoint."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {"model": model, "optimizer": optimizer, "lr_scheduler": training.scheduler.state_dict()}


class DistributedSave(Method):
    """``torch.distributed.checkpoint.save``, which syncs its files; the folders' names are synced here."""

    def save(self) -> None:
        """Save and sync."""
        from torch.distributed.checkpoint.state_dict_saver import save

        path = self.next_path()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save(distributed_state(self.training), checkpoint_id=path, no_dist=True)
        sync_tree(path)
