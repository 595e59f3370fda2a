"""A state's size: that of what a capture stores, found without asking any object for its state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from milepost.snapshot.capture import capture
from milepost.snapshot.sizes import state_sizes
from milepost.snapshot.stateful import check_state


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8, dtype=torch.bfloat16)
        self.two = nn.Linear(8, 8, dtype=torch.bfloat16)
        self.two.weight = self.one.weight
        self.register_buffer("kept", torch.zeros(5))
        self.register_buffer("passing", torch.zeros(500), persistent=False)


class Touchy:
    def state_dict(self) -> dict[str, int]:
        raise AssertionError("nobody may ask")

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AssertionError("nobody may ask")


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("stepped", [False, True])
def test_it_is_what_a_capture_stores(optimizer, stepped):
    model, other = Tied(), nn.Linear(3, 3)
    made = optimizer(model.parameters(), lr=0.1)
    if stepped:
        sum(value.float().sum() for value in model.parameters()).backward()
        made.step()
    state = {"model": model, "teacher": other, "optimizer": made}
    weights, others = state_sizes(check_state(state))
    stored = capture(check_state(state))
    assert weights == sum(value.nbytes for value in stored.weights.values())
    generators = sum(value.nbytes for name, value in stored.tensors.items() if name.startswith("rng"))
    assert others == sum(value.nbytes for value in stored.tensors.values()) - generators


def test_no_object_is_asked_for_its_state():
    assert state_sizes(check_state({"touchy": Touchy(), "plain": {"a": 1}})) == (0, 0)


def test_what_has_no_size_yet_has_none():
    assert state_sizes(check_state({"model": nn.LazyLinear(4)})) == (0, 0)
