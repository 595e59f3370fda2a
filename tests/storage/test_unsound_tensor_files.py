"""Safetensors headers that lie: each is refused as damage, and none makes us read or allocate what is not there."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import CorruptCheckpointError
from milepost.storage.tensor_files import read_header
from tests.storage.samples import ITEM_SIZES, tensors_in


def _with_header(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def _entry(start: Any = 0, end: Any = 4, dtype: Any = "F32", shape: Any = (1,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [start, end]}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


UNSOUND: dict[str, bytes] = {
    "nothing": b"",
    "shorter than a length": b"\0" * 7,
    "a header longer than the file": _with_header(b"{}", length=3),
    "a header of 2**64-1 bytes": _with_header(b"{}", length=2**64 - 1),
    "a header of 2**63 bytes": _with_header(b"{}", length=2**63),
    "an empty header": _with_header(b""),
    "not JSON": _with_header(b"{'a': 1}"),
    "not UTF-8": _with_header(b'{"\xff": 1}'),
    "UTF-16": _with_header("{}".encode("utf-16")),
    "a pickle": b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "a list": _with_header(b"[]"),
    "a number": _with_header(b"3"),
    "null": _with_header(b"null"),
    "deeply nested": _with_header(b"[" * 100_000),
    "metadata that are no object": _with_header(_json({"__metadata__": []})),
    "metadata that are not text": _with_header(_json({"__metadata__": {"a": 1}})),
    "logical dtypes that are not JSON": _with_header(_json({"__metadata__": {"milepost_logical_dtypes": "x"}})),
    "logical dtypes that are no object": _with_header(
        _json({"__metadata__": {"milepost_logical_dtypes": "[]"}, "a": _entry()}), b"1234"
    ),
    "a logical dtype that is no name": _with_header(
        _json({"__metadata__": {"milepost_logical_dtypes": '{"a": 3}'}, "a": _entry()}), b"1234"
    ),
    "an entry that is no object": _with_header(_json({"a": 3})),
    "an entry without fields": _with_header(_json({"a": {}})),
    "an unknown dtype": _with_header(_json({"a": _entry(dtype="F31")}), b"1234"),
    "a dtype that is a list": _with_header(_json({"a": _entry(dtype=[])}), b"1234"),
    "a shape that is a number": _with_header(_json({"a": _entry(shape=1)}), b"1234"),
    "a shape of floats": _with_header(_json({"a": _entry(shape=(1.0,))}), b"1234"),
    "a shape of booleans": _with_header(_json({"a": _entry(shape=(True,))}), b"1234"),
    "a negative shape": _with_header(_json({"a": _entry(shape=(-1, -1))}), b"1234"),
    "a shape of text": _with_header(_json({"a": _entry(shape=("1",))}), b"1234"),
    "an endless shape": _with_header(_json({"a": _entry(shape=(2,) * 5000)}), b"1234"),
    "an overflowing shape": _with_header(_json({"a": _entry(shape=(2**62, 2**62))}), b"1234"),
    "numbers of many digits": _with_header(_json({"a": _entry(shape=(10**4000, 0))}), b"1234"),
    "more digits than Python reads": _with_header(b'{"a": ' + b"9" * 5000 + b"}"),
    "offsets that are floats": _with_header(_json({"a": _entry(0.0, 4.0)}), b"1234"),
    "offsets that are text": _with_header(_json({"a": _entry("0", "4")}), b"1234"),
    "negative offsets": _with_header(_json({"a": _entry(-4, 0)}), b"1234"),
    "reversed offsets": _with_header(_json({"a": _entry(4, 0)}), b"1234"),
    "one offset": _with_header(_json({"a": {**_entry(), "data_offsets": [4]}}), b"1234"),
    "three offsets": _with_header(_json({"a": {**_entry(), "data_offsets": [0, 4, 4]}}), b"1234"),
    "offsets beyond the file": _with_header(_json({"a": _entry(0, 2**60, shape=(2**58,))}), b"1234"),
    "a shape that lies": _with_header(_json({"a": _entry(shape=(2,))}), b"1234"),
    "overlapping tensors": _with_header(_json({"a": _entry(0, 4), "b": _entry(2, 6)}), b"123456"),
    "the same bytes twice": _with_header(_json({"a": _entry(0, 4), "b": _entry(0, 4)}), b"1234"),
    "a hole": _with_header(_json({"a": _entry(0, 4), "b": _entry(8, 12)}), b"1" * 12),
    "a hole at the start": _with_header(_json({"a": _entry(4, 8)}), b"1" * 8),
    "bytes left over": _with_header(_json({"a": _entry()}), b"12345"),
    "bytes missing": _with_header(_json({"a": _entry()}), b"123"),
    "a name twice": _with_header(b'{"a": %s, "a": %s}' % (_json(_entry(0, 0, shape=(0,))), _json(_entry())), b"1234"),
    "a field twice": _with_header(
        b'{"a": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"1234"
    ),
}


@pytest.mark.parametrize("data", UNSOUND.values(), ids=UNSOUND)
def test_case_26_an_unsound_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError) as caught:
        list(tensors_in(path, memoryview(data)))
    assert caught.value.problems and caught.value.problems[0].startswith("x.safetensors: ")
    with pytest.raises(CorruptCheckpointError):
        read_header(path)


GOOD = _with_header(
    _json({"__metadata__": {"format": "pt"}, "a": _entry(0, 8, "F32", (2,)), "b": _entry(8, 9, "U8", (1,))}),
    b"123456789",
)


def test_every_flipped_bit_of_a_header_is_refused_or_harmless() -> None:
    length = 8 + struct.unpack("<Q", GOOD[:8])[0]
    for at in range(length * 8):
        data = bytearray(GOOD)
        data[at // 8] ^= 1 << at % 8
        _refused_or_inside(bytes(data))


@given(header=st.binary(max_size=300) | st.text(max_size=100).map(str.encode), data=st.binary(max_size=20))
@settings(deadline=None, max_examples=150)
def test_case_26_random_bytes_are_refused_or_harmless(header: bytes, data: bytes) -> None:
    _refused_or_inside(header)
    _refused_or_inside(_with_header(header, data))


NUMBERS = (
    st.integers(-2, 10)
    | st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, 10**30])
    | st.floats()
    | st.none()
    | st.booleans()
)


@given(
    entries=st.dictionaries(
        st.sampled_from(["a", "b", "c", "__metadata__"]),
        st.fixed_dictionaries(
            {"dtype": st.sampled_from(["F32", "U8", "", None]), "shape": st.lists(NUMBERS, max_size=3) | NUMBERS},
            optional={"data_offsets": st.lists(NUMBERS, max_size=3), "more": NUMBERS},
        )
        | st.builds(
            _entry, st.integers(0, 8), st.integers(0, 12), st.sampled_from(["F32", "U8"]), st.tuples(st.integers(0, 3))
        ),
        max_size=3,
    ),
    data=st.binary(max_size=12),
)
@settings(deadline=None, max_examples=300)
def test_case_26_lying_headers_are_refused_or_harmless(entries: dict[str, Any], data: bytes) -> None:
    _refused_or_inside(_with_header(_json(entries), data))


def _refused_or_inside(data: bytes) -> None:
    try:
        found = list(tensors_in(Path("x"), memoryview(data)))
    except CorruptCheckpointError:
        return
    assert sum(value.nbytes for _, value in found) <= len(data)
    assert all(value.nbytes == math.prod(value.shape) * ITEM_SIZES[value.dtype] for _, value in found)
