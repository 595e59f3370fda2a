"""What a user calls the state of a run, sorted into kinds and checked when the manager is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from milepost.errors import UnsupportedStateError
from milepost.snapshot.flatten import Flattener
from milepost.snapshot.loaders import check_samplers, give_generator

RNG = "rng"


class Kind(Enum):
    """How an entry of the state is read and put back."""

    MODULE = "module"
    OPTIMIZER = "optimizer"
    STATEFUL = "object with state_dict"
    PLAIN = "dict or list"


@dataclass(frozen=True, slots=True)
class Entries:
    """The state's entries by name. ``model`` names the module whose tensors are the checkpoint's weights."""

    values: Mapping[str, Any]
    kinds: Mapping[str, Kind]
    model: str | None

    def refuse_changes(self, state: Mapping[str, Any]) -> None:
        """Raise UnsupportedStateError naming an entry of ``state`` that is another object now, or new, or gone."""
        for name in {**self.values, **state}:
            if name not in state or name not in self.values or state[name] is not self.values[name]:
                raise UnsupportedStateError(
                    f'state["{name}"] is not what it was when the CheckpointManager was made, which saves and restores '
                    "the objects it was given then. Change that object in place, or make a new manager.",
                    path=name,
                )

    def of(self, kind: Kind) -> dict[str, Any]:
        """The entries of one kind."""
        return {name: value for name, value in self.values.items() if self.kinds[name] is kind}


def check_state(state: Mapping[str, Any]) -> Entries:
    """Sort a state into kinds: the model is the module called ``model``, or the only module.

    Raises UnsupportedStateError naming the entry (with its full path) for what could not be stored or restored.
    A torch loader without a generator gets its own, so that iterating it does not draw from the global one.
    """
    if not isinstance(state, Mapping):
        raise UnsupportedStateError(f"state is a {type(state).__name__}; give a dict of names to objects", path="state")
    kinds = {}
    for name, value in state.items():
        if not isinstance(name, str) or not name:
            raise UnsupportedStateError(f"state has the key {name!r}; keys must be texts", path="state")
        if name == RNG:
            raise UnsupportedStateError(
                f'state["{RNG}"] is taken: the random number generators are always part of the state', path=RNG
            )
        kinds[name] = _kind(name, value)
    modules = [name for name, kind in kinds.items() if kind is Kind.MODULE]
    model = "model" if "model" in modules else modules[0] if len(modules) == 1 else None
    for value in state.values():
        if isinstance(value, DataLoader):
            give_generator(value)
    return Entries(dict(state), kinds, model)


def _kind(name: str, value: Any) -> Kind:
    path = f'state["{name}"]'
    if isinstance(value, type):
        raise UnsupportedStateError(f"{path} is the class {value.__name__}; give an object of it", path=path)
    if isinstance(value, nn.Module):
        return Kind.MODULE
    if isinstance(value, torch.optim.Optimizer):
        return Kind.OPTIMIZER
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        if isinstance(value, DataLoader):
            check_samplers(value, path)
        return Kind.STATEFUL
    if isinstance(value, dict | list):
        # Fails now rather than at the first save if something in it cannot be stored.
        Flattener().flatten(value, name, path)
        return Kind.PLAIN
    if isinstance(value, DataLoader):
        raise UnsupportedStateError(
            f"{path} is a DataLoader, which does not know its position. Use milepost.data.ResumableLoader, or "
            "StatefulDataLoader of torchdata.",
            path=path,
        )
    raise UnsupportedStateError(
        f"{path} is a {type(value).__name__}, which could not be restored. Give a module, an optimizer, an object with "
        "state_dict and load_state_dict, or put the value into a dict that the loop reads and changes.",
        path=path,
    )
