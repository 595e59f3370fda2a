"""The live state described (a survey), and copied to host memory (a snapshot)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from milepost.errors import SaveFailedError
from milepost.records import JSON, Snapshot, TensorSource
from milepost.snapshot.flatten import Flattener
from milepost.snapshot.live import LiveTensor, own_bytes
from milepost.snapshot.names import is_weight, module_state, parameter_names
from milepost.snapshot.optimizers import named_state
from milepost.snapshot.rng import capture_rng
from milepost.snapshot.stateful import RNG, Entries, Kind
from milepost.snapshot.ties import dropped_names, find_ties


@dataclass(frozen=True, slots=True)
class Survey:
    """The state as ``Snapshot`` has it, with the live tensors in the place of their bytes: good until they change."""

    weights: Mapping[str, TensorSource]
    ties: Mapping[str, str]
    state: Mapping[str, JSON]
    tensors: Mapping[str, TensorSource]


def capture(entries: Entries) -> Snapshot:
    """Read every entry, and the random number generators, into host memory of the snapshot's own.

    Nothing is drawn, and no live object changes. Raises what ``survey`` does.
    """
    found = survey(entries)
    return Snapshot(own_bytes(found.weights), found.ties, found.state, own_bytes(found.tensors))


def survey(entries: Entries, deferrable: Container[int] = ()) -> Survey:
    """Read every entry and the random number generators; tensors are named and described, and not copied yet.

    ``deferrable`` are the addresses of memory that only an optimizer's step changes. Nothing is drawn, and no live
    object changes. Raises UnsupportedStateError with the full path of what cannot be stored, SaveFailedError naming
    the entry whose ``state_dict()`` failed.
    """
    flattener = Flattener(deferrable)
    # First, in case somebody's state_dict() draws.
    state: dict[str, JSON] = {RNG: flattener.flatten(capture_rng(), RNG, RNG)}
    names = parameter_names(entries)
    weights: dict[str, LiveTensor] = {}
    ties: dict[str, str] = {}
    for name, value in entries.values.items():
        kind, path = entries.kinds[name], f'state["{name}"]'
        content = read_entry(path, value, kind, names)
        if kind is Kind.STATEFUL:
            state[name] = stateful_tree(flattener, content, value, name, path)
            continue
        if name == entries.model:
            weights, ties = weights_of(content, dropped_names(value), path, deferrable)
            content = {key: item for key, item in content.items() if not is_weight(key, item)}
        state[name] = flattener.flatten(content, name, path)
    return Survey(weights, ties, state, flattener.tensors)


def read_entry(path: str, value: Any, kind: Kind, names: Mapping[int, str]) -> Any:
    """What an entry has to be stored; its tensors are the live ones. Raises SaveFailedError naming the entry."""
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


def stateful_tree(flattener: Flattener, content: Any, value: Any, name: str, path: str) -> JSON:
    """The tree of an object with ``state_dict`` and, if it has one, of its generator."""
    generator = getattr(value, "generator", None)
    drawn = generator.get_state() if isinstance(generator, torch.Generator) else None
    return {
        "state": flattener.flatten(content, f"{name}.state", f"{path}.state_dict()"),
        "generator": flattener.flatten(drawn, f"{name}.generator", f"{path}.generator"),
    }


def weights_of(
    content: Mapping[str, Any], dropped: Sequence[str], path: str, deferrable: Container[int]
) -> tuple[dict[str, LiveTensor], dict[str, str]]:
    """The model's tensors, each shared one once, and the other names of those; ``dropped`` are names not kept."""
    tensors = {name: value for name, value in content.items() if is_weight(name, value)}
    live = {name: LiveTensor(value, f"{path}.{name}", deferrable) for name, value in tensors.items()}
    ties = find_ties(tensors, dropped)
    return {name: value for name, value in live.items() if name not in ties}, ties
