"""Numbers decoded without torch are those that torch decodes, for every dtype and all special values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from milepost.snapshot.tensors import _DTYPES, to_bytes
from milepost.storage.tensor_files import TensorPlace
from milepost.stored_numbers import bits_of, numbers_of

SIXTEEN = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
VALUES = {
    torch.bfloat16: SIXTEEN.view(torch.bfloat16),
    torch.float16: SIXTEEN.view(torch.float16),
    torch.float32: torch.tensor([0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e-45]),
    torch.complex64: torch.tensor([1 + 2j, complex("nan"), complex("inf")], dtype=torch.complex64),
    torch.complex128: torch.tensor([1 + 2j, complex("inf"), complex(0, float("inf"))], dtype=torch.complex128),
    torch.bool: torch.tensor([True, False]),
}


def values(dtype: torch.dtype) -> torch.Tensor:
    if dtype in VALUES:
        return VALUES[dtype]
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    return torch.tensor([0, 1, 2, 100], dtype=torch.int64).to(dtype)


@pytest.mark.parametrize("dtype", [*_DTYPES.values(), torch.complex128], ids=str)
def test_they_are_those_of_torch(dtype):
    tensor = values(dtype)
    stored = to_bytes(tensor, "")
    place = TensorPlace("x", stored.dtype, stored.shape, 0, stored.nbytes, stored.logical)
    found = numbers_of(place, stored.data)
    expected = tensor.to(torch.complex128 if dtype.is_complex else torch.float64).numpy()
    assert found is not None
    np.testing.assert_array_equal(found, expected)


def test_of_an_unknown_dtype_there_are_none():
    assert numbers_of(TensorPlace("x", "U8", (4, 1), 0, 4, "int4"), memoryview(bytes(4))) is None
    assert numbers_of(TensorPlace("x", "F4", (4,), 0, 4, None), memoryview(bytes(4))) is None


@pytest.mark.parametrize(("size", "items"), [(1, 48), (2, 24), (3, 16), (4, 12), (8, 6), (12, 4), (16, 3)])
def test_items_of_any_size_are_told_apart_by_their_bits(size, items):
    mine, yours = bytes(range(48)), bytearray(range(48))
    yours[-1] ^= 1
    unequal = bits_of(size, memoryview(mine)) != bits_of(size, memoryview(yours))
    rows = unequal.reshape(items, -1).any(axis=1)
    assert rows.tolist() == [False] * (items - 1) + [True]
