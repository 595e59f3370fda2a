"""A snapshot back into the live objects: everything is checked first, and only then is anything changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from milepost.records import Fill, Restorable
from milepost.snapshot import loading, optimizers
from milepost.snapshot.flatten import Unflattener
from milepost.snapshot.loading import load_module
from milepost.snapshot.modules import compare_module, compare_ties, described, holds_weight, live_weights, with_ties
from milepost.snapshot.names import parameter_names, unwrap
from milepost.snapshot.optimizers import find_mismatches, load_named_state, named_state
from milepost.snapshot.plain import InPlace
from milepost.snapshot.problems import Problems
from milepost.snapshot.refusals import Loading, load_all_or_none
from milepost.snapshot.rng import find_rng_faults, restore_rng
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
    problems.raise_if_any()
    # Every byte of the checkpoint is checked here, before anything live changes.
    snapshot.fill(unflattener.pending)
    if RNG in saved:
        problems.mismatched += [f"{RNG}: {fault}" for fault in find_rng_faults(saved[RNG])]
    problems.raise_if_any()
    load_all_or_none(_loadings(entries, present, saved, names, snapshot.fill_again))
    in_place = InPlace()
    for name, value in present.items():
        kind = entries.kinds[name]
        if kind is Kind.MODULE and loading.is_plain(value):
            load_module(value, saved[name], snapshot.fill_again)
        elif kind is Kind.OPTIMIZER and optimizers.is_plain(value):
            load_named_state(value, saved[name], names)
        elif kind is Kind.PLAIN:
            in_place.load(value, saved[name])
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
    if loading.is_plain(model):
        load_module(model, wanted, snapshot.fill_again)
    else:
        load_all_or_none([_of_module("model", model, wanted, snapshot.fill_again)])
    return LoadResult(missing, unexpected)


def _owner_of_weights(entries: Entries, saved: Mapping[str, Any]) -> str | None:
    """The module whose tensors were saved as the weights: those of every other are in its own state."""
    owners = [
        name
        for name, module in entries.of(Kind.MODULE).items()
        if isinstance(saved.get(name), dict)
        and live_weights(module)
        and not any(holds_weight(key, value) for key, value in saved[name].items())
    ]
    return entries.model if entries.model in owners else owners[0] if len(owners) == 1 else None


def _check(problems: Problems, name: str, value: Any, kind: Kind, saved: Any, names: Mapping[int, str]) -> None:
    if kind is Kind.MODULE:
        if isinstance(saved, dict):
            compare_module(problems, name, value, saved)
        else:
            problems.mismatched.append(f"{name}: what is stored is no module's state")
    elif kind is Kind.OPTIMIZER:
        problems.mismatched += find_mismatches(value, saved, names, name)
    elif kind is Kind.PLAIN and type(saved) is not type(value):
        problems.mismatched.append(
            f"{name}: a {type(saved).__name__} is stored, the state has a {type(value).__name__}"
        )
    elif kind is Kind.STATEFUL and not (isinstance(saved, dict) and {"state", "generator"} <= saved.keys()):
        problems.mismatched.append(f"{name}: what is stored did not come from a state_dict()")


def _loadings(
    entries: Entries, present: Mapping[str, Any], saved: Mapping[str, Any], names: Mapping[int, str], fill: Fill
) -> Iterator[Loading]:
    """The loadings that may refuse, before all others, after which nothing can any more."""
    objects = [name for name in present if entries.kinds[name] is Kind.STATEFUL]
    # Asking torchdata's loader for its state begins an epoch. It refuses nothing, and need not be asked.
    for name in sorted(objects, key=lambda name: not isinstance(present[name], DataLoader)):
        value = present[name]
        load = partial(_load_object, value, saved[name])
        asked = not isinstance(value, DataLoader)
        yield Loading(name, load, value.state_dict, value.load_state_dict) if asked else Loading(name, load)
    for name, value in present.items():
        kind = entries.kinds[name]
        if kind is Kind.MODULE and not loading.is_plain(value):
            yield _of_module(name, value, saved[name], fill)
        elif kind is Kind.OPTIMIZER and not optimizers.is_plain(value):
            yield Loading(
                name,
                partial(load_named_state, value, saved[name], names),
                partial(named_state, value, names),
                partial(load_named_state, value, names=names),
            )


def _of_module(name: str, module: nn.Module, saved: Mapping[str, Any], fill: Fill) -> Loading:
    inner = unwrap(module)
    put_back = partial(inner.load_state_dict, strict=False)
    return Loading(name, partial(load_module, module, saved, fill), lambda: dict(inner.state_dict()), put_back)


def _load_object(value: Any, saved: Mapping[str, Any]) -> None:
    value.load_state_dict(saved["state"])
    if saved["generator"] is not None and isinstance(getattr(value, "generator", None), torch.Generator):
        value.generator.set_state(saved["generator"])
