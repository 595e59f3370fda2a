"""Names of parameters as the user knows them, without what wrappers put before them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from milepost.snapshot.stateful import Entries, Kind

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside torch.compile's, DistributedDataParallel's and DataParallel's wrappers."""
    while True:
        if isinstance(module, DistributedDataParallel | DataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            return module


def clean(name: str) -> str:
    """A name of the unwrapped module without the wrappers further inside."""
    if "_orig_mod" not in name and "_checkpoint_wrapped_module" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def module_state(module: nn.Module) -> dict[str, Any]:
    """The module's ``state_dict`` under clean names."""
    return {clean(name): value for name, value in unwrap(module).state_dict().items()}


def is_weight(name: str, value: object) -> bool:
    """Whether a value of a ``state_dict`` is a parameter or a buffer, and not what ``get_extra_state()`` gave."""
    return isinstance(value, torch.Tensor) and name.rpartition(".")[2] != "_extra_state"


def unused(name: str, taken: Container[str]) -> str:
    """The name, or with ``~2``, ``~3``… after it if it is taken."""
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}~{count}"
    return unique


def parameter_names(entries: Entries) -> dict[int, str]:
    """Names by ``id`` of every parameter of every module in the state; the model's are bare, others' have a prefix.

    No two parameters have one name, also where a part of the model is called like another module in the state.
    """
    names: dict[int, str] = {}
    taken: set[str] = set()
    modules = entries.of(Kind.MODULE)
    for entry in sorted(modules, key=lambda entry: entry != entries.model):
        prefix = "" if entry == entries.model else f"{entry}."
        for name, parameter in unwrap(modules[entry]).named_parameters():
            if id(parameter) not in names:
                names[id(parameter)] = unused(prefix + clean(name), taken)
                taken.add(names[id(parameter)])
    return names
