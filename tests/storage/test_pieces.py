"""Tensors read piece by piece: the same bytes, whatever the pieces and chunks, and none that was not verified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import CorruptCheckpointError
from milepost.records import Snapshot
from milepost.storage.digests import FileRecord, digest
from milepost.storage.layout import is_weights_file
from milepost.storage.levels import stored_weights
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.pieces import StoredTensors, item_size, logical_shape
from tests.storage.samples import save, tensor

CONTENT = bytes(range(256)) * 16
WEIGHTS = {
    "odd": tensor("U8", (7,), CONTENT[:7]),
    "wide": tensor("F64", (16, 32), CONTENT),
    "half": tensor("BF16", (101,), CONTENT[:202]),
    "none": tensor("F32", (0, 3), b""),
    "one": tensor("F32", (), CONTENT[:4]),
    "complex": tensor("F64", (3, 5, 2), CONTENT[:240], "complex128"),
}


def checkpoint(folder: Path, **options: int) -> Path:
    return save(folder, 1, state=Snapshot(WEIGHTS, {}, {"counters": {}}, {}), **options).path


def in_chunks(folder: Path, manifest: Manifest, chunk: int) -> Manifest:
    """The same manifest with digests of smaller pieces, as format 1 allows."""
    files = {}
    for name in manifest.files:
        data = (folder / name).read_bytes()
        digests = tuple(digest(data[at : at + chunk]) for at in range(0, len(data), chunk))
        files[name] = FileRecord(len(data), digests, chunk)
    return replace(manifest, files=files)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("run"))


@settings(max_examples=40, deadline=None)
@given(chunk=st.integers(1, 9000), most_items=st.integers(1, 600))
def test_pieces_are_the_bytes_of_the_tensor_whatever_their_size(saved, chunk, most_items):
    manifest = in_chunks(saved, read_manifest(saved), max(chunk, 16))
    with StoredTensors(saved, manifest, is_weights_file) as stored:
        assert {*stored} == {*WEIGHTS}
        for name in stored:
            pieces = [bytes(piece) for piece in stored.pieces(name, most_items)]
            assert b"".join(pieces) == bytes(WEIGHTS[name].data)
            assert all(len(piece) % item_size(stored[name]) == 0 for piece in pieces)


def test_each_byte_is_read_once_in_the_order_of_the_disk(saved):
    manifest = in_chunks(saved, read_manifest(saved), 512)
    told: list[int] = []
    with StoredTensors(saved, manifest, is_weights_file, told.append) as stored:
        for name in stored:
            for _ in stored.pieces(name):
                pass
    assert sum(told) == manifest.files["model.safetensors"].size


def test_shapes_are_the_users(saved):
    with StoredTensors(saved, read_manifest(saved), is_weights_file) as stored:
        assert logical_shape(stored["complex"]) == (3, 5) and item_size(stored["complex"]) == 16
        assert logical_shape(stored["half"]) == (101,) and item_size(stored["half"]) == 2
        assert item_size(stored["none"]) == 0


def test_shards_are_one_mapping(tmp_path):
    folder = checkpoint(tmp_path, max_shard_size=1000)
    manifest = read_manifest(folder)
    with StoredTensors(folder, manifest, is_weights_file) as stored:
        assert len(stored.files) > 1
        assert {name: bytes(b"".join(stored.pieces(name))) for name in stored} == {
            name: bytes(each.data) for name, each in stored_weights(folder, manifest).weights.items()
        }


def test_a_flipped_bit_is_noticed_before_its_piece_is_given(tmp_path):
    folder = checkpoint(tmp_path)
    manifest = in_chunks(folder, read_manifest(folder), 512)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with StoredTensors(folder, manifest, is_weights_file) as stored:
        last = [*stored][-1]
        assert b"".join(stored.pieces("wide")) == CONTENT
        with pytest.raises(CorruptCheckpointError, match="differs from its digest"):
            b"".join(stored.pieces(last))


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b""), "has 0 bytes"),
        (lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")), "symbolic link"),
    ],
)
def test_a_file_that_is_not_as_written_is_refused_at_once(tmp_path, harm, text):
    folder = checkpoint(tmp_path)
    harm(folder / "model.safetensors")
    with pytest.raises(CorruptCheckpointError, match=text):
        StoredTensors(folder, read_manifest(folder), is_weights_file)
