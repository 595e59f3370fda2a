"""Datasets and checks that the loader's tests share."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from milepost.data import ResumableLoader


class Indices:
    """Gives its indices, and notes which were read in this process."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.reads.append(index)
        return index


class Noise:
    """Draws from all three global generators; the number of draws differs between samples."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[float, ...]:
        extra = [random.random() for _ in range(index % 3)]
        drawn = (*extra, random.gauss(0, 1), np.random.rand(), np.random.normal(), torch.rand(()).item())
        return (float(index), *drawn)


def noisy_rows(rows: list[Any]) -> list[Any]:
    """A collate function that draws too."""
    return [*rows, random.random(), np.random.normal(), torch.randn(()).item()]


def flat(batches: Iterable[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def generators() -> list[Any]:
    """The states of the global generators, in a form that can be compared."""
    name, keys, position, pending, kept = np.random.get_state()
    return [random.getstate(), (name, keys.tolist(), position, pending, kept), torch.get_rng_state().tolist()]


def take(loader: ResumableLoader, batches: int) -> list[list[int]]:
    """The sample ids of the next ``batches`` batches, across epochs."""
    taken: list[list[int]] = []
    while len(taken) < batches:
        for batch in loader:
            assert list(batch) == loader.sample_ids.tolist()
            taken.append(loader.sample_ids.tolist())
            if len(taken) == batches:
                break
    return taken
