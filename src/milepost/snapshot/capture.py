"""The live state to a snapshot in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from milepost.errors import SaveFailedError
from milepost.records import JSON, Snapshot, TensorBytes
from milepost.snapshot.flatten import Flattener
from milepost.snapshot.names import is_weight, module_state, parameter_names
from milepost.snapshot.optimizers import named_state
from milepost.snapshot.rng import capture_rng
from milepost.snapshot.stateful import RNG, Entries, Kind
from milepost.snapshot.tensors import check_storable, to_bytes
from milepost.snapshot.ties import dropped_names, find_ties


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
        kind, path = entries.kinds[name], f'state["{name}"]'
        content = _read(path, value, kind, names)
        if kind is Kind.STATEFUL:
            state[name] = _stateful(flattener, content, value, name, path)
            continue
        if name == entries.model:
            weights, ties = _weights(content, value, path, copy)
            content = {key: item for key, item in content.items() if not is_weight(key, item)}
        state[name] = flattener.flatten(content, name, path)
    return Snapshot(weights, ties, state, flattener.tensors)


def _read(path: str, value: Any, kind: Kind, names: Mapping[int, str]) -> Any:
    if kind is Kind.PLAIN:
        return value
    try:
        if kind is Kind.MODULE:
            return module_state(value)
        if kind is Kind.OPTIMIZER:
            return named_state(value, names)
        return value.state_dict()
    except Exception as error:
        raise SaveFailedError(f"{path}.state_dict() failed: {error!r}") from error


def _stateful(flattener: Flattener, content: Any, value: Any, name: str, path: str) -> JSON:
    generator = getattr(value, "generator", None)
    drawn = generator.get_state() if isinstance(generator, torch.Generator) else None
    return {
        "state": flattener.flatten(content, f"{name}.state", f"{path}.state_dict()"),
        "generator": flattener.flatten(drawn, f"{name}.generator", f"{path}.generator"),
    }


def _weights(
    content: Mapping[str, Any], model: nn.Module, path: str, copy: bool
) -> tuple[dict[str, TensorBytes], dict[str, str]]:
    tensors = {name: value for name, value in content.items() if is_weight(name, value)}
    for name, value in tensors.items():
        check_storable(value, f"{path}.{name}")
    ties = find_ties(tensors, dropped_names(model))
    weights = {
        name: to_bytes(value, f"{path}.{name}", copy=copy) for name, value in tensors.items() if name not in ties
    }
    return weights, ties
