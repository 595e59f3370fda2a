"""torchdata's loader goes on exactly, in this epoch and in the next, and nothing global is drawn from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from milepost.errors import UnsupportedStateError
from milepost.snapshot.capture import capture
from milepost.snapshot.restore import restore
from milepost.snapshot.stateful import check_state

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")
DATA = list(range(20))


def make(seed: int, generator: bool = False, shuffle: bool = True, **options: Any) -> StatefulDataLoader:
    torch.manual_seed(seed)
    own = torch.Generator().manual_seed(seed) if generator else None
    return StatefulDataLoader(DATA, batch_size=2, shuffle=shuffle, generator=own, **options)


def stream(loader: StatefulDataLoader) -> Iterator[list[int]]:
    while True:
        for batch in loader:
            yield batch.tolist()


def take(batches: Iterator[list[int]], count: int) -> list[list[int]]:
    return [next(batches) for _ in range(count)]


def generators() -> Any:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


@pytest.mark.parametrize("generator", [False, True], ids=["no generator", "its own generator"])
@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffled", "in order"])
@pytest.mark.parametrize("stop", [0, 4, 9, 10, 13])
def test_case_17_a_stateful_loader_goes_on_across_the_end_of_an_epoch(stop, shuffle, generator):
    unbroken = make(3, generator, shuffle)
    check_state({"data": unbroken})
    expected = take(stream(unbroken), 25)

    first = make(3, generator, shuffle)
    entries = check_state({"data": first})
    batches = stream(first)
    before = generators()
    seen = take(batches, stop)
    snapshot = capture(entries)
    assert seen + take(batches, 25 - stop) == expected, "a save changes nothing"
    assert generators() == before

    second = make(99, generator, shuffle)
    restore(check_state({"data": second}), snapshot)
    before = generators()
    assert seen + take(stream(second), 25 - stop) == expected
    assert generators() == before
    assert sorted(number for batch in expected[:10] for number in batch) == DATA


def test_case_17_workers_change_nothing():
    first = make(3, num_workers=2)
    batches = stream(first)
    entries = check_state({"data": first})
    take(batches, 4)
    snapshot = capture(entries)
    expected = take(batches, 8)
    second = make(99, num_workers=2)
    restore(check_state({"data": second}), snapshot)
    assert take(stream(second), 8) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": RandomSampler(DATA)},
        {"sampler": SubsetRandomSampler(DATA)},
        {"sampler": WeightedRandomSampler([1.0] * 20, 20)},
        {"batch_sampler": BatchSampler(RandomSampler(DATA), 2, False)},
    ],
    ids=["random", "subset", "weighted", "batches"],
)
def test_a_sampler_that_would_draw_another_order_is_refused_with_the_cures(options):
    with pytest.raises(UnsupportedStateError, match=r"state\[\"data\"\].*shuffle=True.*ResumableLoader"):
        check_state({"data": StatefulDataLoader(DATA, **options)})


def test_a_loader_of_ones_own_answers_for_its_samplers_itself():
    class Own(DataLoader):  # type: ignore[type-arg]
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    loader = Own(DATA, sampler=RandomSampler(DATA))
    before = generators()
    check_state({"data": loader})
    list(loader)
    assert generators() == before


def test_a_loader_that_does_not_know_its_position_is_refused_with_the_cures():
    with pytest.raises(UnsupportedStateError, match=r"ResumableLoader.*StatefulDataLoader"):
        check_state({"data": DataLoader([1, 2])})


def test_giving_a_generator_is_said_and_draws_nothing(caplog):
    loader = make(0)
    before = generators()
    with caplog.at_level("INFO", "milepost"):
        check_state({"data": loader})
        check_state({"data": loader})
    assert generators() == before
    assert [record.getMessage() for record in caplog.records] == [
        "a loader in the state drew from torch's global generator whenever it was iterated; it has one of its own for "
        "that now"
    ]
