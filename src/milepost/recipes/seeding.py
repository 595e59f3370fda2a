"""The device, random number generators, and deterministic kernels."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

import numpy as np
import torch

from milepost.errors import ConfigError
from milepost.recipes.huggingface import first_line


def choose_device(name: str) -> torch.device:
    """The device of this name; for ``auto`` an accelerator if there is one, else the CPU. Raises ConfigError."""
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.device("cpu") if found is None else torch.device(found.type, 0)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"device: {name} cannot be used here ({first_line(error)}). Use auto, cpu, or a device that this machine "
            "has.",
            key="device",
            value=name,
        ) from error
    return device


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextlib.contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """While it lasts, torch uses only kernels that give the same bits each time, and raises where it has none."""
    if not wanted:
        yield
        return
    # cuBLAS reads this when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
