"""Saved tensors into a module, in place: straight to their memory where that is all that loading them means."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from milepost.memory import address_of
from milepost.records import Fill, StoredSource
from milepost.snapshot.modules import is_stored, once
from milepost.snapshot.names import clean, is_weight, unwrap
from milepost.snapshot.tensors import empty_tensor, host_view, overlaps_itself, shape_and_dtype

# What cannot be read straight to its place is brought there in parts of about this size.
_AT_ONCE = 256 * 1024 * 1024


def load_module(module: nn.Module, saved: Mapping[str, Any], fill: Fill) -> None:
    """Give a module its saved tensors (and extra state), by names that were compared before.

    ``fill`` brings stored tensors to memory. A module that takes part in its loading, by a method or a hook of its
    own, is loaded by its ``load_state_dict``, and may raise what that raises.
    """
    inner = unwrap(module)
    live = inner.state_dict()
    names = {clean(name): name for name in live}
    values = {names[name]: value for name, value in saved.items()}
    own = {tensor.data_ptr() for tensor in (*inner.parameters(), *inner.buffers())}
    weights = {name: value for name, value in values.items() if is_weight(name, live[name]) and is_stored(value)}
    straight = {name: value for name, value in weights.items() if _fits(live[name], value, own)}
    # Two names of one tensor are one place.
    fill({live[name].data_ptr(): (value, host_view(live[name].detach())) for name, value in straight.items()}.values())
    rest = {name: value for name, value in values.items() if name not in straight}
    if rest.keys() <= weights.keys() and is_plain(inner):
        for made in _made(rest, fill):
            _copy(live, made)
        return
    made = OrderedDict((name, live[name]) for name in straight)
    for part in _made(rest, fill):
        made.update(part)
    # Without the versions of its parts, a module would take this for the state of an older release of itself.
    made._metadata = getattr(live, "_metadata", OrderedDict())  # type: ignore[attr-defined]
    expanded = {name: made.pop(name) for name in rest if _is_expanded(live[name])}
    # A module whose state_dict leaves names out has them all in its eyes, and some are missing in ours.
    inner.load_state_dict(made, strict=False)
    _copy(live, expanded)


def _fits(live: torch.Tensor, value: StoredSource, own: set[int]) -> bool:
    """Whether a stored tensor's bytes, brought to the live tensor's memory, make the module have it."""
    if not live.is_cpu or not live.numel():
        return False
    same = shape_and_dtype(value) == (tuple(live.shape), live.dtype) and live.data_ptr() in own
    whole = live.is_contiguous() and not (live.is_conj() or live.is_neg() or overlaps_itself(live))
    # One element may have any stride and is still called contiguous.
    return same and whole and address_of(host_view(live.detach())) == live.data_ptr()


def is_plain(module: nn.Module) -> bool:
    """Whether loading its tensors means no more than copying them, so that nothing can refuse."""
    for part in unwrap(module).modules():
        kind = type(part)
        own_way = kind.load_state_dict is not nn.Module.load_state_dict or (
            kind._load_from_state_dict is not nn.Module._load_from_state_dict
            and not kind._load_from_state_dict.__module__.startswith("torch.nn.modules.")
        )
        own_way |= kind.set_extra_state is not nn.Module.set_extra_state
        if own_way or part._load_state_dict_pre_hooks or part._load_state_dict_post_hooks:
            return False
    return True


def _made(values: Mapping[str, Any], fill: Fill) -> Iterator[dict[str, Any]]:
    made: dict[str, Any] = {}
    pairs: list[tuple[StoredSource, memoryview]] = []
    size = 0
    for name, value in values.items():
        if is_stored(value):
            made[name], view = empty_tensor(value)
            pairs.append((value, view))
            size += view.nbytes
        else:
            made[name] = value
        if size >= _AT_ONCE:
            fill(pairs)
            yield made
            made, pairs, size = {}, [], 0
    fill(pairs)
    yield made


def _copy(live: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    with torch.no_grad(), torch.inference_mode(any(live[name].is_inference() for name in made)):
        for name, value in made.items():
            if _is_expanded(live[name]):
                once(live[name], live[name]).copy_(once(live[name], value))
            else:
                live[name].copy_(value)


def _is_expanded(live: Any) -> bool:
    return isinstance(live, torch.Tensor) and overlaps_itself(live)
