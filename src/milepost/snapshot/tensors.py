"""Tensors to bytes in host memory and back, every dtype exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from milepost.errors import CorruptCheckpointError, UnsupportedStateError
from milepost.records import TensorBytes, TensorSource

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_NUMPY = frozenset({
    torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool,
})  # fmt: skip
_STRIDED = torch.strided
# Complex numbers that safetensors does not know are stored as pairs of real ones.
_PAIRS = {torch.complex128: "F64", torch.complex32: "F16"}


def stored_form(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], str | None]:
    """The dtype, shape and logical dtype under which a tensor is stored."""
    dtype, shape = tensor.dtype, tuple(tensor.shape)
    name = _NAMES.get(dtype)
    if name is not None:
        return name, shape, None
    if dtype in _PAIRS:
        return _PAIRS[dtype], (*shape, 2), _logical(dtype)
    return "U8", (*shape, tensor.element_size()), _logical(dtype)


def to_bytes(tensor: torch.Tensor, path: str) -> TensorBytes:
    """A tensor's bytes in host memory, row-major; they may be the tensor's own memory.

    ``path`` is its place in the state, for the UnsupportedStateError raised for sparse, quantized, meta and
    distributed tensors, and other subclasses.
    """
    check_storable(tensor, path)
    try:
        host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        data = host_view(host)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError) as error:
        raise UnsupportedStateError(
            f"{path} has the dtype {tensor.dtype}, which torch cannot copy ({error})", path=path
        ) from error
    name, shape, logical = stored_form(tensor)
    return TensorBytes(name, shape, data, logical)


def empty_tensor(stored: TensorSource) -> tuple[torch.Tensor, memoryview]:
    """A tensor for a stored one's bytes, which are still to come, and a view of its memory.

    Raises CorruptCheckpointError for a dtype that torch lacks, or another number of bytes.
    """
    shape, dtype = shape_and_dtype(stored)
    # Said, since the default device may be another.
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    if stored.nbytes != tensor.numel() * tensor.element_size():
        raise CorruptCheckpointError(f"{stored.nbytes} bytes do not make a tensor of {dtype} and shape {list(shape)}")
    return tensor, host_view(tensor)


def to_tensor(stored: TensorSource) -> torch.Tensor:
    """A tensor in memory of its own from its bytes. Raises what ``empty_tensor`` does."""
    tensor, view = empty_tensor(stored)
    if view.nbytes:
        stored.copy_into(view, 0)
    return tensor


def shape_and_dtype(stored: TensorSource) -> tuple[tuple[int, ...], torch.dtype]:
    """What ``to_tensor`` would give, without making it. Raises CorruptCheckpointError for a dtype that torch lacks."""
    if stored.logical is not None:
        return stored.shape[:-1], _logical_dtype(stored)
    if stored.dtype not in _DTYPES:
        raise CorruptCheckpointError(f"a tensor has the dtype {stored.dtype!r}, which this torch does not know")
    return stored.shape, _DTYPES[stored.dtype]


def is_storable(tensor: torch.Tensor) -> bool:
    """Whether a tensor's bytes are all of it: plain, dense and with memory."""
    return (
        (type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter)
        and tensor.layout is _STRIDED
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta or tensor._is_zerotensor())
    )


def check_storable(tensor: torch.Tensor, path: str) -> None:
    """Raise UnsupportedStateError for a tensor whose bytes are not all of it."""
    if is_storable(tensor):
        return
    fault = None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        fault = f"is a {type(tensor).__module__}.{type(tensor).__qualname__}"
    elif tensor.layout is not torch.strided:
        fault = f"has the layout {tensor.layout}"
    elif tensor.is_nested:
        fault = "is nested"
    elif tensor.is_quantized:
        fault = "is quantized"
    elif tensor.is_meta:
        fault = "is on the meta device and has no values"
    elif tensor._is_zerotensor():
        fault = "has no memory"
    if fault is not None:
        raise UnsupportedStateError(
            f"{path} {fault}; only plain dense tensors can be stored. Store its parts as plain tensors instead.",
            path=path,
        )


def storage_key(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """Equal for two tensors that are the same view of the same memory; None for an empty one."""
    if tensor.numel() == 0:
        return None
    place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return place if tensor.is_cpu else (*place, tensor.device)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are equal in shape, dtype and every bit, NaNs too."""
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    return to_bytes(first, "").data == to_bytes(second, "").data


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether some of its elements are the same memory, as an expanded tensor's are: it cannot be written in place."""
    return tensor.numel() > 1 and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def host_view(tensor: torch.Tensor) -> memoryview:
    """A contiguous tensor's bytes in host memory, as a flat view."""
    if tensor.numel() == 0:
        return memoryview(bytearray())
    array: Any
    if tensor.dtype in _NUMPY:
        # The same as below, and several times faster for many small tensors.
        array = tensor.numpy()
        return memoryview(array.reshape(-1).view(np.uint8))
    array = byte_view(tensor).numpy()
    return memoryview(array)


def byte_view(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as a flat one of bytes, on its device; the same memory, but for one element of any stride."""
    tensor = tensor.detach()
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = real.reshape(-1)
    if flat.numel() and flat.stride(0) != 1:
        # One element may have any stride and is still called contiguous.
        flat = torch.empty_like(flat, memory_format=torch.contiguous_format).copy_(flat)
    return flat.view(torch.uint8)


def _logical(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _logical_dtype(stored: TensorSource) -> torch.dtype:
    dtype = getattr(torch, stored.logical or "", None)
    if not isinstance(dtype, torch.dtype) or not stored.shape:
        raise CorruptCheckpointError(f"a tensor has the dtype {stored.logical!r}, which this torch does not know")
    size = math.prod(stored.shape[:-1]) * dtype.itemsize
    if size != stored.nbytes:
        raise CorruptCheckpointError(f"{stored.nbytes} bytes do not make {stored.logical} of {list(stored.shape[:-1])}")
    return dtype
