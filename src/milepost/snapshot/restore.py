"""A snapshot back into the live objects: everything is checked first, and only then is anything changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from milepost.errors import IncompatibleStateError
from milepost.records import Snapshot, TensorBytes
from milepost.snapshot.capture import dropped_names, find_ties
from milepost.snapshot.flatten import Unflattener
from milepost.snapshot.names import clean, module_state, parameter_names, unwrap
from milepost.snapshot.optimizers import find_mismatches, load_named_state
from milepost.snapshot.rng import restore_rng
from milepost.snapshot.stateful import RNG, Entries, Kind
from milepost.snapshot.tensors import shape_and_dtype, to_tensor


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Names that the model has and the checkpoint has not (``missing``), and the other way round (``unexpected``)."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


@dataclass(slots=True)
class _Problems:
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)

    def raise_if_any(self) -> None:
        """One error that names them all."""
        parts = [
            f"{len(names)} {what} ({', '.join(names[:20])}{', …' if len(names) > 20 else ''})"
            for what, names in (
                ("missing in the checkpoint", self.missing),
                ("not in the live state", self.unexpected),
                ("that differ", self.mismatched),
            )
            if names
        ]
        if parts:
            raise IncompatibleStateError(
                "the checkpoint does not fit the live state, and nothing was changed: " + "; ".join(parts) + ". Build "
                "the objects as they were when it was saved, or name entries in allow_missing.",
                missing=self.missing,
                unexpected=self.unexpected,
                mismatched=self.mismatched,
            )


def restore(entries: Entries, snapshot: Snapshot, *, allow_missing: Iterable[str] = ()) -> None:
    """Put a snapshot's state into the live objects, in place, the random number generators last.

    ``allow_missing`` names entries that may be in one of the two only; they are left as they are. Raises
    IncompatibleStateError naming every missing, unexpected or differing part, with all live objects untouched.
    """
    allowed = set(allow_missing)
    problems = _Problems()
    _compare(problems, set(entries.values) | {RNG}, set(snapshot.state), allowed, "{}")
    unflattener = Unflattener(snapshot.tensors)
    saved = {name: unflattener.unflatten(tree) for name, tree in snapshot.state.items()}
    if entries.model is not None and entries.model in snapshot.state:
        saved[entries.model] |= _with_ties(snapshot.weights, snapshot.ties)
    present = {name: value for name, value in entries.values.items() if name in saved}
    names = parameter_names(entries)
    for name, value in present.items():
        _check(problems, name, value, entries.kinds[name], saved[name], names)
    problems.raise_if_any()
    # Foreign objects first: only their load_state_dict can still refuse.
    for kind in (Kind.STATEFUL, Kind.MODULE, Kind.OPTIMIZER, Kind.PLAIN):
        for name, value in present.items():
            if entries.kinds[name] is kind:
                _apply(name, value, kind, saved[name], names)
    if RNG in saved:
        restore_rng(saved[RNG])


def restore_model(
    model: nn.Module, weights: Mapping[str, TensorBytes], ties: Mapping[str, str], *, strict: bool = True
) -> LoadResult:
    """Copy weights into a model in place, cast to its dtypes; only names matter, and with ``strict`` all of them.

    Raises IncompatibleStateError, with the model untouched.
    """
    saved = _with_ties(weights, ties)
    live = {name: value for name, value in module_state(model).items() if isinstance(value, torch.Tensor)}
    missing = tuple(name for name in live if name not in saved)
    unexpected = tuple(name for name in saved if name not in live)
    problems = _Problems()
    if strict:
        problems.missing += missing
        problems.unexpected += unexpected
    for name in (name for name in live if name in saved):
        shape, _ = _described(saved[name])
        if shape != tuple(live[name].shape):
            problems.mismatched.append(f"{name}: {list(shape)} is stored, the model has {list(live[name].shape)}")
    problems.raise_if_any()
    _load_module(model, {name: value for name, value in saved.items() if name in live}, strict=False)
    return LoadResult(missing, unexpected)


def _with_ties(weights: Mapping[str, TensorBytes], ties: Mapping[str, str]) -> dict[str, TensorBytes]:
    return {**weights, **{name: weights[kept] for name, kept in ties.items() if kept in weights}}


def _check(problems: _Problems, name: str, value: Any, kind: Kind, saved: Any, names: Mapping[int, str]) -> None:
    if kind is Kind.MODULE:
        _check_module(problems, name, value, saved)
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


def _check_module(problems: _Problems, entry: str, module: nn.Module, saved: Mapping[str, Any]) -> None:
    live = module_state(module)
    _compare(problems, set(live), set(saved), set(), entry + ".{}")
    for name, value in live.items():
        if name not in saved or not isinstance(value, torch.Tensor):
            continue
        shape, dtype = _described(saved[name])
        if (shape, dtype) != (tuple(value.shape), value.dtype):
            problems.mismatched.append(
                f"{entry}.{name}: {dtype} {list(shape)} is stored, the model has {value.dtype} {list(value.shape)}"
            )
    tensors = {name: value for name, value in live.items() if isinstance(value, torch.Tensor)}
    for name, kept in find_ties(tensors, dropped_names(module)).items():
        if name in saved and kept in saved and saved[name] is not saved[kept] and not _equal(saved[name], saved[kept]):
            problems.mismatched.append(f"{entry}.{name}: it is one tensor with {kept} here, and two are stored")


def _compare(problems: _Problems, live: set[str], saved: set[str], allowed: set[str], spelling: str) -> None:
    problems.missing += [spelling.format(name) for name in sorted(live - saved - allowed)]
    problems.unexpected += [spelling.format(name) for name in sorted(saved - live - allowed)]


def _described(value: Any) -> tuple[tuple[int, ...], Any]:
    if isinstance(value, TensorBytes):
        return shape_and_dtype(value)
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    return (), type(value).__name__


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, TensorBytes) and isinstance(second, TensorBytes):
        return first.data == second.data
    return isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and torch.equal(first, second)


def _apply(name: str, value: Any, kind: Kind, saved: Any, names: Mapping[int, str]) -> None:
    if kind is Kind.MODULE:
        _load_module(value, saved, strict=True)
    elif kind is Kind.OPTIMIZER:
        load_named_state(value, saved, names)
    elif kind is Kind.PLAIN:
        _load_in_place(value, saved)
    else:
        try:
            value.load_state_dict(saved["state"])
        except IncompatibleStateError:
            raise
        except Exception as error:
            raise IncompatibleStateError(f'state["{name}"].load_state_dict() failed: {error!r}') from error
        if saved["generator"] is not None and isinstance(getattr(value, "generator", None), torch.Generator):
            value.generator.set_state(saved["generator"])


def _load_module(module: nn.Module, saved: Mapping[str, Any], *, strict: bool) -> None:
    inner = unwrap(module)
    live_names = {clean(name): name for name in inner.state_dict()}
    made = {
        live_names[name]: to_tensor(value) if isinstance(value, TensorBytes) else value for name, value in saved.items()
    }
    inner.load_state_dict(made, strict=strict)


def _load_in_place(live: Any, saved: Any) -> None:
    if isinstance(live, dict):
        merged = {key: _merged(live.get(key), value) for key, value in saved.items()}
        live.clear()
        live.update(merged)
    else:
        live[:] = [_merged(live[at] if at < len(live) else None, value) for at, value in enumerate(saved)]


def _merged(live: Any, saved: Any) -> Any:
    """The live object changed to the saved value where that can be, else the saved value."""
    if type(live) is type(saved) and isinstance(live, dict | list):
        _load_in_place(live, saved)
        return live
    if isinstance(live, torch.Tensor) and isinstance(saved, torch.Tensor):
        alike = (live.shape, live.dtype, live.requires_grad) == (saved.shape, saved.dtype, saved.requires_grad)
        if alike and type(live) is type(saved):
            with torch.no_grad():
                return live.copy_(saved)
        return saved.to(live.device)
    return saved
