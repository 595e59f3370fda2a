"""When parameters and optimizer state change: only in an optimizer's step, and a callback is called before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from milepost.snapshot.names import unwrap
from milepost.snapshot.stateful import Entries, Kind


class Updates:
    """The optimizers of a state, ``before`` being called at the start of each of their steps.

    That is so under closures, foreach, fused and compiled steps, schedulers' wrappers and steps within the backward
    pass. A step that a GradScaler skips calls nothing, or calls without a step: both do no harm.
    """

    def __init__(self, entries: Entries, before: Callable[[], None]) -> None:
        self._modules = list(entries.of(Kind.MODULE).values())
        self._optimizers = [value for value in entries.of(Kind.OPTIMIZER).values() if _has_hooks(value)]

        # A function of no object: the hooks of a copied optimizer are copied along.
        def hook(*_: Any) -> None:
            before()

        self._handles = [optimizer.register_step_pre_hook(hook) for optimizer in self._optimizers]

    def watches(self, optimizer: Optimizer) -> bool:
        """Whether the callback is called before this optimizer's steps."""
        return any(optimizer is watched for watched in self._optimizers)

    def parameters(self) -> frozenset[int]:
        """The addresses of the storages of these optimizers' parameters."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return frozenset(address for group in groups for address in _storages(group["params"]))

    def memory(self) -> frozenset[int]:
        """The addresses of the storages that change only in these optimizers' steps, as far as they own them.

        Buffers never count, since forward passes change them; nor does what merely lies beside such a tensor.
        """
        owned = set(self.parameters())
        for optimizer in self._optimizers:
            for values in optimizer.state.values():
                if isinstance(values, dict):
                    owned.update(_storages(values.values()))
        for module in self._modules:
            owned.difference_update(_storages(unwrap(module).buffers()))
        return frozenset(owned)

    def remove(self) -> None:
        """Call nobody any more."""
        for handle in self._handles:
            handle.remove()


def _has_hooks(optimizer: Optimizer) -> bool:
    # A subclass that never called Optimizer's constructor, or wraps another optimizer, may have none.
    return bool(getattr(type(optimizer).step, "hooked", False)) and hasattr(optimizer, "_optimizer_step_pre_hooks")


def _storages(values: Any) -> list[int]:
    return [
        value.untyped_storage().data_ptr()
        for value in values
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and value.numel()
    ]
