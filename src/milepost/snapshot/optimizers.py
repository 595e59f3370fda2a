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
        known, saved_names = set(here), set(there)
        problems += [f"{entry}: group {at} lacks {name}" for name in there if name not in known]
        problems += [f"{entry}: group {at} has {name}, which is not stored" for name in here if name not in saved_names]
    return problems


def load_named_state(optimizer: Optimizer, saved: Mapping[str, Any], names: Mapping[int, str]) -> None:
    """Give the optimizer a saved state, parameters being matched by name and every bit kept."""
    numbers: dict[str, int] = {}
    places: dict[str, tuple[torch.Tensor, Mapping[str, Any]]] = {}
    groups = []
    for at, (group, stored) in enumerate(zip(optimizer.param_groups, saved["param_groups"], strict=True)):
        own = _group_names(group, at, names)
        for name, parameter in zip(own, group["params"], strict=True):
            numbers.setdefault(name, len(numbers))
            places[name] = (parameter, group)
        groups.append({**stored, "params": [numbers[name] for name in own]})
    extra = {key: value for key, value in saved.items() if key not in (*_KNOWN, "other_state")}
    state: dict[Any, Any] = dict(saved["other_state"])
    if not _is_plain(optimizer):
        # Somebody's own load_state_dict, or a hook, has a right to see all of it.
        state.update((numbers[name], value) for name, value in saved["state"].items())
    optimizer.load_state_dict({**extra, "state": state, "param_groups": groups})
    for name, values in saved["state"].items():
        parameter, settings = places[name]
        if _is_plain(optimizer):
            optimizer.state[parameter] = _placed(values, parameter, settings)
        else:
            _undo_casts(optimizer.state.get(parameter), values)


def _is_plain(optimizer: Optimizer) -> bool:
    hooks = (optimizer._optimizer_load_state_dict_pre_hooks, optimizer._optimizer_load_state_dict_post_hooks)
    return type(optimizer).load_state_dict is Optimizer.load_state_dict and not any(hooks)


def _placed(values: Any, parameter: torch.Tensor, group: Mapping[str, Any]) -> Any:
    # Where torch's own load_state_dict puts tensors, without its casts to the parameter's dtype, and without its
    # search of every group for every tensor, which takes minutes for many thousands of them.
    if not isinstance(values, dict):
        return values
    on_device = bool(group.get("capturable") or group.get("fused"))
    return {
        key: value.to(parameter.device) if isinstance(value, torch.Tensor) and (key != "step" or on_device) else value
        for key, value in values.items()
    }


def _undo_casts(live: Any, values: Any) -> None:
    # load_state_dict casts moments to their parameter's dtype: fp32 moments of a bf16 parameter would lose bits.
    if not isinstance(values, dict) or not isinstance(live, dict):
        return
    for key, value in values.items():
        loaded = live.get(key)
        if isinstance(value, torch.Tensor) and isinstance(loaded, torch.Tensor) and loaded.dtype != value.dtype:
            live[key] = value.to(device=loaded.device)


def _group_names(group: Mapping[str, Any], at: int, names: Mapping[int, str]) -> list[str]:
    return [names.get(id(parameter), f"param_groups.{at}.{place}") for place, parameter in enumerate(group["params"])]
