"""Dicts and lists of plain values, restored in place: who holds a part of them sees the saved values too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from milepost.snapshot.tensors import overlaps_itself, same_bits, storage_key


class InPlace:
    """Loads saved values into live ones.

    What cannot be changed in place is replaced, and so is what was changed to another value already: two names of
    one object here may be those of two values there.
    """

    def __init__(self) -> None:
        # Live containers by id and live tensors by storage_key, each with its new value and itself, to keep it alive.
        self._changed: dict[object, tuple[Any, Any]] = {}
        self._written: dict[object, list[tuple[int, int]]] = {}

    def load(self, live: Any, saved: Any) -> None:
        """Make a live dict or list equal to the saved one, nested ones and tensors in place where they are alike."""
        self._changed[id(live)] = (saved, live)
        if isinstance(live, dict):
            merged = {key: self._merged(live.get(key), value) for key, value in saved.items()}
            live.clear()
            live.update(merged)
        else:
            live[:] = [self._merged(live[at] if at < len(live) else None, value) for at, value in enumerate(saved)]

    def _merged(self, live: Any, saved: Any) -> Any:
        if type(live) is not type(saved) or live is saved:
            return saved
        if isinstance(live, dict | list):
            if id(live) in self._changed:
                return live if same(self._changed[id(live)][0], saved) else saved
            self.load(live, saved)
            return live
        if isinstance(live, torch.Tensor):
            return live if self._write_tensor(live, saved) else saved.to(live.device)
        return live if isinstance(live, np.ndarray) and self._write_array(live, saved) else saved

    def _write_tensor(self, live: torch.Tensor, saved: torch.Tensor) -> bool:
        alike = (live.shape, live.dtype, live.requires_grad) == (saved.shape, saved.dtype, saved.requires_grad)
        if not alike or live.layout is not saved.layout or overlaps_itself(live) or live.is_inference():
            return False
        key = storage_key(live)
        if key is None:
            return True
        if key in self._changed:
            return self._changed[key][0] is saved
        last = sum((length - 1) * stride for length, stride in zip(live.shape, live.stride(), strict=True))
        first = int(live.storage_offset()) * live.element_size()
        place = (live.device, live.untyped_storage().data_ptr())
        if not self._claim(place, first, first + (last + 1) * live.element_size()):
            return False
        self._changed[key] = (saved, live)
        with torch.no_grad():
            live.copy_(saved)
        return True

    def _write_array(self, live: np.ndarray[Any, Any], saved: np.ndarray[Any, Any]) -> bool:
        alike = (live.shape, live.dtype) == (saved.shape, saved.dtype)
        if not alike or not live.flags.writeable or not live.flags.c_contiguous:
            return False
        owner: Any = live
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if live.nbytes and not self._claim(id(owner), live.ctypes.data, live.ctypes.data + live.nbytes):
            return False
        live[...] = saved
        return True

    def _claim(self, place: object, first: int, end: int) -> bool:
        """Whether nothing was written to this memory yet; from now on something was."""
        written = self._written.setdefault(place, [])
        if any(first < stop and start < end for start, stop in written):
            return False
        written.append((first, end))
        return True


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal in type and value, however deep, NaNs too."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return same_bits(first, second)
    if isinstance(first, np.ndarray):
        return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second) or repr(first) == repr(second)
