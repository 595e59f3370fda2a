"""Nested values to JSON and tensors and back: equal in value, type, dtype and shape; nothing pickled."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import CorruptCheckpointError, UnsupportedStateError
from milepost.records import TensorBytes
from milepost.snapshot.flatten import Flattener, Unflattener
from milepost.snapshot.live import LiveTensor, own_bytes
from milepost.snapshot.tensors import to_bytes, to_tensor

# torch warns of these when a tensor of such a dtype is made, which is what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]


def there_and_back(value: Any) -> Any:
    flattener = Flattener()
    tree = json.loads(json.dumps(flattener.flatten(value, "x", "state"), allow_nan=False, ensure_ascii=False).encode())
    return Unflattener(own_bytes(flattener.tensors)).unflatten(tree)


def same(first: Any, second: Any) -> bool:
    """Equal in type and value, bit for bit, however deep."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return (first.dtype, first.shape, first.requires_grad) == (
            second.dtype,
            second.shape,
            second.requires_grad,
        ) and (raw(first) == raw(second))
    if isinstance(first, np.ndarray | np.generic):
        return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    if isinstance(first, dict):
        return len(first) == len(second) and all(
            same(*keys) and same(first[keys[0]], second[keys[1]]) for keys in zip(first, second, strict=True)
        )
    if isinstance(first, list | tuple | deque):
        return (
            len(first) == len(second)
            and getattr(first, "maxlen", None) == getattr(second, "maxlen", None)
            and all(same(*items) for items in zip(first, second, strict=True))
        )
    if isinstance(first, float):
        return first.hex() == second.hex()
    if isinstance(first, complex):
        return repr(first) == repr(second)
    return bool(first == second)


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(to_bytes(tensor, "t").data)


VALUES: dict[str, Any] = {
    "none": None,
    "booleans": [True, False],
    "whole numbers": [0, -1, 2**200, -(2**63)],
    "numbers": [0.1, -0.0, 1e308, 5e-324, math.nan, math.inf, -math.inf],
    "texts as keys that UTF-8 has not": {"\ud800": torch.ones(1).numpy(), "a": [{"\udfff": 1}]},
    "texts": ["", "ünïcödé 中 🙂", 'quotes " and \\', "\x00\n", "\ud800 alone", "$tuple"],
    "bytes": [b"", b"\x00\xff"],
    "complex": [1 + 2j, complex(math.nan, -0.0), complex(math.inf, 1)],
    "tuples": ((), (1,), (1, (2.0, "three")), [(4,)]),
    "whole-number keys": {0: "a", -1: {"b": 2}, 10**30: None},
    "keys of all kinds": {None: 1, True: 2, 1.5: 3, (1, "a"): 4, b"b": 5, 2j: 6, frozenset({1}): 7},
    "keys that look like tags": {"$tuple": [1], "plain": 2},
    "one key that looks like a tag": {"$float": "nan"},
    "order of keys": {"b": 1, "a": 2},
    "ordered dict": OrderedDict([("b", 1), ("a", OrderedDict())]),
    "counters": [Counter("aab"), Counter({(1, 2): -1})],
    "deques": [deque([1, 2]), deque([(3,)], maxlen=5)],
    "sets": [set(), {1, "a"}, frozenset({2.5})],
    "empty": [[], {}, "", ()],
    "torch values": [torch.Size([2, 3]), torch.float8_e4m3fn, torch.device("cpu"), torch.device("cuda", 1)],
    "numpy scalars": [
        np.float32(0.1),
        np.int64(-5),
        np.bool_(True),
        np.float64("nan"),
        np.str_("é"),
        np.complex64(1j),
        np.str_(""),
        np.bytes_(b""),
        np.void(b"ab"),
    ],
    "numpy arrays": [
        np.arange(6, dtype=np.uint32).reshape(2, 3),
        np.array(2.5),
        np.zeros((0, 3), np.float16),
        np.arange(6).reshape(2, 3).T,
        np.array(["a", "bc"]),
        np.array(["2024-01-01"], "datetime64[D]"),
        np.arange(3, dtype=">i4"),
    ],
}


@pytest.mark.parametrize("name", VALUES)
def test_case_25_a_value_comes_back_as_it_was(name):
    assert same(there_and_back(VALUES[name]), VALUES[name])


def numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of any dtype with bits of all kinds."""
    size = torch.empty((), dtype=dtype).element_size()
    count = math.prod(shape)
    if dtype is torch.bool:
        return (torch.arange(count) % 2 == 0).reshape(shape)
    data = (torch.arange(count * size) * 37 % 251).to(torch.uint8)
    return data.view(dtype).reshape(shape)


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, torch.float4_e2m1fn_x2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)], ids=str)
def test_case_25_a_tensor_of_any_dtype_and_shape_comes_back(dtype, shape):
    tensor = numbers(dtype, shape)
    back = there_and_back({"t": tensor})["t"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert raw(back) == raw(tensor)


def test_every_dtype_of_this_torch_is_stored_or_refused_by_its_place():
    known = {getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
    for dtype in known - set(DTYPES):
        try:
            tensor = torch.empty(2, dtype=dtype)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        try:
            back = there_and_back([tensor])[0]
        except UnsupportedStateError as error:
            assert error.path == "state[0]"
        else:
            assert back.dtype == dtype and raw(back) == raw(tensor)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "strided": lambda: torch.arange(12.0)[::3],
    "expanded": lambda: torch.tensor([1.5]).expand(4, 3),
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "offset": lambda: torch.arange(10.0)[3:7],
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j]).conj().imag,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_case_25_a_tensor_of_any_layout_comes_back_equal(name):
    tensor = LAYOUTS[name]()
    assert torch.equal(there_and_back([tensor])[0], tensor)


def test_the_same_tensor_twice_is_stored_once_and_is_one_again():
    tensor, other = torch.arange(3.0), torch.arange(3.0)
    flattener = Flattener()
    tree = flattener.flatten({"a": tensor, "b": [tensor, tensor[:]], "c": other, "part": tensor[1:]}, "x", "state")
    assert len(flattener.tensors) == 3
    back = Unflattener(own_bytes(flattener.tensors)).unflatten(tree)
    assert back["a"] is back["b"][0] is back["b"][1]
    assert back["c"] is not back["a"]
    assert torch.equal(back["part"], tensor[1:])


def test_one_memory_under_several_kinds_of_tensor_is_one_again():
    parameter = torch.nn.Parameter(torch.ones(2))
    back = there_and_back({"parameter": parameter, "plain": parameter.detach(), "twice": parameter})
    assert back["parameter"] is back["twice"] and back["parameter"].requires_grad and not back["plain"].requires_grad
    back["plain"].fill_(7)
    assert back["parameter"].tolist() == [7, 7]


def test_parameters_and_gradients_wanted_come_back():
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    wanted = torch.ones(2, requires_grad=True)
    back = there_and_back([parameter, wanted])
    assert type(back[0]) is torch.nn.Parameter and not back[0].requires_grad
    assert type(back[1]) is torch.Tensor and back[1].requires_grad


class Colour(Enum):
    RED = 1


class Mine(dict):  # type: ignore[type-arg]
    pass


class Point(tuple):
    pass


REFUSED: dict[str, tuple[Any, str]] = {
    "function": ({"a": [1, {"b": len}]}, "state['a'][1]['b']"),
    "object": ([object()], "state[0]"),
    "enum": ((1, Colour.RED), "state[1]"),
    "own dict": ({"a": Mine()}, "state['a']"),
    "default dict": ([defaultdict(int)], "state[0]"),
    "own tuple": ([Point((1, 2))], "state[0]"),
    "meta tensor": ({1: torch.empty(2, device="meta")}, "state[1]"),
    "sparse tensor": ([torch.eye(2).to_sparse()], "state[0]"),
    "tensor without memory": ([torch._efficientzerotensor(3)], "state[0]"),
    "array with fields": ([np.zeros(1, "i4,f8")], "state[0]"),
    "masked array": ([np.ma.zeros(1)], "state[0]"),
    "array of objects": ([np.array([object()])], "state[0]"),
    "tensor as a key": ({torch.ones(1): 1}, "state[tensor([1.])]"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "is quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "is nested"),
    ],
    ids=["quantized", "nested"],
)
def test_a_tensor_that_is_more_than_its_bytes_is_refused(make, fault):
    with pytest.raises(UnsupportedStateError, match=rf"state\[0\] {fault}"):
        Flattener().flatten([make()], "x", "state")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_without_pickle_is_refused_by_its_full_path(name):
    value, path = REFUSED[name]
    with pytest.raises(UnsupportedStateError) as caught:
        Flattener().flatten(value, "x", "state")
    assert caught.value.path == path
    assert path in str(caught.value)


def test_a_value_that_contains_itself_is_refused():
    value: list[Any] = [1]
    value.append({"again": value})
    with pytest.raises(UnsupportedStateError, match="contains itself"):
        Flattener().flatten(value, "x", "state")
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(UnsupportedStateError, match="deep"):
        Flattener().flatten(deep, "x", "state")


def test_a_copy_owns_its_memory():
    tensor = torch.zeros(4)
    flattener = Flattener()
    tree = flattener.flatten([tensor, tensor[::2], np.zeros(1)], "x", "state")
    copies = own_bytes(flattener.tensors)
    tensor.fill_(9)
    assert Unflattener(copies).unflatten(tree)[0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "tree",
    [
        {"$unknown": 1},
        {"$tensor": "absent"},
        {"$tuple": 5},
        {"$dict": [1]},
        {"$dtype": "nn"},
        {"$bytes": 7},
        {"$float": "x"},
        {"$ndarray": "eight", "dtype": "|O", "shape": [1]},
        {"$ndarray": "eight", "dtype": "O,i4", "shape": [1]},
        {"$ndarray": "eight", "dtype": "<f4", "shape": [3]},
        {"$ndarray": "eight", "dtype": "<f4", "shape": [1]},
        {"$ndarray": "eight", "dtype": "<f4", "shape": [-2]},
        {"$numpy": "|O", "bytes": "AQEBAQEBAQE="},
        {"$numpy": "<f8", "bytes": "AQE="},
        {"$counter": 5},
        {"$set": [[1]]},
    ],
    ids=str,
)
def test_case_26_a_tree_that_nobody_wrote_is_refused_and_runs_nothing(tree):
    with pytest.raises(CorruptCheckpointError):
        Unflattener({"eight": TensorBytes("U8", (8,), memoryview(bytearray(b"\x01" * 8)))}).unflatten(tree)


def test_bytes_are_flat_also_of_empty_tensors_and_numbers():
    for tensor in (torch.ones(2, 3), torch.ones(0, 3), torch.tensor(1.0), torch.ones(2, 2).bfloat16().T[::2]):
        for data in (to_bytes(tensor, "t").data, own_bytes({"t": LiveTensor(tensor, "t")})["t"].data):
            assert (data.format, data.ndim, data.nbytes) == ("B", 1, tensor.numel() * tensor.element_size())
            assert data.contiguous


def test_bytes_of_a_dtype_that_is_not_known_or_too_few_are_refused():
    data = memoryview(bytearray(8))
    for stored in (
        TensorBytes("F99", (8,), data),
        TensorBytes("F32", (3,), data),
        TensorBytes("U8", (4, 2), data, "load"),
        TensorBytes("U8", (4, 2), data, "float32"),
    ):
        with pytest.raises(CorruptCheckpointError):
            to_tensor(stored)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers(),
    st.text(alphabet=st.characters(), max_size=5),
)  # fmt: skip
keys = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.tuples(st.integers()), st.just("$x"))
tensors = st.builds(
    lambda dtype, shape: numbers(dtype, tuple(shape)), st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)
)
values = st.recursive(
    st.one_of(scalars, tensors),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
        st.lists(inner, max_size=3).map(deque),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(values)
def test_case_25_any_nested_value_comes_back_as_it_was(value):
    assert same(there_and_back(value), value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_to_tensor_gives_memory_of_its_own(dtype):
    stored = to_bytes(numbers(dtype, (4,)), "t")
    tensor = to_tensor(stored)
    before = raw(tensor)
    stored.data[:] = bytes(len(stored.data))
    assert raw(tensor) == before
