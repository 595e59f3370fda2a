"""The live state to a snapshot in host memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from milepost.errors import SaveFailedError
from milepost.records import JSON, Snapshot, TensorBytes
from milepost.snapshot.flatten import Flattener
from milepost.snapshot.names import module_state, parameter_names, unwrap
from milepost.snapshot.optimizers import named_state
from milepost.snapshot.rng import capture_rng
from milepost.snapshot.stateful import RNG, Entries, Kind
from milepost.snapshot.tensors import storage_key, to_bytes


def capture(entries: Entries, *, copy: bool) -> Snapshot:
    """Read every entry, and the random number generators, into host memory.

    With ``copy`` the snapshot owns all its memory; without, it may be a view of live tensors, good until they change.
    Nothing is drawn, and no live object changes. Raises UnsupportedStateError with the full path of what cannot be
    stored, SaveFailedError naming the entry whose ``state_dict()`` failed.
    """
    flattener = Flattener(copy=copy)
    # First, in case somebody's state_dict() draws.
    state: dict[str, JSON] = {RNG: flattener.flatten(capture_rng(), RNG, RNG)}
    names = parameter_names(entries)
    weights: dict[str, TensorBytes] = {}
    ties: dict[str, str] = {}
    for name, value in entries.values.items():
        content = _read(name, value, entries.kinds[name], names)
        if name == entries.model:
            weights, ties = _weights(content, value, name, copy)
            content = {key: item for key, item in content.items() if not isinstance(item, torch.Tensor)}
        state[name] = flattener.flatten(content, name, f'state["{name}"]')
    return Snapshot(weights, ties, state, flattener.tensors)


def find_ties(tensors: Mapping[str, torch.Tensor], dropped: Sequence[str] = ()) -> dict[str, str]:
    """Other names of shared tensors, mapped to the one name under which each is kept.

    ``dropped`` are names or patterns that are kept only if all names of a tensor match them.
    """
    groups: dict[object, list[str]] = {}
    for name, tensor in tensors.items():
        key = storage_key(tensor)
        if key is not None:
            groups.setdefault(key, []).append(name)
    ties = {}
    for names in groups.values():
        kept = next((name for name in names if not _matches(name, dropped)), names[0])
        ties.update({name: kept for name in names if name != kept})
    return ties


def dropped_names(model: nn.Module) -> list[str]:
    """The names that a transformers model leaves out of its own checkpoints (``_tied_weights_keys``)."""
    declared = getattr(unwrap(model), "_tied_weights_keys", None)
    return [str(name) for name in declared] if isinstance(declared, dict | list | tuple | set) else []


def _read(name: str, value: Any, kind: Kind, names: Mapping[int, str]) -> Any:
    if kind is Kind.PLAIN:
        return value
    try:
        if kind is Kind.MODULE:
            return module_state(value)
        if kind is Kind.OPTIMIZER:
            return named_state(value, names)
        content = value.state_dict()
        generator = getattr(value, "generator", None)
        return {
            "state": content,
            "generator": generator.get_state() if isinstance(generator, torch.Generator) else None,
        }
    except Exception as error:
        raise SaveFailedError(f'state["{name}"].state_dict() failed: {error!r}') from error


def _weights(
    content: Mapping[str, Any], model: nn.Module, name: str, copy: bool
) -> tuple[dict[str, TensorBytes], dict[str, str]]:
    tensors = {key: value for key, value in content.items() if isinstance(value, torch.Tensor)}
    ties = find_ties(tensors, dropped_names(model))
    weights = {
        key: to_bytes(value, f'state["{name}"].{key}', copy=copy) for key, value in tensors.items() if key not in ties
    }
    return weights, ties


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or re.fullmatch(pattern, name) for pattern in patterns)
