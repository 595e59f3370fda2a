"""How large a state is: nothing is copied, and no ``state_dict()`` is called, since that may change an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from milepost.snapshot.stateful import Entries, Kind


def state_sizes(entries: Entries) -> tuple[int, int]:
    """Bytes of the model's weights, and of the tensors of other modules and of optimizers.

    What other objects hold is not known before they are asked; it is small beside these.
    """
    weights = others = 0
    for name, module in entries.of(Kind.MODULE).items():
        size = _bytes(_stored(module))
        weights, others = (weights + size, others) if name == entries.model else (weights, others + size)
    for optimizer in entries.of(Kind.OPTIMIZER).values():
        others += _bytes(_tensors(dict(optimizer.state)))
    return weights, others


def _stored(module: nn.Module) -> Iterator[torch.Tensor]:
    for part in module.modules():
        yield from (value for value in part._parameters.values() if value is not None)
        passing = part._non_persistent_buffers_set
        yield from (value for name, value in part._buffers.items() if value is not None and name not in passing)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _bytes(tensors: Iterator[torch.Tensor]) -> int:
    # A tensor that has several names is stored once.
    sizes = {id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors if not is_lazy(tensor)}
    return sum(sizes.values())
