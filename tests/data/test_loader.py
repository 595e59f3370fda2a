"""The loader goes on after the last batch that the loop was given, whatever happened in between."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from milepost.data import ResumableLoader, TokenizedDataset, global_order
from milepost.errors import IncompatibleStateError
from tests.data.datasets import Indices, Noise, flat, generators, noisy_rows, take


def loader_of(n: int, batch_size: int, **options: Any) -> ResumableLoader:
    return ResumableLoader(Indices(n), batch_size, collate_fn=list, **options)


def resumed(loader: ResumableLoader, **changes: Any) -> ResumableLoader:
    """Another loader, as of another process, at the position of ``loader``; its state went through JSON."""
    other = loader_of(loader.samples, **{"batch_size": loader.batch_size, "seed": loader.seed, **changes})
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    return other


@pytest.mark.parametrize("stop", range(17))
def test_a_run_stopped_anywhere_goes_on_with_the_same_samples(stop: int) -> None:
    unbroken = take(loader_of(64, 8), 16)
    first = loader_of(64, 8)
    before = take(first, stop)
    assert before + take(resumed(first), 16 - stop) == unbroken
    assert sorted(flat(unbroken[:8])) == list(range(64))


@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    stops=st.lists(st.integers(0, 7), max_size=5),
)
@settings(deadline=None, max_examples=60)
def test_any_stops_give_the_unbroken_series(
    n: int, batch_size: int, seed: int, shuffle: bool, drop_last: bool, stops: list[int]
) -> None:
    options = {"seed": seed, "shuffle": shuffle, "drop_last": drop_last and n >= batch_size}
    unbroken = take(loader_of(n, batch_size, **options), sum(stops))
    loader, series = loader_of(n, batch_size, **options), []
    for stop in stops:
        series += take(loader, stop)
        loader = resumed(loader, **options)
    assert series == unbroken


@given(n=st.integers(1, 60), seed=st.integers(0, 99), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=12))
@settings(deadline=None, max_examples=60)
def test_the_order_goes_on_with_another_batch_size(n: int, seed: int, sizes: list[int]) -> None:
    loader, series = loader_of(n, sizes[0], seed=seed), []
    for size in sizes:
        loader = resumed(loader, batch_size=size)
        series += take(loader, 1)[0]
    epochs = -(-len(series) // n)
    whole = np.concatenate([global_order(n, seed, epoch) for epoch in range(epochs)])
    assert series == whole[: len(series)].tolist()


def test_eight_micro_batches_in_windows_of_four_go_on_with_the_fifth() -> None:
    first = loader_of(16, 2, shuffle=False)
    assert take(first, 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert take(resumed(first, shuffle=False), 4) == [[8, 9], [10, 11], [12, 13], [14, 15]]


def test_an_epoch_ends_with_its_last_batch_and_iteration_stops_there() -> None:
    loader = loader_of(10, 4, shuffle=False)
    seen = [(batch, loader.epoch, loader.position) for batch in loader]
    assert seen == [([0, 1, 2, 3], 0, 4), ([4, 5, 6, 7], 0, 8), ([8, 9], 1, 0)]
    assert [batch for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (loader.epoch, loader.position) == (2, 0)


def test_a_new_iterator_gives_the_rest_of_the_epoch() -> None:
    loader = loader_of(10, 4, shuffle=False)
    for batch in loader:
        assert batch == [0, 1, 2, 3]
        break
    assert list(loader) == [[4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("n", "batch_size", "options", "expected"),
    [
        (10, 4, {}, 3),
        (10, 4, {"drop_last": True}, 2),
        (8, 4, {"drop_last": True}, 2),
        (10, 4, {"epoch_samples": 8}, 2),
        (10, 4, {"epoch_samples": 9}, 3),
        (10, 4, {"epoch_samples": 9, "drop_last": True}, 2),
        (10, 4, {"epoch_samples": 99}, 3),
        (1, 4, {}, 1),
    ],
)
def test_len_counts_the_batches_of_a_whole_epoch_wherever_it_stands(
    n: int, batch_size: int, options: dict[str, Any], expected: int
) -> None:
    loader = loader_of(n, batch_size, **options)
    assert len(loader) == expected
    take(loader, 1)
    assert len(loader) == expected
    list(loader)
    assert len(list(loader)) == expected


def test_epoch_samples_caps_the_epoch_and_each_epoch_leaves_out_others() -> None:
    loader = loader_of(10, 4, epoch_samples=8)
    for epoch in range(3):
        assert flat(loader) == global_order(10, 0, epoch)[:8].tolist()
        assert (loader.epoch, loader.position) == (epoch + 1, 0)


def test_epoch_samples_may_change_on_resume() -> None:
    loader = loader_of(20, 4, epoch_samples=16, shuffle=False)
    take(loader, 3)
    longer = resumed(loader, epoch_samples=20, shuffle=False)
    assert list(longer) == [[12, 13, 14, 15], [16, 17, 18, 19]]
    ended = resumed(loader, epoch_samples=8, shuffle=False)
    assert (ended.epoch, ended.position) == (1, 0)


def test_a_rest_without_a_whole_batch_is_the_end_of_the_epoch_when_such_are_dropped() -> None:
    loader = loader_of(10, 4, shuffle=False)
    take(loader, 2)
    larger = resumed(loader, batch_size=3, drop_last=True, shuffle=False)
    assert (larger.epoch, larger.position) == (1, 0)
    assert list(larger) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("stop", [0, 1, 5, 7])
def test_passed_samples_are_not_read_again(stop: int) -> None:
    loader = loader_of(16, 2)
    taken = take(loader, stop)
    other = resumed(loader)
    assert other.dataset.reads == []
    rest = take(other, 8 - stop)
    assert loader.dataset.reads == flat(taken)
    assert other.dataset.reads == flat(rest)


def test_the_global_generators_are_untouched() -> None:
    np.random.normal()  # leaves a second deviate kept for later, which belongs to the state too
    before = generators()
    assert before[1][3] == 1
    loader = ResumableLoader(Noise(12), 4, collate_fn=noisy_rows)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
        assert generators() == before
    loader.load_state_dict(loader.state_dict())
    assert len(list(loader)) == 1 and len(loader) == 3 and len(list(loader)) == 3
    assert generators() == before


def test_the_global_generators_are_untouched_by_a_loader_that_does_not_isolate() -> None:
    before = generators()
    assert len(list(loader_of(8, 2, isolate_rng=False))) == 4
    assert generators() == before


def test_a_bit_generator_of_the_users_own_stays_in_place() -> None:
    usual = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        before = np.random.get_state(legacy=False)
        rows = list(ResumableLoader(Noise(4), 2, collate_fn=list))
        assert np.random.get_state(legacy=False) == before
    finally:
        np.random.set_bit_generator(usual)
    assert rows == list(ResumableLoader(Noise(4), 2, collate_fn=list))


def test_random_transforms_depend_on_the_sample_and_the_epoch_alone() -> None:
    whole = list(ResumableLoader(Noise(12), 4, collate_fn=list))
    by_sample = {row[0]: row for batch in whole for row in batch}
    other_batches = ResumableLoader(Noise(12), 5, collate_fn=list)
    assert {row[0]: row for batch in other_batches for row in batch} == by_sample
    next_epoch = {row[0]: row for batch in other_batches for row in batch}
    assert all(next_epoch[index][1:] != by_sample[index][1:] for index in by_sample)


@pytest.mark.parametrize("stop", [1, 2])
def test_random_transforms_and_collating_are_the_same_after_a_resume(stop: int) -> None:
    def loader() -> ResumableLoader:
        return ResumableLoader(Noise(12), 4, collate_fn=noisy_rows)

    whole = list(loader())
    first, second = loader(), loader()
    iterator = iter(first)
    before = [next(iterator) for _ in range(stop)]
    torch.rand(5)
    second.load_state_dict(first.state_dict())
    assert before + list(second) == whole


class ReadsFromALoader(Noise):
    def __getitem__(self, index: int) -> tuple[float, ...]:
        inner = next(iter(ResumableLoader(Noise(2), 1, seed=index, collate_fn=list)))
        return (*super().__getitem__(index), *inner[0])


def test_a_dataset_may_read_from_a_loader_of_its_own() -> None:
    before = generators()
    rows = [row for batch in ResumableLoader(ReadsFromALoader(6), 2, collate_fn=list) for row in batch]
    plain = [row for batch in ResumableLoader(Noise(6), 2, collate_fn=list) for row in batch]
    assert [row[: len(other)] for row, other in zip(rows, plain, strict=True)] == plain
    assert generators() == before


@pytest.mark.parametrize(
    "again", [lambda loader: iter(loader), lambda loader: loader.load_state_dict(loader.state_dict())]
)
def test_an_iterator_that_was_overtaken_says_so(again: Any) -> None:
    loader = loader_of(8, 2)
    old = iter(loader)
    next(old)
    kept = again(loader)
    with pytest.raises(RuntimeError, match=r"no longer valid.*(called again|load_state_dict)"):
        next(old)
    assert loader.position == 2
    del kept


def test_an_iterator_at_its_end_stays_there() -> None:
    loader = loader_of(4, 2)
    old = iter(loader)
    assert len(list(old)) == 2
    loader.load_state_dict(loader.state_dict())
    assert len(list(loader)) == 2
    assert list(old) == []


class Failing(Indices):
    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise self.error
        return super().__getitem__(index)

    error: BaseException = OSError("bad sector")


def test_a_failing_read_leaves_the_position_before_its_batch() -> None:
    before = generators()
    dataset = Failing(8)
    loader = ResumableLoader(dataset, 2, shuffle=False, collate_fn=list)
    iterator = iter(loader)
    assert next(iterator) == [0, 1]
    with pytest.raises(OSError, match="bad sector"):
        next(iterator)
    assert loader.position == 2 and generators() == before
    with pytest.raises(RuntimeError, match="reading a batch failed"):
        next(iterator)
    dataset.error = StopIteration()
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)
    assert loader.position == 2


def test_a_changed_order_is_refused_by_name_and_changes_nothing() -> None:
    state = loader_of(8, 2).state_dict() | {"position": 4}
    other = loader_of(9, 2, seed=1, shuffle=False)
    with pytest.raises(
        IncompatibleStateError, match=r"seed was 0 and is 1.*shuffle was True.*length was 8 and is 9"
    ) as e:
        other.load_state_dict(state)
    assert e.value.mismatched == ("seed", "shuffle", "samples")
    assert (other.epoch, other.position) == (0, 0)


def test_changed_data_of_the_same_length_is_refused() -> None:
    first, second = (TokenizedDataset([1, 2, last], [1, 2, last], [2, 1]) for last in (3, 4))
    state = ResumableLoader(first, 1).state_dict()
    assert state["fingerprint"] == first.fingerprint
    ResumableLoader(first, 1).load_state_dict(state)
    with pytest.raises(IncompatibleStateError, match="fingerprint") as caught:
        ResumableLoader(second, 1).load_state_dict(state)
    assert caught.value.mismatched == ("fingerprint",)


@pytest.mark.parametrize("name", ["epoch", "position", "seed", "shuffle", "samples"])
def test_an_incomplete_state_is_refused(name: str) -> None:
    state = loader_of(8, 2).state_dict()
    del state[name]
    with pytest.raises(IncompatibleStateError, match=name):
        loader_of(8, 2).load_state_dict(state)


@pytest.mark.parametrize("value", [-1, True, 1.0, math.nan, None, "1"])
@pytest.mark.parametrize("name", ["epoch", "position"])
def test_a_position_that_is_no_count_is_refused(name: str, value: object) -> None:
    with pytest.raises(IncompatibleStateError, match=name):
        loader_of(8, 2).load_state_dict({**loader_of(8, 2).state_dict(), name: value})


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "options", "error", "words"),
    [
        (Indices(4), {"batch_size": 0}, ValueError, "batch_size=0"),
        (Indices(4), {"batch_size": True}, TypeError, "batch_size=True"),
        (Indices(4), {"batch_size": 2.0}, TypeError, "batch_size=2.0"),
        (Indices(4), {"batch_size": 2, "seed": -1}, ValueError, "seed=-1"),
        (Indices(4), {"batch_size": 2, "seed": None}, TypeError, "seed=None"),
        (Indices(4), {"batch_size": 2, "epoch_samples": 0}, ValueError, "epoch_samples=0"),
        (Indices(4), {"batch_size": 5, "drop_last": True}, ValueError, "no batch"),
        (Indices(0), {"batch_size": 1}, ValueError, r"len\(dataset\)=0"),
        (Stream(), {"batch_size": 1}, TypeError, "Stream"),
        (iter([1]), {"batch_size": 1}, TypeError, "__len__"),
    ],
)
def test_arguments_that_cannot_work_are_refused_where_they_are_written(
    dataset: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ResumableLoader(dataset, **options)


def test_numpy_integers_are_welcome() -> None:
    loader = ResumableLoader(Indices(4), np.int64(2), seed=np.uint32(3), epoch_samples=np.int16(4))
    assert json.loads(json.dumps(loader.state_dict()))["seed"] == 3


def test_by_default_batches_are_tensors() -> None:
    batch = next(iter(ResumableLoader(Indices(4), 2, shuffle=False)))
    assert torch.equal(batch, torch.tensor([0, 1]))
