"""Worker processes read ahead, and nobody can tell from the batches."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from milepost.data import ResumableLoader
from tests.data.datasets import Indices, Noise, generators, noisy_rows, take

# Python 3.12 and later warn of any fork while threads are there; torch's own threads are enough for that.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert multiprocessing.active_children() == []


def with_workers(dataset: Any, batch_size: int = 4, **options: Any) -> ResumableLoader:
    return ResumableLoader(
        dataset,
        batch_size,
        **{"collate_fn": list, "num_workers": 2, "multiprocessing_context": "fork", **options},
    )


def test_what_workers_read_ahead_does_not_count_and_two_stops_in_one_epoch_lose_nothing() -> None:
    unbroken = take(ResumableLoader(Indices(64), 4, collate_fn=list), 32)
    series: list[list[int]] = []
    state = None
    for stop in (3, 5, 1, 23):
        loader = with_workers(Indices(64), prefetch_factor=4)
        if state is not None:
            loader.load_state_dict(state)
        series += take(loader, stop)
        state = loader.state_dict()
        assert state["position"] == len(series) * 4 % 64
    assert series == unbroken


def test_random_transforms_are_the_same_with_workers_and_after_a_resume_and_touch_nothing() -> None:
    here = ResumableLoader(Noise(24), 4, collate_fn=noisy_rows)
    expected = [*here, *here]
    before = generators()
    loader = with_workers(Noise(24), collate_fn=noisy_rows)
    first = iter(loader)
    batches = [next(first), next(first)]
    loader.load_state_dict(loader.state_dict())
    batches += [*loader, *loader]
    assert batches == expected
    assert generators() == before


def test_the_workers_of_an_overtaken_or_abandoned_iterator_end() -> None:
    loader = with_workers(Indices(64))
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second) == loader.sample_ids.tolist()
    assert len(multiprocessing.active_children()) == 2
    del second
    assert multiprocessing.active_children() == []


def test_the_workers_end_with_the_last_batch_of_the_epoch() -> None:
    loader = with_workers(Indices(8))
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert multiprocessing.active_children() == []
    assert list(iterator) == []


def test_persistent_workers_outlive_epochs_and_drop_what_an_overtaken_iterator_left() -> None:
    here = ResumableLoader(Noise(24), 4, collate_fn=list)
    expected = [*here, *here]
    loader = with_workers(Noise(24), persistent_workers=True)
    first = iter(loader)
    batches = [next(first)]
    workers = {process.pid for process in multiprocessing.active_children()}
    batches += [*loader, *loader]
    assert batches == expected
    assert {process.pid for process in multiprocessing.active_children()} == workers


class Failing(Indices):
    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise OSError("bad sector")
        return index


def test_a_worker_that_fails_leaves_the_position_before_its_batch() -> None:
    loader = with_workers(Failing(64), shuffle=False)
    with pytest.raises(OSError, match="bad sector"):
        list(loader)
    assert loader.position == 8


ABANDON = """
from milepost.data import ResumableLoader
loader = ResumableLoader(list(range(1000)), 1, num_workers=2, multiprocessing_context="fork")
batches = iter(loader)
next(batches)
print(loader.position)
"""


def test_a_program_ends_while_an_iterator_with_workers_is_open() -> None:
    done = subprocess.run([sys.executable, "-c", ABANDON], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


class WithProcess(Indices):
    """Rows that tell which process read them."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), os.getpid()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_case_29_a_signal_to_the_whole_group_leaves_workers_at_their_work(number: signal.Signals) -> None:
    loader = with_workers(WithProcess(64))
    batches = iter(loader)
    rows = [row for _ in range(2) for row in next(batches)]
    for process in {process for _, process in rows}:
        # From another process: a worker ends when the training process tells it to.
        subprocess.run(["kill", f"-{int(number)}", str(process)], check=True)
    rows += [row for batch in batches for row in batch]
    assert sorted(index for index, _ in rows) == list(range(64))
    assert len({process for _, process in rows}) == 2
