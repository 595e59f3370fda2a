"""Made ``v1.0/``, once, when format 1.0 was fixed. It is kept to show what is in it; do not run it over the old files.

Readers must go on reading ``v1.0/`` for ever: a change that breaks its test breaks people's checkpoints.
"""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path

from milepost.records import Snapshot, TensorBytes
from milepost.storage.backend import LocalBackend
from milepost.storage.commit import Draft, commit
from milepost.storage.layout import RunFolder


def tensor(dtype: str, shape: tuple[int, ...], data: bytes, logical: str | None = None) -> TensorBytes:
    """A tensor from its bytes."""
    return TensorBytes(dtype, shape, memoryview(data), logical)


WEIGHTS = {
    "embedding.weight": tensor("F32", (2, 3), struct.pack("<6f", 0.0, 1.5, -2.0, 3.0, math.inf, -0.0)),
    "layer.weight": tensor("BF16", (2, 2), bytes.fromhex("803f0040803f00c0")),
    "layer.scale": tensor("F16", (), struct.pack("<e", 0.5)),
    "layer.empty": tensor("F32", (0, 4), b""),
}
TIES = {"head.weight": "embedding.weight"}
TENSORS = {
    "optimizer.state.layer.weight.exp_avg": tensor("F32", (2, 2), struct.pack("<4f", 1, 2, 3, 4)),
    "optimizer.state.layer.weight.step": tensor("F32", (), struct.pack("<f", 3.0)),
    "everything.z": tensor("F64", (2, 2), struct.pack("<4d", 1, -1, 0, 2), "complex128"),
    "everything.array": tensor("U8", (6,), struct.pack("<3h", 1, -2, 3)),
    "rng.torch": tensor("U8", (3,), b"\x00\x7f\xff"),
}
STATE = {
    "rng": {"torch": {"$tensor": "rng.torch"}},
    "optimizer": {
        "state": {
            "layer.weight": {
                "step": {"$tensor": "optimizer.state.layer.weight.step"},
                "exp_avg": {"$tensor": "optimizer.state.layer.weight.exp_avg"},
            }
        },
        "other_state": {},
        "param_groups": [{"lr": 0.1, "betas": {"$tuple": [0.9, 0.999]}, "params": ["layer.weight"]}],
    },
    "everything": {
        "größe": "数据",
        "nothing": None,
        "list": [1, 2.5, True, 12345678901234567890],
        "floats": [{"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"}, -0.0],
        "text": {"$text": "7aCA"},
        "bytes": {"$bytes": "AAH/"},
        "complex": {"$complex": [1.5, {"$float": "inf"}]},
        "keys": {"$dict": [[1, "one"], [{"$tuple": [1, "a"]}, None], ["$tuple", 2]]},
        "ordered": {"$ordered": [["b", 1], ["a", 2]]},
        "sets": [{"$set": [1]}, {"$frozenset": [2]}],
        "deque": {"$deque": [1, 2], "maxlen": 3},
        "torch": [{"$size": [2, 3]}, {"$dtype": "bfloat16"}, {"$device": "cpu"}],
        "number": {"$numpy": "<i2", "bytes": "BwA="},
        "array": {"$ndarray": "everything.array", "dtype": "<i2", "shape": [3]},
        "z": {"$tensor": "everything.z", "requires_grad": True},
        "the same z": {"$tensor": "everything.z", "requires_grad": True},
    },
}
ASSETS = {
    "config.json": b'{"model_type": "none"}\n',
    "run.yaml": b"save_every_n_train_steps: 3\n",
    "notes/deep/empty.txt": b"",
}


def make(folder: Path) -> None:
    """Commit the checkpoint of step 3 in ``folder``, in two shards."""
    draft = Draft(
        step=3,
        serial=5,
        run_id="0123456789abcdef",
        state=Snapshot(WEIGHTS, TIES, STATE, TENSORS),
        assets=ASSETS,
        epoch=1,
        seconds=12.25,
        metrics={"loss": 0.5, "val_loss": math.nan, "best": -math.inf},
        reasons=("every 3 steps", "the last step"),
        config="run.yaml",
        software={"milepost": "0.1.0", "torch": "2.13.0"},
    )
    folder.mkdir()
    commit(RunFolder(folder), LocalBackend(), draft, max_shard_size=24)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
