"""The numbers that stored bytes stand for, without torch: for looking at tensors, not for computing with them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milepost.storage.tensor_files import TensorPlace

_PLAIN = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
# Bits of exponent and mantissa; what the exponent is counted from; whether there are infinities; whether 0x80 is NaN.
_EIGHT_BITS = {
    "F8_E4M3": (4, 3, 7, False, False),
    "F8_E5M2": (5, 2, 15, True, False),
    "F8_E4M3FNUZ": (4, 3, 8, False, True),
    "F8_E5M2FNUZ": (5, 2, 16, False, True),
}


def numbers_of(place: TensorPlace, data: memoryview) -> NDArray[Any] | None:
    """The numbers of whole items of a tensor, flat, as float64 or complex128; None for a dtype not known here."""
    # Making a signalling NaN wider is what IEEE 754 calls invalid; here it is a NaN like any other.
    with np.errstate(invalid="ignore"):
        found = _decoded(place.dtype, data)
    if place.logical is None or found is None:
        return found
    if place.logical in ("complex128", "complex32"):
        return found.view(np.complex128)
    return None


def bits_of(size: int, data: memoryview) -> NDArray[Any]:
    """One unsigned integer for each item of so many bytes, or a row of them: equal only where all bits are."""
    width = next(width for width in (8, 4, 2, 1) if size % width == 0)
    found = np.frombuffer(data, f"<u{width}")
    return found if size == width else found.reshape(-1, size // width)


def _decoded(dtype: str, data: memoryview) -> NDArray[Any] | None:
    if dtype in _PLAIN:
        found = np.frombuffer(data, _PLAIN[dtype])
        return found.astype(np.complex128 if dtype == "C64" else np.float64)
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "F8_E8M0" or dtype in _EIGHT_BITS:
        return _table(dtype)[np.frombuffer(data, np.uint8)]
    return None


@cache
def _table(dtype: str) -> NDArray[np.float64]:
    codes = np.arange(256)
    if dtype == "F8_E8M0":
        return np.where(codes == 255, np.nan, 2.0 ** (codes - 127.0))
    exponent_bits, mantissa_bits, bias, infinities, unsigned_zero = _EIGHT_BITS[dtype]
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    normal = 2.0 ** (exponent - float(bias)) * (1.0 + fraction)
    values = sign * np.where(exponent == 0, 2.0 ** (1.0 - bias) * fraction, normal)
    if unsigned_zero:
        return np.where(codes == 0x80, np.nan, values)
    highest = exponent == (1 << exponent_bits) - 1
    if infinities:
        return np.where(highest, np.where(mantissa == 0, sign * np.inf, np.nan), values)
    return np.where(codes & 0x7F == 0x7F, np.nan, values)
