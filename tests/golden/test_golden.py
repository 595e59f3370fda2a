"""A checkpoint of format 1.0 is read for ever, by Milepost and by whoever follows the page."""

from __future__ import annotations

import math
import re
import shutil
import struct
from collections import OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from milepost.snapshot.flatten import Unflattener
from milepost.snapshot.tensors import to_tensor
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import STATE_TENSORS, STATE_TREE, WEIGHTS, WEIGHTS_INDEX
from milepost.storage.manifest import encode, read_manifest
from milepost.storage.reader import read_snapshot, read_text
from milepost.storage.verify import verify_checkpoint
from tests.golden.independent_reader import read_checkpoint
from tests.golden.make_v1_0 import STATE, TENSORS, TIES
from tests.golden.make_v1_0 import WEIGHTS as GIVEN
from tests.storage.samples import save

RUN = Path(__file__).parent / "v1.0"
GOLDEN = RUN / "step_3"
PAGE = Path(__file__).parents[2] / "docs" / "format-v1.md"


def test_a_checkpoint_of_format_1_0_is_in_the_catalog_and_whole() -> None:
    (checkpoint,) = read_catalog(RUN).checkpoints
    assert verify_checkpoint(checkpoint.path) == []
    assert (checkpoint.step, checkpoint.serial, checkpoint.epoch, checkpoint.config) == (3, 5, 1, "run.yaml")
    assert (checkpoint.run_id, checkpoint.level, checkpoint.pinned) == ("0123456789abcdef", "full", False)
    assert checkpoint.reasons == ("every 3 steps", "the last step")
    metrics = dict(checkpoint.metrics)
    assert math.isnan(metrics.pop("val_loss")) and metrics == {"loss": 0.5, "best": -math.inf}
    assert checkpoint.size == sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file())


def test_its_manifest_survives_a_rewrite_byte_for_byte() -> None:
    assert encode(read_manifest(GOLDEN)) == (GOLDEN / "milepost.json").read_bytes()


def test_its_contents_are_read() -> None:
    manifest = read_manifest(GOLDEN)
    snapshot = read_snapshot(GOLDEN, manifest)
    assert snapshot.weights == GIVEN and snapshot.tensors == TENSORS
    assert (snapshot.state, snapshot.ties) == (STATE, TIES)
    assert (manifest.seconds, manifest.software["torch"]) == (12.25, "2.13.0")
    assert read_text(GOLDEN, "run.yaml", manifest) == "save_every_n_train_steps: 3\n"


def test_its_weights_load_with_safetensors() -> None:
    read = {name: value for file in GOLDEN.glob("model-*") for name, value in load_file(file).items()}
    assert read["embedding.weight"].tolist() == [[0.0, 1.5, -2.0], [3.0, math.inf, -0.0]]
    assert torch.equal(read["layer.weight"], torch.tensor([[1.0, 2.0], [1.0, -2.0]], dtype=torch.bfloat16))
    assert (read["layer.scale"].item(), read["layer.empty"].shape) == (0.5, (0, 4))


def test_every_kind_of_value_in_its_state_comes_back() -> None:
    snapshot = read_snapshot(GOLDEN, read_manifest(GOLDEN))
    everything = Unflattener(snapshot.tensors).unflatten(snapshot.state["everything"])
    assert everything.pop("array").tolist() == [1, -2, 3]
    number = everything.pop("number")
    assert (number, type(number)) == (7, np.int16)
    z = everything.pop("z")
    assert everything.pop("the same z") is z
    assert (z.dtype, z.tolist(), z.requires_grad) == (torch.complex128, [1 - 1j, 2j], True)
    assert repr(everything.pop("floats")) == "[nan, inf, -inf, -0.0]"
    assert everything == {
        "größe": "数据",
        "nothing": None,
        "list": [1, 2.5, True, 12345678901234567890],
        "text": "\ud800",
        "bytes": b"\0\x01\xff",
        "complex": complex(1.5, math.inf),
        "keys": {1: "one", (1, "a"): None, "$tuple": 2},
        "ordered": OrderedDict(b=1, a=2),
        "sets": [{1}, frozenset({2})],
        "deque": deque([1, 2], 3),
        "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cpu")],
    }
    assert to_tensor(snapshot.tensors["rng.torch"]).tolist() == [0, 127, 255]


def test_a_reader_that_knows_only_the_page_reads_it() -> None:
    manifest, weights, tree, tensors = read_checkpoint(GOLDEN)
    assert (manifest["step"], manifest["metrics"]["val_loss"]) == (3, "NaN")
    assert struct.unpack("<6f", weights["head.weight"]["data"]) == (0.0, 1.5, -2.0, 3.0, math.inf, -0.0)
    assert tree == STATE
    assert {name: bytes(value["data"]) for name, value in tensors.items()} == {
        name: bytes(value.data) for name, value in TENSORS.items()
    }


@pytest.mark.parametrize("max_shard_size", [1, 1 << 30])
def test_a_reader_that_knows_only_the_page_reads_what_is_written_today(tmp_path: Path, max_shard_size: int) -> None:
    path = save(tmp_path, 4, max_shard_size=max_shard_size).path
    manifest, weights, tree, _ = read_checkpoint(path)
    assert manifest["step"] == tree["counters"]["step"] == 4
    assert weights["c.weight"]["data"] == weights["a.weight"]["data"] == b"\4\0\0\0" * 6


@pytest.mark.parametrize(
    "name", ["milepost.json", "run.yaml", "model-00001-of-00002.safetensors", "training_state/state.json"]
)
def test_a_reader_that_knows_only_the_page_notices_damage(tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN, tmp_path / "step_3")
    data = bytearray((tmp_path / "step_3" / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "step_3" / name).write_bytes(data)
    with pytest.raises(ValueError):
        read_checkpoint(tmp_path / "step_3")


def test_the_page_names_every_file_and_field() -> None:
    page = PAGE.read_text()
    fields = set(re.findall(r"^ \"(\w+)\":", (GOLDEN / "milepost.json").read_text(), re.MULTILINE))
    table = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert fields <= table, fields - table
    for name in (
        WEIGHTS_INDEX,
        STATE_TREE,
        f"{STATE_TENSORS}.safetensors",
        f"{WEIGHTS}.safetensors",
        ".trash",
        ".superseded",
    ):
        assert name.removeprefix("training_state/") in page, name
    tags = set(re.findall(r'"(\$\w+)"', repr(STATE).replace("'", '"')))
    assert {tag for tag in tags if f"`{tag}`" not in page and f'"{tag}"' not in page} == set()
