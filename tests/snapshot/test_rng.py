"""The generators: put back exactly, read without drawing, and honest about devices that are not there."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from milepost.snapshot import rng
from milepost.snapshot.flatten import Flattener, Unflattener
from milepost.snapshot.live import own_bytes
from milepost.snapshot.rng import capture_rng, restore_rng


def draw() -> list[Any]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(2).tolist()]


def through_json(state: Any) -> Any:
    flattener = Flattener()
    tree = json.loads(json.dumps(flattener.flatten(state, "rng", "rng"), allow_nan=False))
    return Unflattener(own_bytes(flattener.tensors)).unflatten(tree)


def test_every_generator_goes_on_where_it_was():
    random.gauss(0, 1)
    np.random.randn()
    saved = through_json(capture_rng())
    expected = [draw(), draw()]
    restore_rng(saved)
    assert [draw(), draw()] == expected


class Devices:
    """An accelerator with some devices, in as far as generators go."""

    def __init__(self, count: int, initialized: bool = True) -> None:
        self.states = [torch.full((4,), index, dtype=torch.uint8) for index in range(count)]
        self.initialized = initialized

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return len(self.states)

    def get_rng_state(self, index: int) -> torch.Tensor:
        assert self.initialized, "reading would start the device"
        return self.states[index].clone()

    def set_rng_state(self, state: torch.Tensor, index: int) -> None:
        self.states[index] = state


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``devices.now`` is the accelerator of this machine, or None."""
    machine = SimpleNamespace(now=None)
    monkeypatch.setattr(rng, "_accelerator", lambda: None if machine.now is None else ("cuda", machine.now))
    return machine


@pytest.mark.parametrize("here", [0, 1, 2, 3])
def test_devices_that_are_there_are_restored_and_another_number_is_said(devices, here, caplog):
    devices.now = Devices(2)
    saved = through_json(capture_rng())
    devices.now = Devices(here) if here else None
    for index in range(here):
        devices.now.states[index] += 100
    with caplog.at_level("WARNING", "milepost"):
        restore_rng(saved)
    states = [state[0].item() for state in devices.now.states] if here else []
    assert states == [0, 1, 102][:here]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (here != 2)
    assert all(f"2 cuda device(s), and {here} are here" in text for text in said)


def test_a_device_that_nothing_used_yet_is_not_started_for_its_generator(devices, caplog):
    devices.now = Devices(1, initialized=False)
    saved = capture_rng()
    assert set(saved) == {"python", "numpy", "torch"}
    with caplog.at_level("WARNING", "milepost"):
        restore_rng(saved)
    assert not caplog.records
