"""One batch from a dataset: random transforms depend on the sample alone, and global generators never notice them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from torch.utils.data import Dataset

from milepost.data.generators import seed_generators, untouched_generators
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
