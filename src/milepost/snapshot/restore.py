"""A snapshot back into the live objects: everything is checked first, and only then is anything changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from milepost.errors import IncompatibleStateError
from milepost.records import Restorable
from milepost.snapshot.flatten import Flattener, Unflattener
from milepost.snapshot.live import own_bytes
from milepost.snapshot.loading import load_module
from milepost.snapshot.modules import compare_module, compare_ties, described, live_weights, with_ties
from milepost.snapshot.names import is_weight, parameter_names
from milepost.snapshot.optimizers import find_mismatches, load_named_state
from milepost.snapshot.plain import InPlace
from milepost.snapshot.problems import Problems
from milepost.snapshot.rng import capture_rng, restore_rng
from milepost.snapshot.stateful import RNG, Entries, Kind


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Names that the model has and the checkpoint has not (``missing``), and the other way round (``unexpected``)."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def restore(entries: Entries, snapshot: Restorable, *, allow_missing: Iterable[str] = ()) -> None:
    """Put a snapshot's state into the live objects, in place, the random number generators last.

    ``allow_missing`` names entries that may be in one of the two only; they are left as they are. Raises
    IncompatibleStateError naming every missing, unexpected or differing part, or CorruptCheckpointError, with all
    live objects untouched.
    """
    allowed = {allow_missing} if isinstance(allow_missing, str) else set(allow_missing)
    problems = Problems()
    problems.compare({*entries.values, RNG} - allowed, set(snapshot.state) - allowed)
    unflattener = Unflattener(snapshot.tensors, deferred=True)
    saved = {
        name: unflattener.members(tree) if entries.kinds.get(name) is Kind.MODULE else unflattener.unflatten(tree)
        for name, tree in snapshot.state.items()
    }
    present = {name: value for name, value in entries.values.items() if name in saved}
    owner = _owner_of_weights(entries, saved)
    if owner is not None:
        saved[owner] |= with_ties(snapshot.weights, snapshot.ties, live_weights(present[owner]))
    names = parameter_names(entries)
    for name, value in present.items():
        _check(problems, name, value, entries.kinds[name], saved[name], names)
    if RNG in saved and not (isinstance(saved[RNG], dict) and {"python", "numpy", "torch"} <= saved[RNG].keys()):
        problems.mismatched.append(f"{RNG}: what is stored are no generators' states")
    problems.raise_if_any()
    # Every byte of the checkpoint is checked here, before anything live changes.
    snapshot.fill(unflattener.pending)
    _load_foreign({name: value for name, value in present.items() if entries.kinds[name] is Kind.STATEFUL}, saved)
    in_place = InPlace()
    for kind in (Kind.MODULE, Kind.OPTIMIZER, Kind.PLAIN):
        for name in (name for name in present if entries.kinds[name] is kind):
            if kind is Kind.MODULE:
                load_module(present[name], saved[name], snapshot.fill_again, strict=True)
            elif kind is Kind.OPTIMIZER:
                load_named_state(present[name], saved[name], names)
            else:
                in_place.load(present[name], saved[name])
    if RNG in saved:
        restore_rng(saved[RNG])


def restore_model(model: nn.Module, snapshot: Restorable, *, strict: bool = True) -> LoadResult:
    """Copy weights into a model in place, cast to its dtypes; only names matter, and with ``strict`` all of them.

    Raises IncompatibleStateError or CorruptCheckpointError, with the model untouched.
    """
    live = live_weights(model)
    saved = with_ties(snapshot.weights, snapshot.ties, live)
    missing = tuple(name for name in live if name not in saved)
    unexpected = tuple(name for name in saved if name not in live)
    problems = Problems()
    if strict:
        problems.missing += missing
        problems.unexpected += unexpected
    for name in (name for name in live if name in saved):
        shape, _ = described(saved[name])
        if shape != tuple(live[name].shape):
            problems.mismatched.append(f"{name}: {list(shape)} is stored, the model has {list(live[name].shape)}")
    compare_ties(problems, "", live, saved)
    problems.raise_if_any()
    snapshot.fill(())
    wanted = {name: value for name, value in saved.items() if name in live}
    load_module(model, wanted, snapshot.fill_again, strict=False)
    return LoadResult(missing, unexpected)


def _owner_of_weights(entries: Entries, saved: Mapping[str, Any]) -> str | None:
    """The module whose tensors were saved as the weights: those of every other are in its own state."""
    owners = [
        name
        for name, module in entries.of(Kind.MODULE).items()
        if isinstance(saved.get(name), dict)
        and live_weights(module)
        and not any(is_weight(key, value) for key, value in saved[name].items())
    ]
    return entries.model if entries.model in owners else owners[0] if len(owners) == 1 else None


def _check(problems: Problems, name: str, value: Any, kind: Kind, saved: Any, names: Mapping[int, str]) -> None:
    if kind is Kind.MODULE:
        if isinstance(saved, dict):
            compare_module(problems, name, value, saved)
        else:
            problems.mismatched.append(f"{name}: what is stored is no module's state")
    elif kind is Kind.OPTIMIZER:
        if not isinstance(saved, dict) or not {"state", "other_state", "param_groups"} <= saved.keys():
            problems.mismatched.append(f"{name}: what is stored is no optimizer's state")
        else:
            problems.mismatched += find_mismatches(value, saved, names, name)
    elif kind is Kind.PLAIN and type(saved) is not type(value):
        problems.mismatched.append(
            f"{name}: a {type(saved).__name__} is stored, the state has a {type(value).__name__}"
        )
    elif kind is Kind.STATEFUL and not (isinstance(saved, dict) and {"state", "generator"} <= saved.keys()):
        problems.mismatched.append(f"{name}: what is stored did not come from a state_dict()")


def _load_foreign(objects: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Load the objects that only their own ``load_state_dict`` can check, or none of them: the first to go, too.

    Before anything else, since afterwards nothing can refuse any more.
    """
    # Asking torchdata's loader for its state begins an epoch. It refuses nothing, and need not be asked.
    ordered = sorted(objects, key=lambda name: not isinstance(objects[name], DataLoader))
    generators = capture_rng()
    undo: list[tuple[Any, Any]] = []
    for name in ordered:
        value = objects[name]
        if not isinstance(value, DataLoader):
            undo.append((value, _state_now(value)))
        try:
            value.load_state_dict(saved[name]["state"])
        except Exception as error:
            for changed, before in reversed(undo):
                if before is not None:
                    # One that refuses its own state too is left as its author left it.
                    with contextlib.suppress(Exception):
                        changed.load_state_dict(before[0])
            restore_rng(generators)
            if isinstance(error, IncompatibleStateError):
                raise
            raise IncompatibleStateError(f'state["{name}"].load_state_dict() failed: {error!r}') from error
    for name, value in objects.items():
        if saved[name]["generator"] is not None and isinstance(getattr(value, "generator", None), torch.Generator):
            value.generator.set_state(saved[name]["generator"])


def _state_now(value: Any) -> tuple[Any] | None:
    """A copy of an object's state, in a tuple; None where it has none yet, or none that could be stored."""
    flattener = Flattener()
    with contextlib.suppress(Exception):
        tree = flattener.flatten(value.state_dict(), "state", "state")
        return (Unflattener(own_bytes(flattener.tensors)).unflatten(tree),)
    return None
