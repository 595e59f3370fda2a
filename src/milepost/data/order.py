"""The one global order of samples: a formula of (seed, epoch, index), so that a position means the same in every run.

SplitMix64 is used as it was published (Steele, Lea, Flood 2014). Its i-th output for a start ``s`` is
``mix(s + (i + 1) * G)`` modulo 2**64, with the odd constant ``G`` and the bijection ``mix`` below. For a run's seed,
an epoch, and a purpose (0: order, 1: seeds of samples, 2: of batches, 3: of workers)::

    key(seed, epoch, purpose) = mix(mix(mix(seed + G) + (epoch + 1) * G) + (purpose + 1) * G)

A shuffled epoch is the indices 0 … n-1 sorted by the outputs of SplitMix64 started at ``key(seed, epoch, 0)``. Outputs
never tie, since ``mix`` is a bijection and ``G`` is odd. No library's generator has a part in this: an order that
changed with a release of NumPy or torch would make a resumed run repeat samples.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

ORDER: Final = 0
SAMPLES: Final = 1
BATCHES: Final = 2
WORKERS: Final = 3

_WORD: Final = 2**64 - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def global_order(n: int, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """The dataset indices of one epoch in the order of training: int64, shape (n,), each of 0 … n-1 once."""
    if not shuffle:
        return np.arange(n, dtype=np.int64)
    with np.errstate(over="ignore"):
        words = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(stream_key(seed, epoch, ORDER))
        words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
        words ^= words >> np.uint64(31)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """The seed (0 … 2**64-1) of the random transforms of one sample in one epoch."""
    return nth_word(stream_key(seed, epoch, SAMPLES), index)


def stream_key(seed: int, epoch: int, purpose: int) -> int:
    """The start of the word stream that serves one purpose in one epoch (``key`` in the formula above)."""
    return nth_word(nth_word(nth_word(seed, 0), epoch), purpose)


def nth_word(start: int, index: int) -> int:
    """Output ``index`` (from 0) of SplitMix64 started at ``start``: an integer in 0 … 2**64-1."""
    word = (start + (index + 1) * _GAMMA) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)
