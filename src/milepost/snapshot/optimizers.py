"""Optimizer state, keyed by parameter name instead of by number.

Mapped from ``optimizer.state_dict()`` itself. torch's own helper for this runs a made-up ``step()`` when the state is
empty, which changes the weights' future; here absent state stays absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from milepost.snapshot.names import unused

_KNOWN = ("state", "param_groups")
_PARAMETERS = "parameters"
# What schedulers, and named parameters, add to a group.
_ADDED = frozenset({"param_names", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"})
# State of torch's own optimizers that has its parameter's shape.
_PARAMETER_SHAPED = frozenset({
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum",
    "exp_inf", "ax", "prev", "step_size",
})  # fmt: skip


def named_state(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    """The state with ``state`` by parameter name and each group's ``params`` as names.

    ``names`` maps ``id(parameter)`` to its name; a parameter without one is called ``param_groups.<group>.<place>``,
    and is itself in ``parameters``, since no module's state has it. State under keys that are no parameter goes to
    ``other_state``.
    """
    state_dict = optimizer.state_dict()
    by_number: dict[Any, str] = {}
    groups = []
    for own, stored in zip(_names_by_group(optimizer, names), state_dict["param_groups"], strict=True):
        by_number.update(zip(stored["params"], own, strict=True))
        groups.append({**stored, "params": own})
    state = {by_number[key]: value for key, value in state_dict["state"].items() if key in by_number}
    other = {key: value for key, value in state_dict["state"].items() if key not in by_number}
    extra = {key: value for key, value in state_dict.items() if key not in _KNOWN}
    found = {**extra, "state": state, "other_state": other, "param_groups": groups}
    if all(id(parameter) in names for group in optimizer.param_groups for parameter in group["params"]):
        return found
    return {**found, _PARAMETERS: dict(_own_parameters(optimizer, names))}


def find_mismatches(optimizer: Optimizer, saved: Mapping[str, Any], names: Mapping[int, str], entry: str) -> list[str]:
    """One sentence for each way in which a saved state does not fit the optimizer."""
    if not _is_state(saved):
        return [f"{entry}: what is stored is no optimizer's state"]
    live = _names_by_group(optimizer, names)
    stored = [group["params"] for group in saved["param_groups"]]
    if len(live) != len(stored):
        return [f"{entry}: {len(stored)} parameter groups are stored, the optimizer has {len(live)}"]
    problems = _differing_kinds(optimizer, saved, entry)
    for at, (here, there) in enumerate(zip(live, stored, strict=True)):
        known, saved_names = set(here), set(there)
        problems += [f"{entry}: group {at} lacks {name}" for name in there if name not in known]
        problems += [f"{entry}: group {at} has {name}, which is not stored" for name in here if name not in saved_names]
    return problems + _differing_shapes(optimizer, saved, live, entry) + _differing_own(optimizer, saved, names, entry)


def load_named_state(optimizer: Optimizer, saved: Mapping[str, Any], names: Mapping[int, str]) -> None:
    """Give the optimizer a saved state, parameters being matched by name and every bit kept."""
    numbers: dict[str, int] = {}
    places: dict[str, tuple[torch.Tensor, Mapping[str, Any]]] = {}
    groups = []
    plain = is_plain(optimizer)
    named = _names_by_group(optimizer, names)
    for own, group, stored in zip(named, optimizer.param_groups, saved["param_groups"], strict=True):
        for name, parameter in zip(own, group["params"], strict=True):
            numbers.setdefault(name, len(numbers))
            places[name] = (parameter, group)
        placed = {key: _beside(group.get(key), value) for key, value in stored.items()}
        groups.append({**placed, "params": [numbers[name] for name in own]})
    extra = {key: value for key, value in saved.items() if key not in (*_KNOWN, "other_state", _PARAMETERS)}
    with torch.no_grad():
        for name, value in saved.get(_PARAMETERS, {}).items():
            places[name][0].copy_(value)
    state: dict[Any, Any] = dict(saved["other_state"])
    if not plain:
        # Somebody's own load_state_dict, or a hook, has a right to see all of it.
        state.update((numbers[name], value) for name, value in saved["state"].items())
    optimizer.load_state_dict({**extra, "state": state, "param_groups": groups})
    for name, values in saved["state"].items():
        parameter, settings = places[name]
        if plain:
            optimizer.state[parameter] = _placed(values, parameter, settings)
        elif parameter in optimizer.state:
            optimizer.state[parameter] = _with_own_bits(optimizer.state[parameter], values)


def is_plain(optimizer: Optimizer) -> bool:
    """Whether nobody but torch takes part in loading its state, so that nothing can refuse."""
    hooks = (optimizer._optimizer_load_state_dict_pre_hooks, optimizer._optimizer_load_state_dict_post_hooks)
    return type(optimizer).load_state_dict is Optimizer.load_state_dict and not any(hooks)


def _placed(values: Any, parameter: torch.Tensor, group: Mapping[str, Any]) -> Any:
    # Where torch's own load_state_dict puts tensors, without its casts to the parameter's dtype, and without its
    # search of every group for every tensor, which takes minutes for many thousands of them.
    if not isinstance(values, dict):
        return _moved(values, parameter.device)
    on_device = bool(group.get("capturable") or group.get("fused"))
    return {
        key: _moved(value, parameter.device) if key != "step" or on_device else value for key, value in values.items()
    }


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) is dict:
        return {key: _moved(item, device) for key, item in value.items()}
    return type(value)(_moved(item, device) for item in value) if type(value) in (list, tuple) else value


def _beside(live: Any, value: Any) -> Any:
    # A learning rate that is a tensor stays where the optimizer has it.
    both = isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor)
    return value.to(live.device) if both else value


def _with_own_bits(loaded: Any, value: Any) -> Any:
    # load_state_dict casts moments to their parameter's dtype: fp32 moments of a bf16 parameter would lose bits.
    # And it takes texts for lists of letters, which end as something else.
    if isinstance(value, str):
        return value
    if isinstance(loaded, torch.Tensor) and isinstance(value, torch.Tensor):
        return value.to(loaded.device) if loaded.dtype != value.dtype else loaded
    if isinstance(loaded, dict) and isinstance(value, dict):
        loaded.update({key: _with_own_bits(item, value[key]) for key, item in loaded.items() if key in value})
    elif type(loaded) in (list, tuple) and type(loaded) is type(value) and len(loaded) == len(value):
        return type(loaded)(_with_own_bits(*pair) for pair in zip(loaded, value, strict=True))
    return loaded


def _names_by_group(optimizer: Optimizer, names: Mapping[int, str]) -> list[list[str]]:
    own: dict[int, str] = {}
    taken = set(names.values())
    for at, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in own:
                name = names.get(id(parameter))
                own[id(parameter)] = unused(f"param_groups.{at}.{place}", taken) if name is None else name
    return [[own[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _own_parameters(optimizer: Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    for own, group in zip(_names_by_group(optimizer, names), optimizer.param_groups, strict=True):
        for name, parameter in zip(own, group["params"], strict=True):
            if id(parameter) not in names:
                yield name, parameter.detach()


def _is_state(saved: Any) -> bool:
    if not isinstance(saved, dict) or not {"state", "other_state", "param_groups"} <= saved.keys():
        return False
    groups, parts = saved["param_groups"], (saved["state"], saved["other_state"], saved.get(_PARAMETERS, {}))
    named = isinstance(groups, list) and all(
        isinstance(group, dict)
        and isinstance(group.get("params"), list)
        and all(isinstance(name, str) for name in group["params"])
        for group in groups
    )
    if not named or not all(isinstance(part, dict) for part in parts):
        return False
    known = {name for group in groups for name in group["params"]}
    return known.issuperset(parts[0]) and known.issuperset(parts[2])


def _differing_kinds(optimizer: Optimizer, saved: Mapping[str, Any], entry: str) -> list[str]:
    # A newer torch adds settings, and a loop's own may come and go. Settings on both sides that the other has not
    # are those of another kind of optimizer, which would fail in its first step.
    problems = []
    for at, (live, stored) in enumerate(zip(optimizer.param_groups, saved["param_groups"], strict=True)):
        lacking = [key for key in optimizer.defaults if key not in stored]
        foreign = [key for key in stored if key not in live and key not in _ADDED]
        if lacking and foreign:
            problems.append(
                f"{entry}: group {at} is of another kind of optimizer, with {', '.join(sorted(foreign))}; the "
                f"{type(optimizer).__name__} here has {', '.join(sorted(lacking))}"
            )
    return problems


def _differing_own(optimizer: Optimizer, saved: Mapping[str, Any], names: Mapping[int, str], entry: str) -> list[str]:
    stored = saved.get(_PARAMETERS, {})
    return [
        f"{entry}: {name} {list(parameter.shape)} is in no module, and what is stored for it does not fit"
        for name, parameter in _own_parameters(optimizer, names)
        if name in stored and getattr(stored[name], "shape", None) != parameter.shape
    ]


def _differing_shapes(optimizer: Optimizer, saved: Mapping[str, Any], named: list[list[str]], entry: str) -> list[str]:
    if not type(optimizer).__module__.startswith("torch.optim."):
        return []
    problems = []
    for names, group in zip(named, optimizer.param_groups, strict=True):
        for name, parameter in zip(names, group["params"], strict=True):
            values = saved["state"].get(name)
            for key in sorted(_PARAMETER_SHAPED.intersection(values)) if isinstance(values, dict) else ():
                if isinstance(values[key], torch.Tensor) and values[key].shape != parameter.shape:
                    problems.append(
                        f"{entry}: {name}.{key} {list(values[key].shape)} is stored, the parameter has "
                        f"{list(parameter.shape)}"
                    )
    return problems
