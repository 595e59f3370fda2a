"""One batch from a dataset: random transforms depend on the sample alone, and global generators never notice them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset

from milepost.data.order import BATCHES, SAMPLES, nth_word, stream_key

Request = tuple[int, list[int]]
"""What a worker is asked for: an epoch, and the dataset indices of one batch."""

Row = TypeVar("Row", covariant=True)


class MapDataset(Protocol[Row]):
    """A dataset of known length, read by index: 0 … len-1."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class Fetch(Dataset[Any]):
    """Turns a request into a collated batch, in a worker or in the training process; holds no position.

    Reading and collating is one call, so that one isolation of the generators serves both.
    """

    def __init__(self, dataset: MapDataset[Any], collate: Callable[[list[Any]], Any], seed: int, isolate: bool) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._isolate = isolate

    def __getitem__(self, request: Request, /) -> Any:
        epoch, indices = request
        if not self._isolate:
            return self._collate([self._dataset[index] for index in indices])
        rows = []
        key = stream_key(self._seed, epoch, SAMPLES)
        with untouched_generators():
            for index in indices:
                seed_generators(nth_word(key, index))
                rows.append(self._dataset[index])
            seed_generators(nth_word(stream_key(self._seed, epoch, BATCHES), indices[0]))
            return self._collate(rows)


@contextlib.contextmanager
def untouched_generators() -> Iterator[None]:
    """While it lasts, the global CPU generators of Python, NumPy and torch may be seeded and drawn from at will.

    Afterwards they are where they were, also after an exception.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def seed_generators(seed: int) -> None:
    """Seed the global CPU generators of Python, NumPy and torch with a number in 0 … 2**64-1."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed would seed every accelerator too, which nothing puts back, and takes 100 times as long.
    torch.default_generator.manual_seed(seed)
