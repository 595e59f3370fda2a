"""The global CPU generators of Python, NumPy and torch, lent out for a while."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator


@contextlib.contextmanager
def untouched_generators() -> Iterator[None]:
    """While it lasts, ``seed_generators`` and any draws are free; afterwards the generators are where they were."""
    python, torchs = random.getstate(), torch.get_rng_state()
    try:
        with _own_numpy_generator():
            yield
    finally:
        random.setstate(python)
        torch.set_rng_state(torchs)


def seed_generators(seed: int) -> None:
    """Seed the three with a number in 0 … 2**64-1; NumPy takes its lower 32 bits."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed would seed every accelerator too, which nothing puts back, and takes 100 times as long.
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def _own_numpy_generator() -> Iterator[None]:
    # Another bit generator in place of the global one costs half of reading its state and writing it back, and can be
    # seeded even where the user has put one in place that cannot. A normal deviate kept for later is lost by it.
    theirs = get_bit_generator()
    state = np.random.get_state(legacy=False)
    own = _SPARE.pop() if _SPARE else np.random.MT19937(0)
    set_bit_generator(own)
    try:
        yield
    finally:
        set_bit_generator(theirs)
        _SPARE.append(own)
        if state["has_gauss"]:
            np.random.set_state(state)


# More than one only where a dataset reads from a loader of its own.
_SPARE: list[np.random.MT19937] = []
