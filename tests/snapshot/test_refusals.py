"""A restore that is refused names every reason, and leaves every live object as it was, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from milepost.errors import IncompatibleStateError, UnsupportedStateError
from milepost.records import Snapshot
from milepost.snapshot.capture import capture
from milepost.snapshot.flatten import Flattener
from milepost.snapshot.live import own_bytes
from milepost.snapshot.plain import same
from milepost.snapshot.restore import restore, restore_model
from milepost.snapshot.stateful import check_state


class Counted:
    """Somebody's object with a state."""

    def __init__(self, value: int = 0, refuses: bool = False) -> None:
        self.value = value
        self.refuses = refuses

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        random.random()
        torch.rand(1)
        self.value = state["value"]
        if self.refuses:
            raise ValueError("not mine")


def a_run(seed: int) -> dict[str, Any]:
    """Everything that a state may hold, after two steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.9)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "lr_scheduler": scheduler,
        "first": Counted(seed),
        "last": Counted(seed),
        "counters": {"seen": seed, "losses": [float(seed)], "total": torch.full((2,), float(seed))},
    }


def photograph(state: dict[str, Any]) -> Any:
    """All that can be told apart about the live objects and generators, copied."""
    model, optimizer = state["model"], state["optimizer"]
    flattener = Flattener()
    tree = flattener.flatten(
        {
            "model": dict(model.state_dict()),
            "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            "requires_grad": [p.requires_grad for p in model.parameters()],
            "training": [m.training for m in model.modules()],
            "optimizer": optimizer.state_dict(),
            "optimizer's parameters": [[id(p) for p in group["params"]] for group in optimizer.param_groups],
            "states": [id(value) for value in optimizer.state.values()],
            "scheduler": state["lr_scheduler"].state_dict(),
            "objects": [state["first"].value, state["last"].value],
            "counters": state["counters"],
            "generators": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
        },
        "x",
        "x",
    )
    return tree, {name: bytes(stored.data) for name, stored in own_bytes(flattener.tensors).items()}


def other_model(**layers: nn.Module) -> Callable[[dict[str, Any]], object]:
    return lambda state: [setattr(state["model"], name, layer) for name, layer in layers.items()]


def regrouped(state: dict[str, Any]) -> None:
    optimizer = state["optimizer"]
    moved = optimizer.param_groups[0]["params"].pop()
    optimizer.add_param_group({"params": [moved]})


MISFITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "misshapen": (other_model(**{"0": nn.Linear(3, 5)}), r"model\.0\.weight: .*\[4, 3\] is stored.*\[5, 3\]"),
    "another dtype": (other_model(**{"2": nn.Linear(4, 2).half()}), r"model\.2\.bias: torch\.float32 .*torch\.float16"),
    "one layer more": (other_model(more=nn.Linear(1, 1)), r"missing in the checkpoint \(.*model\.more\.weight"),
    "one layer less": (other_model(**{"1": nn.Identity()}), r"not in the live state \(.*model\.1\.running_mean"),
    "an entry more": (lambda state: state.update(ema=Counted()), r"missing in the checkpoint \(ema\)"),
    "an entry less": (lambda state: state.pop("counters"), r"not in the live state \(counters\)"),
    "other groups": (regrouped, "1 parameter groups are stored, the optimizer has 2"),
    "another optimizer": (
        lambda state: state.update(optimizer=torch.optim.SGD(state["model"].parameters(), lr=1)),
        r"another kind of optimizer, with .*betas.*SGD here has .*momentum",
    ),
    "another kind of entry": (lambda state: state.update(counters=[1]), "counters: a dict is stored, .* list"),
    "an object for a dict": (lambda state: state.update(counters=Counted()), "counters: what is stored"),
    "an object that refuses": (lambda state: setattr(state["last"], "refuses", True), "last.*not mine"),
    "the first object refuses": (lambda state: setattr(state["first"], "refuses", True), "first.*not mine"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_refused_restore_leaves_every_live_object_as_it_was(name):
    snapshot = capture(check_state(a_run(1)))
    live = a_run(2)
    kept = dict(live)
    MISFITS[name][0](live)
    entries = check_state(live)
    before = photograph({**kept, "optimizer": live["optimizer"]})
    with pytest.raises(IncompatibleStateError, match=MISFITS[name][1]):
        restore(entries, snapshot)
    assert photograph({**kept, "optimizer": live["optimizer"]}) == before


def test_what_is_allowed_to_be_missing_is_left_alone_by_one_name_or_many():
    snapshot = capture(check_state(a_run(1)))
    for allowed in ("extra", ["extra", "counters"]):
        live = a_run(2)
        live["extra"] = Counted(9)
        restore(check_state(live), snapshot, allow_missing=allowed)
        assert live["extra"].value == 9 and live["first"].value == 1


def test_generators_that_are_none_are_refused_before_anything_changes():
    snapshot = capture(check_state(a_run(1)))
    live = a_run(2)
    broken = Snapshot(snapshot.weights, snapshot.ties, {**snapshot.state, "rng": {}}, snapshot.tensors)
    before = photograph(live)
    with pytest.raises(IncompatibleStateError, match="rng"):
        restore(check_state(live), broken)
    assert photograph(live) == before


def test_moments_of_other_shapes_are_refused_also_without_the_model():
    def make(size: int) -> tuple[nn.Parameter, torch.optim.Optimizer]:
        parameter = nn.Parameter(torch.ones(size))
        parameter.grad = torch.ones(size)
        return parameter, torch.optim.Adam([parameter])

    _, first = make(3)
    first.step()
    _, second = make(4)
    with pytest.raises(IncompatibleStateError, match=r"exp_avg \[3\] is stored, the parameter has \[4\]"):
        restore(check_state({"o": second}), capture(check_state({"o": first})))
    assert not second.state


def test_a_setting_more_or_less_is_no_other_optimizer():
    model = nn.Linear(2, 2)
    old, new = torch.optim.SGD(model.parameters(), lr=1), torch.optim.SGD(model.parameters(), lr=2)
    old.param_groups[0]["initial_lr"] = 3.0
    old.param_groups[0]["of the loop's own"] = "x"
    snapshot = capture(check_state({"o": old}))
    restore(check_state({"o": new}), snapshot)
    assert new.param_groups[0]["of the loop's own"] == "x"
    del old.param_groups[0]["of the loop's own"], old.param_groups[0]["fused"]
    restore(check_state({"o": new}), capture(check_state({"o": old})))


def test_weights_alone_are_refused_with_the_model_untouched():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    snapshot = capture(check_state({"model": nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 9))}))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for strict in (True, False):
        with pytest.raises(IncompatibleStateError, match=r"1\.weight: \[9, 3\] is stored"):
            restore_model(model, snapshot, strict=strict)
        assert same(dict(model.state_dict()), before)


@pytest.mark.parametrize(
    "value", [None, 1, 2.5, "text", (1, 2), object(), nn.Linear, torch.ones(1), torch.Generator(), lambda: 0], ids=repr
)
def test_what_could_not_be_restored_is_refused_when_the_state_is_given(value):
    with pytest.raises(UnsupportedStateError) as caught:
        check_state({"thing": value})
    assert caught.value.path == 'state["thing"]' and 'state["thing"]' in str(caught.value)


def test_a_value_in_a_dict_that_cannot_be_stored_is_named_when_the_state_is_given():
    with pytest.raises(UnsupportedStateError, match=r"state\[\"counters\"\]\['fn'\]\[1\]"):
        check_state({"counters": {"fn": [0, len]}})


def test_a_value_in_a_state_dict_that_cannot_be_stored_is_named_as_its_author_knows_it():
    thing = Counted()
    thing.value = len  # type: ignore[assignment]
    with pytest.raises(UnsupportedStateError, match=r"state\[\"thing\"\]\.state_dict\(\)\['value'\]"):
        capture(check_state({"thing": thing}))


def test_a_dict_with_a_state_of_its_own_is_asked_for_it():
    class Averages(dict):  # type: ignore[type-arg]
        def state_dict(self) -> dict[str, Any]:
            return dict(self)

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.update(state)

    first, second = Averages(a=1), Averages()
    restore(check_state({"averages": second}), capture(check_state({"averages": first})))
    assert second == {"a": 1}
