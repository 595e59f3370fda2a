"""Optimizer state, keyed by parameter name instead of by number.

Mapped from ``optimizer.state_dict()`` itself. torch's own helper for this runs a made-up ``step()`` when the state is
empty, which changes the weights' future; here absent state stays absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

_KNOWN = ("state", "param_groups")


def named_state(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    """The state with ``state`` by parameter name and each group's ``params`` as names.

    ``names`` maps ``id(parameter)`` to its name; a parameter without one is called ``param_groups.<group>.<place>``.
    State under keys that are no parameter goes to ``other_state``.
    """
    state_dict = optimizer.state_dict()
    by_number: dict[Any, str] = {}
    groups = []
    for at, (group, stored) in enumerate(zip(optimizer.param_groups, state_dict["param_groups"], strict=True)):
        own = _group_names(group, at, names)
        by_number.update(zip(stored["params"], own, strict=True))
        groups.append({**stored, "params": own})
    state = {by_number[key]: value for key, value in state_dict["state"].items() if key in by_number}
    other = {key: value for key, value in state_dict["state"].items() if key not in by_number}
    extra = {key: value for key, value in state_dict.items() if key not in _KNOWN}
    return {**extra, "state": state, "other_state": other, "param_groups": groups}


def find_mismatches(optimizer: Optimizer, saved: Mapping[str, Any], names: Mapping[int, str], entry: str) -> list[str]:
    """One sentence for each way in which a saved state does not fit the optimizer's groups."""
    live = [_group_names(group, at, names) for at, group in enumerate(optimizer.param_groups)]
    stored = [group["params"] for group in saved["param_groups"]]
    if len(live) != len(stored):
        return [f"{entry}: {len(stored)} parameter groups are stored, the optimizer has {len(live)}"]
    problems = []
    for at, (here, there) in enumerate(zip(live, stored, strict=True)):
        problems += [f"{entry}: group {at} lacks {name}" for name in there if name not in set(here)]
        problems += [f"{entry}: group {at} has {name}, which is not stored" for name in here if name not in set(there)]
    return problems


def load_named_state(optimizer: Optimizer, saved: Mapping[str, Any], names: Mapping[int, str]) -> None:
    """Give the optimizer a saved state, parameters being matched by name."""
    numbers: dict[str, int] = {}
    parameters: dict[str, torch.Tensor] = {}
    groups = []
    for at, (group, stored) in enumerate(zip(optimizer.param_groups, saved["param_groups"], strict=True)):
        own = _group_names(group, at, names)
        for name, parameter in zip(own, group["params"], strict=True):
            numbers.setdefault(name, len(numbers))
            parameters[name] = parameter
        groups.append({**stored, "params": [numbers[name] for name in own]})
    state: dict[Any, Any] = {numbers[name]: value for name, value in saved["state"].items()}
    extra = {key: value for key, value in saved.items() if key not in (*_KNOWN, "other_state")}
    optimizer.load_state_dict({**extra, "state": {**state, **saved["other_state"]}, "param_groups": groups})
    _undo_casts(optimizer, saved["state"], parameters)


def _undo_casts(optimizer: Optimizer, saved: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]) -> None:
    # load_state_dict casts moments to their parameter's dtype: fp32 moments of a bf16 parameter would lose bits.
    for name, values in saved.items():
        live = optimizer.state.get(parameters[name])
        if not isinstance(values, dict) or not isinstance(live, dict):
            continue
        for key, value in values.items():
            loaded = live.get(key)
            if isinstance(value, torch.Tensor) and isinstance(loaded, torch.Tensor) and loaded.dtype != value.dtype:
                live[key] = value.to(device=loaded.device)


def _group_names(group: Mapping[str, Any], at: int, names: Mapping[int, str]) -> list[str]:
    return [names.get(id(parameter), f"param_groups.{at}.{place}") for place, parameter in enumerate(group["params"])]
