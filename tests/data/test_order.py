"""The order of samples is a formula, and stays the same for ever."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.data.order import BATCHES, ORDER, SAMPLES, WORKERS, global_order, nth_word, sample_seed, stream_key


def test_words_are_those_published_for_splitmix64() -> None:
    assert [nth_word(1234567, index) for index in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize(
    ("n", "seed", "epoch", "order"),
    [
        (1, 0, 0, [0]),
        (10, 0, 0, [1, 9, 0, 8, 4, 6, 7, 2, 3, 5]),
        (10, 0, 1, [8, 0, 1, 5, 3, 2, 7, 9, 6, 4]),
        (10, 1, 0, [6, 1, 7, 3, 4, 8, 2, 0, 5, 9]),
        (12, 2**64 - 1, 7, [3, 6, 0, 11, 5, 9, 4, 1, 10, 8, 7, 2]),
    ],
)
def test_the_order_is_the_one_that_older_checkpoints_were_trained_in(
    n: int, seed: int, epoch: int, order: list[int]
) -> None:
    assert global_order(n, seed, epoch).tolist() == order


def test_a_long_order_is_the_one_that_older_checkpoints_were_trained_in() -> None:
    digest = hashlib.sha256(global_order(100_000, 42, 3).astype("<i8").tobytes()).hexdigest()
    assert digest == "81a111a6f0d7aa6c96b3724123e003d256498d1f52a60d4e0cb8848aa3a952c5"


def test_seeds_of_samples_are_those_that_older_checkpoints_were_trained_with() -> None:
    assert [sample_seed(0, 0, index) for index in range(3)] == [
        10910317525803880485,
        5396103473067506702,
        13340820631088048068,
    ]
    assert sample_seed(42, 3, 99) == 12404612750754038624


@given(n=st.integers(0, 300), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 1000))
def test_an_order_has_each_index_once_and_follows_the_documented_formula(n: int, seed: int, epoch: int) -> None:
    order = global_order(n, seed, epoch)
    assert order.dtype == np.int64 and order.shape == (n,)
    assert order.tolist() == sorted(range(n), key=lambda index: nth_word(stream_key(seed, epoch, ORDER), index))


def test_without_shuffle_the_order_is_the_datasets_own() -> None:
    assert global_order(5, 3, 8, shuffle=False).tolist() == [0, 1, 2, 3, 4]


def test_every_seed_epoch_and_purpose_has_a_stream_of_its_own() -> None:
    keys = {
        stream_key(seed, epoch, purpose)
        for seed in range(20)
        for epoch in range(20)
        for purpose in (ORDER, SAMPLES, BATCHES, WORKERS)
    }
    assert len(keys) == 20 * 20 * 4


def test_every_sample_comes_first_about_as_often() -> None:
    firsts = np.bincount([global_order(10, seed, 0)[0] for seed in range(5000)], minlength=10)
    assert firsts.min() > 400 and firsts.max() < 600
