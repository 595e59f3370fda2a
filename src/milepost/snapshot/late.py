"""A survey in two parts: what must be read at once, and the description of many tensors, which training need not await.

Most of a large state are parameters and optimizer state, which only an optimizer's step changes. Of these only
references are taken at once. All else is small, and is copied at once; where it is not, there is no such survey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from milepost.records import JSON
from milepost.snapshot.capture import Survey, read_entry, stateful_tree, weights_of
from milepost.snapshot.flatten import Flattener
from milepost.snapshot.live import LiveTensor, own_copy
from milepost.snapshot.names import is_weight, parameter_names
from milepost.snapshot.rng import capture_rng
from milepost.snapshot.stateful import RNG, Entries, Kind
from milepost.snapshot.tensors import storage_key
from milepost.snapshot.updates import Updates

# What is copied at once, and has no place of its own in the arena.
_MOST_AT_ONCE = 16 * 1024 * 1024
_NUMBERS = (int, float, bool, str, type(None))


class _All:
    def __contains__(self, address: object) -> bool:
        return True


class NoLateSurveyError(Exception):
    """Too much must be copied at once, or from devices: the state is to be surveyed at once."""


class LateSurvey:
    """The state at the moment of construction. ``describe`` may come later, in any thread, before an update.

    ``dropped`` are the names that the model leaves out of its files, which take a walk through it to find. Raises
    NoLateSurveyError where ``survey`` is the way, SaveFailedError and UnsupportedStateError as that does.
    """

    def __init__(self, entries: Entries, updates: Updates, dropped: Sequence[str]) -> None:
        self._entries = entries
        self._flattener = Flattener()
        self._alive: list[object] = []
        self._room = _MOST_AT_ONCE
        # First, in case somebody's state_dict() draws.
        self._state: dict[str, JSON] = {RNG: self._flattener.flatten(capture_rng(), RNG, RNG)}
        self._late: dict[str, Any] = {}
        self._versions: list[tuple[torch.Tensor, int]] = []
        names = parameter_names(entries)
        owned = updates.parameters()
        for name, value in entries.values.items():
            self._read(name, value, names, updates, owned)
        self._copy_small()
        self._dropped = dropped

    def describe(self) -> Survey:
        """The survey; tensors that may be copied late are ``deferrable``, and the others are copies."""
        flattener = self._flattener
        weights: dict[str, LiveTensor] = {}
        ties: dict[str, str] = {}
        flattener.deferrable = _All()
        for name, content in self._late.items():
            path = f'state["{name}"]'
            if name == self._entries.model:
                weights, ties = weights_of(content, self._dropped, path, _All())
                self._state[name] = {}
            elif self._entries.kinds[name] is Kind.OPTIMIZER:
                tree = {
                    key: flattener.flatten(item, f"{name}.{key}", f"{path}[{key!r}]") for key, item in content.items()
                }
                self._state[name] |= tree
            else:
                self._state[name] = flattener.flatten(content, name, path)
        # Versions as they were then: what was written since is no part of that moment.
        then = {id(tensor): version for tensor, version in self._versions}
        for live in (*weights.values(), *flattener.tensors.values()):
            if isinstance(live, LiveTensor) and id(live.tensor) in then:
                live.version = then[id(live.tensor)]
        # In the order of the entries, as in every survey.
        state = {name: self._state[name] for name in (RNG, *self._entries.values)}
        return Survey(weights, ties, state, flattener.tensors)

    def _read(self, name: str, value: Any, names: Mapping[int, str], updates: Updates, owned: frozenset[int]) -> None:
        kind, path = self._entries.kinds[name], f'state["{name}"]'
        content = read_entry(path, value, kind, names)
        if kind is Kind.STATEFUL:
            self._state[name] = stateful_tree(self._flattener, content, value, name, path)
        elif kind is Kind.OPTIMIZER and updates.watches(value) and _is_regular(content["state"]):
            late = {"state": {key: dict(values) for key, values in content.pop("state").items()}}
            if "parameters" in content:
                late["parameters"] = content.pop("parameters")
            self._state[name] = self._flattener.flatten(content, name, path)
            self._late[name] = late
            for values in late["state"].values():
                self._note(values.values())
        elif kind is Kind.MODULE and all(is_weight(key, item) for key, item in content.items()):
            self._late[name] = self._with_copies(content, owned)
            self._note(self._late[name].values())
        else:
            if name == self._entries.model:
                raise NoLateSurveyError
            self._state[name] = self._flattener.flatten(content, name, path)

    def _note(self, values: Any) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                if not value.is_cpu:
                    # A device's copies are ordered by the stream of the moment.
                    raise NoLateSurveyError
                if not value.is_inference():
                    self._versions.append((value, value._version))

    def _with_copies(self, content: Mapping[str, torch.Tensor], owned: frozenset[int]) -> dict[str, torch.Tensor]:
        copies: dict[object, torch.Tensor] = {}
        found = {}
        for name, tensor in content.items():
            if tensor.layout is not torch.strided or tensor.untyped_storage().data_ptr() in owned:
                found[name] = tensor
                continue
            self._take_room(tensor.nbytes)
            key = storage_key(tensor)
            if key is None or key not in copies:
                self._alive.append(tensor)
                copies[key] = tensor.detach().clone()
            found[name] = copies[key]
        return found

    def _copy_small(self) -> None:
        tensors = self._flattener.tensors
        for name, source in tensors.items():
            if isinstance(source, LiveTensor):
                self._take_room(source.nbytes)
                # Their addresses stand for them in the flattener.
                self._alive.append(source)
                tensors[name] = own_copy(source)

    def _take_room(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise NoLateSurveyError


def _is_regular(state: Mapping[str, Any]) -> bool:
    return all(
        type(values) is dict
        and all(type(value) is torch.Tensor or isinstance(value, _NUMBERS) for value in values.values())
        for values in state.values()
    )
