"""Tensors of the live state as things to be stored: described at once, their bytes copied when somebody asks."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch

from milepost.memory import address_of, copy, move
from milepost.records import TensorBytes, TensorSource
from milepost.snapshot.tensors import byte_view, check_storable, is_storable, stored_form, to_bytes


class LiveTensor:
    """A live tensor, as a ``TensorSource``.

    ``deferrable`` says that only an optimizer's step changes it: its memory is among the given. ``address`` is where
    its bytes lie as they are stored, or 0 if they do not: on another device, not contiguous, conjugated.
    """

    __slots__ = (
        "_held",
        "_key",
        "_path",
        "address",
        "deferrable",
        "dtype",
        "logical",
        "nbytes",
        "shape",
        "tensor",
        "version",
    )

    def __init__(
        self, tensor: torch.Tensor, path: str, deferrable: Container[int] = (), key: str | None = None
    ) -> None:
        if not is_storable(tensor):
            check_storable(tensor, path if key is None else f"{path}[{key!r}]")
        self.tensor = tensor
        self._path = path
        self._key = key
        self.nbytes: int = tensor.nbytes
        self.dtype, self.shape, self.logical = stored_form(tensor)
        in_place = tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        self.address: int = tensor.data_ptr() if in_place else 0
        self.deferrable = bool(deferrable) and tensor.untyped_storage().data_ptr() in deferrable
        # Inference tensors have none.
        self.version: int = tensor._version if self.deferrable and not tensor.is_inference() else -1
        self._held: memoryview | None = None

    @property
    def path(self) -> str:
        """Its place in the state, for messages."""
        return self._path if self._key is None else f"{self._path}[{self._key!r}]"

    @property
    def changed(self) -> bool:
        """Whether torch has seen a write to the tensor since it was described."""
        return self.version >= 0 and self.tensor._version != self.version

    def copy_into(self, target: memoryview, start: int) -> None:
        """Copy the bytes from ``start`` on into all of ``target``. Raises UnsupportedStateError if torch cannot."""
        length = target.nbytes
        if self.address:
            move(address_of(target), self.address + start, length)
            return
        if self._held is None and self.tensor.is_contiguous() and not (self.tensor.is_conj() or self.tensor.is_neg()):
            # Of a device's memory no more is brought here at a time than is asked for.
            piece: Any = byte_view(self.tensor)[start : start + length].cpu().numpy()
            copy(target, memoryview(piece))
            return
        if self._held is None:
            self._held = to_bytes(self.tensor, self.path).data
        copy(target, self._held[start : start + length])
        if start + length == self.nbytes:
            self._held = None

    def copy_whole(self, target: memoryview) -> None:
        """Copy all bytes into ``target``, by torch where they are not as they are stored."""
        place = None if self.address else place_in(target, self.tensor)
        if place is None:
            self.copy_into(target, 0)
        else:
            with torch.no_grad():
                place.copy_(self.tensor)


def place_in(target: memoryview, tensor: torch.Tensor) -> torch.Tensor | None:
    """The bytes of ``target`` as a tensor like another one; None where torch cannot make one of them."""
    if tensor.is_complex() or not target.nbytes or address_of(target) % tensor.element_size():
        return None
    return torch.frombuffer(target, dtype=tensor.dtype).view(tensor.shape)


def own_bytes(tensors: Mapping[str, TensorSource]) -> dict[str, TensorBytes]:
    """Copies of the tensors, in memory of their own."""
    return {name: own_copy(tensor) for name, tensor in tensors.items()}


def own_copy(tensor: TensorSource) -> TensorBytes:
    """A tensor's bytes in memory of their own."""
    if isinstance(tensor, TensorBytes):
        return tensor
    data = memoryview(bytearray(tensor.nbytes))
    if tensor.nbytes:
        tensor.copy_into(data, 0)
    return TensorBytes(tensor.dtype, tensor.shape, data, tensor.logical)
