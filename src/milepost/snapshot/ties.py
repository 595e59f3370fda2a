"""Tensors with several names, such as a head that is the embedding: which of the names is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from milepost.snapshot.names import clean, unwrap
from milepost.snapshot.tensors import storage_key


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
    for names in (names for names in groups.values() if len(names) > 1):
        first = max(names) if dropped else names[0]
        kept = next((name for name in names if not _matches(name, dropped)), first)
        ties.update({name: kept for name in names if name != kept})
    return ties


def dropped_names(model: nn.Module) -> list[str]:
    """The names that a transformers model leaves out of its own checkpoints (``_tied_weights_keys``)."""
    dropped = []
    for prefix, module in unwrap(model).named_modules():
        # In a class they are names or patterns; transformers 5 has a dict of them, and each part of a model its own.
        declared = getattr(module, "_tied_weights_keys", None)
        if isinstance(declared, dict | list | tuple | set):
            dropped += [f"{clean(prefix)}.{name}" if prefix else str(name) for name in declared]
    return dropped


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or re.search(pattern, name) for pattern in patterns)
