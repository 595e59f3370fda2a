"""Comparing checkpoints: what differs, where first and by how much; and nothing that does not."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from milepost.comparing import bytes_to_read, compare
from milepost.errors import CorruptCheckpointError
from milepost.records import Checkpoint, Snapshot, TensorBytes
from tests.storage.samples import save as save_in
from tests.storage.samples import tensor

STATE: dict[str, Any] = {
    "rng": {"python": {"$tuple": [3, {"$tuple": [1, 2, 3]}, None]}, "torch": {"$tensor": "rng.torch"}},
    "optimizer": {"param_groups": [{"lr": 0.1}], "state": {"w": {"exp_avg": {"$tensor": "optimizer.w"}}}},
    "data": {"state": {"epoch": 0, "position": 8}, "generator": None},
    "counters": {"tokens": 5, "seen": [1, 2], "best": {"$float": "inf"}},
}


def save(folder: Path, step: int, **fields: Any) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    return save_in(folder, step, **fields)


def floats(*values: float) -> TensorBytes:
    return tensor("F32", (len(values),), struct.pack(f"<{len(values)}f", *values))


def snapshot(**changes: Any) -> Snapshot:
    weights = {"w": floats(1, 2, 3, 4), "v": floats(0, 0)}
    tensors = {"optimizer.w": floats(1, 1, 1, 1), "rng.torch": tensor("U8", (4,), b"seed")}
    given = {"weights": weights, "ties": {"head": "w"}, "state": STATE, "tensors": tensors}
    for key, value in changes.items():
        given[key] = {**given[key], **value}
    return Snapshot(**given)


def pair(folder: Path, **changes: Any) -> tuple[Path, Path]:
    one = save(folder / "one", 1, state=snapshot())
    other = save(folder / "other", 2, state=snapshot(**changes))
    return one.path, other.path


def test_equal_ones_are_equal_whatever_else_their_manifests_say(tmp_path):
    one = save(tmp_path / "one", 1, state=snapshot(), metrics={"loss": 1.0})
    other = save(tmp_path / "other", 7, state=snapshot(), max_shard_size=16, reasons=("x",))
    found = compare(one.path, other.path)
    assert found.equal
    assert found.compared == {"weights": 2, "training state": 2}


def test_a_tensor_says_where_and_by_how_much(tmp_path):
    found = compare(*pair(tmp_path, weights={"w": floats(1, 2, 6, 8)}))
    (each,) = found.tensors
    assert (each.part, each.name, each.fault, each.changed, each.items) == ("weights", "w", None, 2, 4)
    assert (each.index, each.values, each.largest, each.share) == ((2,), (3.0, 6.0), 4.0, 0.5)
    assert each.norms == (math.sqrt(30), math.sqrt(1 + 4 + 36 + 64))
    assert each.distance == 5.0
    assert each.relative == 5.0 / math.sqrt(30)
    assert not found.equal and not found.values and not found.generators


@pytest.mark.parametrize(
    ("values", "changed", "largest"),
    [
        ((1, 2, 3, math.nan), 1, math.nan),
        ((math.inf, 2, 3, 4), 1, math.inf),
        ((1, 2, 3, 4.5), 1, 0.5),
    ],
)
def test_what_is_no_number_is_told_as_such(tmp_path, values, changed, largest):
    (each,) = compare(*pair(tmp_path, weights={"w": floats(*values)})).tensors
    assert each.changed == changed
    assert each.largest == largest or (each.largest is not None and math.isnan(each.largest) and math.isnan(largest))


def test_equal_nans_are_equal_and_a_zeros_sign_is_a_difference_of_nothing(tmp_path):
    weird = floats(math.nan, math.inf, -math.inf, 0)
    one = save(tmp_path / "a", 1, state=snapshot(weights={"w": weird}))
    same = save(tmp_path / "b", 1, state=snapshot(weights={"w": weird}))
    other = save(tmp_path / "c", 1, state=snapshot(weights={"w": floats(math.nan, math.inf, -math.inf, -0.0)}))
    assert compare(one.path, same.path).equal
    (each,) = compare(one.path, other.path).tensors
    assert (each.changed, each.largest, each.index) == (1, 0.0, (3,))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"weights": {"new": floats(1)}}, "only in the second"),
        ({"weights": {"w": floats(1, 2)}}, "shape [4] and [2]"),
        ({"weights": {"w": tensor("BF16", (4,), struct.pack("<4H", 0x3F80, 0x4000, 0x4040, 0x4080))}}, "F32 and BF16"),
    ],
)
def test_tensors_that_cannot_be_the_same_say_why(tmp_path, changes, fault):
    paths = pair(tmp_path, **changes)
    (each,) = compare(*paths).tensors
    assert each.fault == fault
    assert each.changed == 0
    (back,) = compare(*paths[::-1]).tensors
    assert back.fault is not None


def test_values_are_found_at_their_place(tmp_path):
    changes = {
        "optimizer": {**STATE["optimizer"], "param_groups": [{"lr": 0.05}]},
        "data": {"state": {"epoch": 1, "position": 8}, "generator": None},
        "counters": {"tokens": 5.0, "seen": [1, 2, 3], "best": {"$float": "nan"}, "more": None},
        "extra": {},
    }
    found = compare(*pair(tmp_path, state=changes, ties={"head": "v"}))
    assert [(each.path, each.values) for each in found.values] == [
        ("ties.head", ("w", "v")),
        ("optimizer.param_groups.0.lr", (0.1, 0.05)),
        ("data.epoch", (0, 1)),
        ("counters.tokens", (5, 5.0)),
        ("counters.seen", ([1, 2], [1, 2, 3])),
        ("counters.best", ("inf", "nan")),
        ("counters.more", (None, None)),
        ("extra", (None, "only in the second")),
    ]


def test_generators_are_told_apart_from_the_rest(tmp_path):
    python = {"$tuple": [3, {"$tuple": [1, 2, 4]}, None]}
    found = compare(
        *pair(
            tmp_path,
            state={"rng": {**STATE["rng"], "python": python}},
            tensors={"rng.torch": tensor("U8", (4,), b"Seed")},
        )
    )
    assert not found.equal and not found.values and not found.tensors
    assert found.generators == ["rng.python.1.2", "rng.torch"]


def test_weights_alone_may_be_compared(tmp_path):
    paths = pair(tmp_path, state={"counters": {}}, tensors={"optimizer.w": floats(0, 0, 0, 0)})
    assert not compare(*paths).equal
    assert compare(*paths, weights_only=True).equal
    read: list[int] = []
    compare(*paths, on_bytes=read.append)
    assert sum(read) == bytes_to_read(*paths) > bytes_to_read(*paths, weights_only=True)


def test_a_flipped_bit_is_an_error_and_no_difference(tmp_path):
    paths = pair(tmp_path)
    data = bytearray((paths[1] / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (paths[1] / "model.safetensors").write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="differs from its digest"):
        compare(*paths)
