"""A module's saved tensors: do they fit?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from milepost.snapshot.names import is_weight, module_state
from milepost.snapshot.problems import Problems
from milepost.snapshot.tensors import check_storable, overlaps_itself, same_bits, shape_and_dtype, to_tensor
from milepost.snapshot.ties import find_ties


def live_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's parameters and persistent buffers under clean names.

    Raises UnsupportedStateError naming one that has no plain memory, as before a lazy module's first call.
    """
    weights = {name: value for name, value in module_state(module).items() if is_weight(name, value)}
    for name, value in weights.items():
        check_storable(value, name)
    return weights


def with_ties(weights: Mapping[str, Any], ties: Mapping[str, str], live: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The weights under all names: those tied when they were saved, and those tied now of which one is there."""
    full = {**weights, **{name: weights[kept] for name, kept in ties.items() if kept in weights}}
    tied_here = find_ties(live).items()
    full.update({kept: full[name] for name, kept in tied_here if name in full and kept not in full})
    full.update({name: full[kept] for name, kept in tied_here if kept in full and name not in full})
    return full


def compare_module(problems: Problems, entry: str, module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Note all in which a module and what was saved of it differ: names, shapes, dtypes, ties."""
    problems.compare(set(module_state(module)), set(saved), f"{entry}.")
    live = live_weights(module)
    for name in (name for name in live if name in saved):
        here = (tuple(live[name].shape), live[name].dtype)
        if (there := described(saved[name])) != here:
            problems.mismatched.append(
                f"{entry}.{name}: {there[1]} {list(there[0])} is stored, the model has {here[1]} {list(here[0])}"
            )
        elif overlaps_itself(live[name]) and _expanded_differently(live[name], _tensor(saved[name])):
            problems.mismatched.append(f"{entry}.{name}: it is expanded here, and what is stored is not")
    compare_ties(problems, f"{entry}.", live, saved)


def compare_ties(problems: Problems, prefix: str, live: Mapping[str, torch.Tensor], saved: Mapping[str, Any]) -> None:
    """Note tensors that are one here, and were saved as two of different values."""
    for name, kept in find_ties(live).items():
        if name in saved and kept in saved and not _equal(saved[name], saved[kept]):
            problems.mismatched.append(f"{prefix}{name}: it is one tensor with {kept} here, and two are stored")


def described(value: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of a saved tensor; of another value, no shape and its type's name."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    return shape_and_dtype(value) if is_stored(value) else ((), type(value).__name__)


def is_stored(value: object) -> bool:
    """Whether a saved value is a tensor as it was stored, which is no torch tensor yet."""
    return not isinstance(value, torch.Tensor) and hasattr(value, "copy_into")


def _expanded_differently(live: torch.Tensor, saved: torch.Tensor) -> bool:
    return not same_bits(once(live, saved).expand_as(saved), saved)


def once(live: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The part of ``value`` where each element of an expanded ``live`` is met once."""
    for dimension, stride in enumerate(live.stride()):
        if stride == 0 and value.shape[dimension] > 1:
            value = value.narrow(dimension, 0, 1)
    return value


def holds_weight(name: str, value: object) -> bool:
    """Whether a saved value of a module's state is a parameter or a buffer, and not its extra state."""
    return is_weight(name, value) or (is_stored(value) and name.rpartition(".")[2] != "_extra_state")


def _tensor(value: Any) -> Any:
    return to_tensor(value) if is_stored(value) else value


def _equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if is_stored(first) and is_stored(second):
        return bool(first.data == second.data)
    return isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and same_bits(first, second)
