"""A loader that knows its position: the samples that the training loop was given, in one global order."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, default_collate

from milepost.data.fetch import Fetch, MapDataset, Request
from milepost.data.order import WORKERS, global_order, nth_word, stream_key
from milepost.data.workers import calm
from milepost.errors import IncompatibleStateError


class ResumableLoader:
    """Batches of a map-style dataset, resumable at any batch with no sample twice and none skipped.

    Iterating yields the rest of the current epoch, then stops; iterating again yields the next epoch. A batch counts
    as consumed once it is yielded: what workers read ahead does not. The order is ``global_order(len(dataset), seed,
    epoch, shuffle)``, whatever the batch size and the number of workers, which may differ after a resume.

    ``epoch_samples`` caps the samples that make one epoch. ``drop_last`` leaves out an epoch's incomplete last batch.
    With ``isolate_rng``, what ``dataset[i]`` draws from the global generators of Python, NumPy and torch (CPU) depends
    on (seed, epoch, i) alone, and what ``collate_fn`` draws on the batch's first sample; in the training process those
    generators stay as they were. Set it to False for a dataset that draws nothing, to save the cost of seeding.
    The remaining arguments are those of torch's DataLoader. Workers leave SIGINT, SIGTERM and SIGUSR1 to
    the training process, so that a signal to the whole group costs no save.

    Raises TypeError or ValueError for arguments that cannot work, an epoch without a batch among them.
    """

    def __init__(
        self,
        dataset: MapDataset[Any],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        epoch_samples: int | None = None,
        isolate_rng: bool = True,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        _check_dataset(dataset)
        self.dataset = dataset
        self.batch_size = _whole("batch_size", batch_size, 1)
        self.shuffle = bool(shuffle)
        self.seed = _whole("seed", seed, 0)
        self.samples = _whole("len(dataset)", len(dataset), 1)
        self.drop_last = bool(drop_last)
        self.epoch_samples = self._epoch_length(epoch_samples)
        self._epoch = 0
        self._position = 0
        self._sample_ids = np.empty(0, dtype=np.int64)
        self._live: weakref.ref[_Pass] | None = None
        # Workers are seeded from this generator; without one, torch would draw from the global generator.
        self._generator = torch.Generator()
        self._requests = _Requests(self.batch_size)
        self._inner: DataLoader[Any] = DataLoader(
            Fetch(dataset, default_collate if collate_fn is None else collate_fn, self.seed, isolate_rng),
            batch_size=None,
            sampler=self._requests,
            collate_fn=_as_it_is,
            generator=self._generator,
            num_workers=num_workers,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=calm(worker_init_fn),
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
        )

    @property
    def epoch(self) -> int:
        """The epoch, from 0, that the next batch belongs to."""
        return self._epoch

    @property
    def position(self) -> int:
        """Samples of this epoch that were yielded."""
        return self._position

    @property
    def sample_ids(self) -> NDArray[np.int64]:
        """Dataset indices of the batch that was yielded last, shape (batch,); empty before the first batch."""
        return self._sample_ids

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        full, rest = divmod(self.epoch_samples, self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        """The rest of the current epoch. The iterator before, if it is not at its end, raises from now on."""
        self._retire("iter(loader) was called again")
        rest = self._rest_of_epoch()
        self._requests.plan(self._epoch, rest)
        self._generator.manual_seed(nth_word(stream_key(self.seed, self._epoch, WORKERS), self._position))
        live = _Pass(self, iter(self._inner), rest)
        self._live = weakref.ref(live)
        return live

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins, and what the order depends on; JSON-like."""
        state: dict[str, Any] = {"epoch": self._epoch, "position": self._position, **self._identity()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken; batch size, workers and ``epoch_samples`` may differ.

        Raises IncompatibleStateError, with nothing changed, where seed, shuffle, or the dataset's length or
        fingerprint (of datasets that have one) is another: the rest of the epoch would repeat and skip samples.
        """
        here = self._identity()
        missing = [name for name in ("epoch", "position", *here) if name not in state and name != "fingerprint"]
        if missing:
            raise IncompatibleStateError(f"the loader's state lacks {', '.join(missing)}", missing=missing)
        changed = [name for name, value in here.items() if name in state and state[name] != value]
        if changed:
            told = "; ".join(f"{_NAMES[name]} was {state[name]!r} and is {here[name]!r}" for name in changed)
            raise IncompatibleStateError(
                f"the loader cannot go on in the same order of samples: {told}. Make the loader as it was, or start "
                "a new run.",
                mismatched=changed,
            )
        epoch, position = _count(state, "epoch"), _count(state, "position")
        self._retire("load_state_dict() was called")
        self._go_to(epoch, position)

    def _epoch_length(self, cap: int | None) -> int:
        length = self.samples if cap is None else min(_whole("epoch_samples", cap, 1), self.samples)
        if self.drop_last and length < self.batch_size:
            raise ValueError(
                f"ResumableLoader(batch_size={self.batch_size}, drop_last=True): an epoch of {length} samples would "
                "have no batch at all"
            )
        return length

    def _identity(self) -> dict[str, Any]:
        identity = {"seed": self.seed, "shuffle": self.shuffle, "samples": self.samples}
        fingerprint = getattr(self.dataset, "fingerprint", None)
        return {**identity, "fingerprint": fingerprint} if isinstance(fingerprint, str) else identity

    def _rest_of_epoch(self) -> NDArray[np.int64]:
        end = self.epoch_samples
        if self.drop_last:
            end -= (end - self._position) % self.batch_size
        return global_order(self.samples, self.seed, self._epoch, self.shuffle)[self._position : end]

    def _go_to(self, epoch: int, position: int) -> None:
        left = self.epoch_samples - position
        ended = left <= 0 or (self.drop_last and left < self.batch_size)
        self._epoch, self._position = (epoch + 1, 0) if ended else (epoch, position)

    def _consumed(self, sample_ids: NDArray[np.int64]) -> None:
        self._sample_ids = sample_ids
        self._go_to(self._epoch, self._position + len(sample_ids))

    def _retire(self, reason: str) -> None:
        live = None if self._live is None else self._live()
        if live is not None:
            live.retire(reason)
        self._live = None


_NAMES = {
    "seed": "seed",
    "shuffle": "shuffle",
    "samples": "the dataset's length",
    "fingerprint": "the dataset's fingerprint",
}


class _Pass:
    """The rest of one epoch. Only one is valid at a time, since the position is the loader's."""

    def __init__(self, loader: ResumableLoader, inner: Iterator[Any], sample_ids: NDArray[np.int64]) -> None:
        self._loader = loader
        self._inner: Iterator[Any] | None = inner if len(sample_ids) else None
        self._sample_ids = sample_ids
        self._retired: str | None = None

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        if self._retired is not None:
            raise RuntimeError(f"this iterator of the loader is no longer valid, since {self._retired}; use a new one")
        if self._inner is None:
            raise StopIteration
        try:
            batch = next(self._inner)
        except StopIteration as stop:
            self.retire("its dataset raised StopIteration")
            raise RuntimeError("reading a sample raised StopIteration, before the end of the epoch") from stop
        except BaseException:
            # torch's iterator would go on behind the batch that failed, and the loader's position before it.
            self.retire("reading a batch failed")
            raise
        size = self._loader.batch_size
        yielded, self._sample_ids = self._sample_ids[:size], self._sample_ids[size:]
        if not len(self._sample_ids):
            self._let_go()
        self._loader._consumed(yielded)
        return batch

    def retire(self, reason: str) -> None:
        if self._inner is not None:
            self._retired = reason
            self._let_go()

    def _let_go(self) -> None:
        # Not left to the end of its last reference: a traceback may hold one, and workers that only the garbage
        # collector reaches take torch ten seconds to stop. Persistent workers serve the next pass too.
        stop = getattr(self._inner, "_shutdown_workers", None)
        self._inner = None
        if stop is not None and not self._loader._inner.persistent_workers:
            stop()


class _Requests:
    """What is left of an epoch, as the requests that torch hands out to its workers in turn."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._epoch = 0
        self._sample_ids = np.empty(0, dtype=np.int64)

    def plan(self, epoch: int, sample_ids: NDArray[np.int64]) -> None:
        self._epoch, self._sample_ids = epoch, sample_ids

    def __len__(self) -> int:
        return -(-len(self._sample_ids) // self._batch_size)

    def __iter__(self) -> Iterator[Request]:
        # Bound now, not when drawn: a pass that is given up must not hand out the next one's samples.
        epoch, ids, size = self._epoch, self._sample_ids, self._batch_size
        return ((epoch, ids[first : first + size].tolist()) for first in range(0, len(ids), size))


def _as_it_is(batch: Any) -> Any:
    return batch


def _check_dataset(dataset: object) -> None:
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"ResumableLoader(dataset={type(dataset).__name__}): needs a dataset with __len__ and __getitem__, since "
            "its position is an index into one order of all samples"
        )


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"ResumableLoader({name}={value!r}): {name} must be a whole number of at least {least}")
    number = operator.index(value)
    if number < least:
        raise ValueError(f"ResumableLoader({name}={value!r}): {name} must be a whole number of at least {least}")
    return number


def _count(state: Mapping[str, Any], name: str) -> int:
    value = state[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise IncompatibleStateError(f"the loader's state has {name} {value!r}: not a count", mismatched=[name])
    return value
