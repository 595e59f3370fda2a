"""Dicts and lists are restored in place, whatever shares what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from milepost.snapshot.capture import capture
from milepost.snapshot.plain import same
from milepost.snapshot.restore import restore
from milepost.snapshot.stateful import check_state


def resumed(saved: dict[str, Any], live: dict[str, Any]) -> None:
    restore(check_state({"counters": live}), capture(check_state({"counters": saved})))
    assert same(live, saved)


def test_what_is_alike_keeps_its_identity():
    tensor, array, inner, numbers = torch.zeros(3), np.zeros(3), {"x": 1}, [1]
    live = {"tensor": tensor, "array": array, "inner": inner, "numbers": numbers, "gone": 1}
    resumed({"tensor": torch.ones(3), "array": np.ones(3), "inner": {"y": 2}, "numbers": [3, 4], "new": None}, live)
    assert live["tensor"] is tensor and live["array"] is array
    assert live["inner"] is inner and live["numbers"] is numbers


def test_two_names_of_one_object_become_two_where_the_values_were_two():
    zero, empty, array = torch.zeros(1), [], np.zeros(1)  # type: ignore[var-annotated]
    live = {"best": zero, "now": zero, "a": empty, "b": empty, "p": array, "q": array}
    resumed(
        {
            "best": torch.ones(1),
            "now": torch.full((1,), 2.0),
            "a": [1],
            "b": [2],
            "p": np.ones(1),
            "q": np.full(1, 2.0),
        },
        live,
    )


def test_two_names_of_one_object_stay_one_where_the_value_was_one():
    tensor, items, saved, same_items = torch.zeros(2), [0], torch.ones(2), [1, float("nan")]
    live = {"a": tensor, "b": tensor, "p": items, "q": items}
    resumed({"a": saved, "b": saved, "p": same_items, "q": same_items}, live)
    assert live["a"] is live["b"] is tensor
    assert live["p"] is live["q"] is items


def test_parts_of_one_tensor_are_written_where_they_are_apart_and_replaced_where_they_overlap():
    whole = torch.zeros(6)
    live = {"first": whole[:2], "second": whole[2:4], "across": whole[3:5]}
    resumed({"first": torch.ones(2), "second": torch.full((2,), 2.0), "across": torch.full((2,), 3.0)}, live)
    assert whole.tolist() == [1, 1, 2, 2, 0, 0]


def frozen_array() -> Any:
    array = np.zeros(2)
    array.flags.writeable = False
    return array


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(2)


UNWRITABLE = {
    "expanded": lambda: torch.zeros(1).expand(2),
    "made in inference mode": inference_tensor,
    "of another shape": lambda: torch.zeros(3),
    "of another dtype": lambda: torch.zeros(2, dtype=torch.int64),
    "sparse": lambda: torch.zeros(2).to_sparse(),
    "empty": lambda: torch.zeros(0),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_tensor_that_cannot_be_written_is_replaced(name):
    live = {"t": torch.zeros(2), "after": torch.zeros(2)}
    entries = check_state({"counters": live})
    snapshot = capture(check_state({"counters": {"t": torch.ones(2), "after": torch.ones(2)}}))
    live["t"] = UNWRITABLE[name]()
    restore(entries, snapshot)
    assert same(live, {"t": torch.ones(2), "after": torch.ones(2)})


@pytest.mark.parametrize("array", [frozen_array(), np.broadcast_to(np.zeros(1), 2), np.zeros(4)[::2]], ids=str)
def test_an_array_that_cannot_be_written_is_replaced(array):
    resumed({"a": np.ones(2)}, {"a": array})


def test_a_tensor_that_needs_gradients_is_written_in_place():
    live = torch.zeros(2, requires_grad=True)
    resumed({"t": torch.ones(2, requires_grad=True)}, {"t": live})
    assert live.tolist() == [1, 1] and live.is_leaf


def test_a_list_at_the_top_is_restored_in_place():
    live: list[Any] = [1]
    entries = check_state({"history": live})
    snapshot = capture(entries)
    live += [2, {"x": 3}]
    restore(entries, snapshot)
    assert live == [1]
