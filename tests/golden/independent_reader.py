"""A reader of format 1 that knows docs/format-v1.md and nothing of Milepost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import xxhash
from safetensors import deserialize

SEAL = b'"manifest_digest": "'


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The manifest, the weights, the training state's tree and its tensors. Raises ValueError if anything is wrong."""
    manifest = read_manifest(folder / "milepost.json")
    weights: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for name, record in manifest["files"].items():
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"{name} is not inside the checkpoint")
        data, chunk = (folder / name).read_bytes(), record.get("chunk", 16 * 1024 * 1024)
        chunks = [data[start : start + chunk] for start in range(0, len(data), chunk)]
        if len(data) != record["size"] or [xxhash.xxh3_128_hexdigest(part) for part in chunks] != record["digests"]:
            raise ValueError(f"{name} is damaged")
        shard = re.fullmatch(r"(model|training_state/tensors)(-\d{5}-of-\d{5})?\.safetensors", name)
        if shard:
            (weights if shard[1] == "model" else tensors).update(deserialize(data))
    weights.update({name: weights[kept] for name, kept in manifest["ties"].items()})
    return manifest, weights, json.loads((folder / "training_state/state.json").read_bytes()), tensors


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, once its seal is found whole."""
    data = path.read_bytes()
    start = data.rindex(SEAL) + len(SEAL)
    unsealed = data[:start] + b"0" * 32 + data[start + 32 :]
    if data[start : start + 32].decode() != xxhash.xxh3_128_hexdigest(unsealed):
        raise ValueError("the manifest is damaged")
    manifest: dict[str, Any] = json.loads(data)
    if manifest["format"] != "milepost" or manifest["format_version"].split(".")[0] != "1":
        raise ValueError("not a manifest of format 1")
    return manifest
