"""A small training run with dropout, momentum and a schedule: everything that a resume can get wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from milepost import CheckpointManager, EverySteps

MODES: dict[str, dict[str, Any]] = {
    "overlapped": {"capture": "overlapped"},
    "immediate": {"capture": "immediate"},
    "blocking": {"background": False},
}


@dataclass
class Run:
    """Live objects of one training process, and what it went through."""

    seed: int = 0
    dropout: float = 0.3
    width: int = 8
    seen: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        random.seed(self.seed)
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)
        self.model = nn.Sequential(nn.Linear(4, self.width), nn.Dropout(self.dropout), nn.Linear(self.width, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.9)
        self.counters: dict[str, Any] = {"samples": 0, "history": []}

    @property
    def state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "lr_scheduler": self.scheduler,
            "counters": self.counters,
        }

    def train_step(self) -> float:
        """One update, with data drawn from all three global generators."""
        inputs = torch.randn(16, 4) + float(np.random.rand()) + random.random()
        loss = (self.model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.seen.append((loss.item(), self.optimizer.param_groups[0]["lr"]))
        self.optimizer.step()
        self.scheduler.step()
        self.counters["samples"] += 16
        return loss.item()

    def manager(self, folder: Path, every: int = 2, **options: Any) -> CheckpointManager:
        options.setdefault("signals", False)
        return CheckpointManager(folder, self.state, save=EverySteps(every), **options)

    def train(self, manager: CheckpointManager, start: int, last: int) -> None:
        for step in range(start + 1, last + 1):
            loss = self.train_step()
            manager.step(step, metrics={"loss": loss})

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Bit for bit, not nearly."""
    return first.keys() == second.keys() and all(
        torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8)) for name in first
    )


def step_folders(folder: Path) -> list[str]:
    """Names in the run folder that begin with step_, in order of their step."""
    return sorted((path.name for path in folder.glob("step_*")), key=lambda name: int(name.split("_")[1].split(".")[0]))


def damage(folder: Path, how: str) -> None:
    """Harm a checkpoint in one of the ways that disks and people do."""
    weights = folder / "model.safetensors"
    manifest = folder / "milepost.json"
    if how == "no training state":
        (folder / "training_state" / "state.json").unlink()
    elif how == "empty weights":
        weights.write_bytes(b"")
    elif how == "flipped bit":
        data = bytearray(weights.read_bytes())
        data[-3] ^= 4
        weights.write_bytes(data)
    elif how == "truncated manifest":
        manifest.write_bytes(manifest.read_bytes()[:-20])
    elif how == "no manifest":
        manifest.unlink()
    else:
        raise ValueError(how)
