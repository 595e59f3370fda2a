"""A checkpoint's files, read back into a snapshot; digests are checked as the bytes pass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from milepost.errors import CorruptCheckpointError
from milepost.records import Snapshot, TensorBytes
from milepost.storage.layout import STATE_TREE, is_state_tensors_file, is_weights_file
from milepost.storage.manifest import Manifest
from milepost.storage.tensor_files import tensors_in
from milepost.storage.verify import VerifyLevel, read_verified


def read_snapshot(path: Path, manifest: Manifest, *, verify: VerifyLevel = "digests") -> Snapshot:
    """Everything that a checkpoint holds of the training state; the files beside it are checked too.

    Raises CorruptCheckpointError naming every damaged file.
    """
    problems: list[str] = []
    tensors: dict[str, TensorBytes] = {}
    weights: dict[str, TensorBytes] = {}
    tree: Mapping[str, Any] = {}
    for name in manifest.files:
        try:
            if is_weights_file(name):
                weights.update(tensors_in(path / name, _read(path, name, manifest, verify)))
            elif is_state_tensors_file(name):
                tensors.update(tensors_in(path / name, _read(path, name, manifest, verify)))
            elif name == STATE_TREE:
                tree = _tree(path, _read(path, name, manifest, verify))
            else:
                _read(path, name, manifest, verify)
        except CorruptCheckpointError as error:
            problems += error.problems
    if not problems and STATE_TREE not in manifest.files:
        problems.append(f"{STATE_TREE} is not among its files")
    if problems:
        raise CorruptCheckpointError(f"{path}: " + "; ".join(problems), path=path, problems=problems)
    return Snapshot(weights, manifest.ties, tree, tensors)


def read_weights(path: Path, manifest: Manifest, *, verify: VerifyLevel = "digests") -> dict[str, TensorBytes]:
    """The model's tensors alone. Raises CorruptCheckpointError."""
    weights: dict[str, TensorBytes] = {}
    for name in filter(is_weights_file, manifest.files):
        weights.update(tensors_in(path / name, _read(path, name, manifest, verify)))
    return weights


def read_text(path: Path, name: str, manifest: Manifest) -> str:
    """One listed text file of a checkpoint, checked. Raises KeyError if it is not listed, CorruptCheckpointError."""
    return bytes(_read(path, name, manifest, "digests")).decode()


def _read(path: Path, name: str, manifest: Manifest, verify: VerifyLevel) -> memoryview:
    record = manifest.files[name]
    # The size is checked before memory of that size is asked for.
    for _ in read_verified(path, name, record, digests=False):
        pass
    data = memoryview(bytearray(record.size))
    for _ in read_verified(path, name, record, digests=verify == "digests", into=data):
        pass
    return data


def _tree(path: Path, data: memoryview) -> Mapping[str, Any]:
    try:
        tree = json.loads(bytes(data))
        if not isinstance(tree, dict):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as error:
        reason = f"{STATE_TREE} cannot be read ({error})"
        raise CorruptCheckpointError(f"{path}: {reason}", path=path, problems=[reason]) from error
    return tree
