"""The manifest: what is written is read, whatever newer versions add; a single wrong bit is noticed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import CorruptCheckpointError, UnsupportedFormatError
from milepost.records import Level
from milepost.storage.commit import rewrite_manifest
from milepost.storage.digests import CHUNK, FileRecord, digest
from milepost.storage.layout import MANIFEST, is_safe_name
from milepost.storage.manifest import FORMAT_VERSION, Manifest, decode, encode, read_manifest
from tests.faults import UnsyncedBackend
from tests.storage.samples import save

HERE = Path("run/step_4")
SAMPLE = Manifest(
    step=4,
    serial=7,
    run_id="0123456789abcdef",
    id="fedcba9876543210",
    created=1234567890.5,
    files={"config.json": FileRecord(3, ("0" * 32,)), "ü/a": FileRecord(0, ()), "b": FileRecord(5, ("1" * 32,) * 3, 2)},
    level=Level.FULL,
    epoch=1,
    seconds=12.5,
    metrics={"loss": 0.1, "nan": math.nan, "worst": math.inf, "best": -math.inf, "zero": -0.0},
    reasons=("every 2 steps",),
    pinned=True,
    config="config.json",
    ties={"head.weight": "embedding.weight"},
    software={"torch": "2.13"},
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
TEXTS = st.dictionaries(st.text(), st.text(), max_size=3)
KNOWN = set(json.loads(encode(SAMPLE)))


@st.composite
def _records(draw: st.DrawFn) -> FileRecord:
    size, chunk = draw(st.integers(0, 2**62)), draw(st.just(CHUNK) | st.integers(1, 2**30))
    size = min(size, 5 * chunk)
    digests = tuple(draw(st.lists(st.text("0123456789abcdef", min_size=32, max_size=32), min_size=5, max_size=5)))
    unknown = draw(
        st.dictionaries(st.text().filter(lambda key: key not in ("size", "digests", "chunk")), JSON, max_size=2)
    )
    return FileRecord(size, digests[: -(-size // chunk)], chunk, unknown)


MANIFESTS = st.builds(
    Manifest,
    step=st.integers(0, 2**63),
    serial=st.integers(0, 2**63),
    run_id=st.text(),
    id=st.text(),
    created=st.floats(0, 1e12),
    files=st.dictionaries(
        st.text(min_size=1).filter(lambda name: is_safe_name(name) and name != MANIFEST), _records(), max_size=3
    ),
    level=st.sampled_from(Level),
    epoch=st.none() | st.integers(0, 2**40),
    seconds=st.floats(0, 1e12),
    metrics=st.dictionaries(st.text(), st.floats(), max_size=4),
    reasons=st.lists(st.text(), max_size=3).map(tuple),
    pinned=st.booleans(),
    config=st.none() | st.text(),
    damage=st.none() | st.text(),
    ties=TEXTS,
    software=TEXTS,
    format_version=st.sampled_from(["1.0", "1.1", "1.99"]),
    unknown=st.dictionaries(st.text().filter(lambda key: key not in KNOWN), JSON, max_size=3),
)


@given(MANIFESTS)
@settings(deadline=None)
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    data = encode(manifest)
    read = decode(data, HERE)
    assert encode(read) == data
    # NaN does not equal itself; its spelling does.
    assert repr(read) == repr(manifest)


def test_every_flipped_bit_is_noticed_and_called_damage() -> None:
    data = encode(SAMPLE)
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptCheckpointError):
            decode(bytes(flipped), HERE)


def test_every_truncation_is_noticed() -> None:
    data = encode(SAMPLE)
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpointError):
            decode(data[:length], HERE)


@pytest.mark.parametrize("extra", [b"\n", b" ", b"\0", b"{}"])
def test_what_was_added_is_noticed(extra: bytes) -> None:
    for data in (encode(SAMPLE) + extra, extra + encode(SAMPLE)):
        with pytest.raises(CorruptCheckpointError):
            decode(data, HERE)


NOT_MANIFESTS = {
    "nothing": b"",
    "zeros": b"\0" * 500,
    "a pickle": b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "not UTF-8": b'{"format": "\xff"}',
    "a list": b"[1]",
    "a number": b"3",
    "text": b'"milepost"',
    "null": b"null",
    "an empty object": b"{}",
    "another program's": b'{"format": "other", "format_version": "1.0"}',
    "without a version": b'{"format": "milepost"}',
    "without a seal": b'{"format": "milepost", "format_version": "1.0", "step": 1}',
    "deeply nested": b"[" * 100_000,
    "a number of many digits": b"9" * 10_000,
}


@pytest.mark.parametrize("data", NOT_MANIFESTS.values(), ids=NOT_MANIFESTS)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        decode(data, HERE)
    assert caught.value.path == HERE and "milepost.json cannot be read" in caught.value.problems[0]


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode(data, HERE)


def sealed(change: dict[str, Any], *, without: str | None = None) -> bytes:
    """A manifest with changed fields and a right seal, as a hostile or a newer writer would make it."""
    body = {**json.loads(encode(SAMPLE)), **change}
    body.pop(without, None)
    body["manifest_digest"] = "0" * 32
    text = json.dumps(body).encode()
    head, tail = text.rsplit(b"0" * 32, 1)
    return head + digest(text).encode() + tail


@pytest.mark.parametrize("version", ["1.1", "1.99"])
def test_a_newer_minor_version_is_read(version: str) -> None:
    read = decode(sealed({"format_version": version, "new": {"a": [1]}}), HERE)
    assert (read.format_version, read.unknown) == (version, {"new": {"a": [1]}})


def test_fields_of_a_newer_minor_version_survive_a_rewrite(tmp_path: Path) -> None:
    path = save(tmp_path, 4).path
    manifest = read_manifest(path)
    files = {name: replace(record, unknown={"codec": "none"}) for name, record in manifest.files.items()}
    (path / "milepost.json").write_bytes(
        encode(replace(manifest, format_version="1.7", unknown={"new": {"a": [1, None]}}, files=files))
    )
    rewrite_manifest(UnsyncedBackend(), path, lambda manifest: replace(manifest, pinned=True))
    read = json.loads((path / "milepost.json").read_bytes())
    assert (read["new"], read["format_version"], read["pinned"]) == ({"a": [1, None]}, "1.7", True)
    assert all(entry["codec"] == "none" for entry in read["files"].values())


@pytest.mark.parametrize("change", [{}, {"digest": "sha-256", "manifest_digest": "other"}])
@pytest.mark.parametrize("version", ["2.0", "10.3"])
def test_a_newer_major_version_is_refused_by_name(version: str, change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFormatError, match="Install a newer Milepost") as caught:
        decode(sealed({"format_version": version, **change}), HERE)
    assert (caught.value.version, caught.value.path) == (version, HERE)


def test_a_newer_major_version_that_is_sealed_in_its_own_way_is_refused_by_name() -> None:
    data = json.dumps({"format": "milepost", "format_version": "2.0", "digest": "blake3", "pages": 3}).encode()
    with pytest.raises(UnsupportedFormatError):
        decode(data, HERE)


def test_a_level_of_a_newer_minor_version_is_refused_as_newer() -> None:
    with pytest.raises(UnsupportedFormatError):
        decode(sealed({"format_version": "1.4", "level": "packed"}), HERE)


@pytest.mark.parametrize(
    "version", ["1", "1.", ".0", "1.0.0", "a.b", "1.x", "-1.0", "²", "1.²", "", 1.0, 1, None, ["1.0"]]
)
def test_a_version_that_is_none_is_damage(version: object) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode(sealed({"format_version": version}), HERE)


@pytest.mark.parametrize(
    "name",
    ["../step_2/model.safetensors", "/etc/passwd", "a/../../b", "..", ".", "", "a\\b", "a\0b", "a//b", "milepost.json"],
)
def test_case_26_a_file_outside_the_checkpoint_is_refused(name: str) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode(sealed({"files": {name: {"size": 0, "digests": []}}}), HERE)


WRONG_FIELDS: list[dict[str, Any]] = [
    {"step": -1},
    {"step": 1.0},
    {"step": "4"},
    {"step": True},
    {"step": None},
    {"serial": -1},
    {"serial": []},
    {"created": "x"},
    {"created": None},
    {"level": "packed"},
    {"level": []},
    {"epoch": "x"},
    {"epoch": []},
    {"metrics": []},
    {"metrics": {"a": "x"}},
    {"metrics": {"a": None}},
    {"reasons": 3},
    {"ties": []},
    {"software": 3},
    {"digest": "md5"},
    {"files": []},
    {"files": {"a": None}},
    {"files": {"a": []}},
    {"files": {"a": {}}},
    {"files": {"a": {"size": 1}}},
    {"files": {"a": {"size": -1, "digests": []}}},
    {"files": {"a": {"size": 1.0, "digests": ["0"]}}},
    {"files": {"a": {"size": 1, "digests": []}}},
    {"files": {"a": {"size": 1, "digests": 3}}},
    {"files": {"a": {"size": 0, "digests": ["0" * 32]}}},
    {"files": {"a": {"size": 1, "digests": ["0" * 32], "chunk": 0}}},
    {"files": {"a": {"size": 1, "digests": ["0" * 32], "chunk": 2**40}}},
    {"files": {"a": {"size": 1, "digests": ["0" * 32], "chunk": "1"}}},
]


@pytest.mark.parametrize("change", WRONG_FIELDS, ids=json.dumps)
def test_case_26_a_field_of_the_wrong_kind_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode(sealed(change), HERE)


@pytest.mark.parametrize(
    "field", ["step", "serial", "run_id", "id", "created", "level", "digest", "files", "manifest_digest"]
)
def test_a_needed_field_that_is_absent_is_damage(field: str) -> None:
    data = sealed({}, without=field)
    if field == "manifest_digest":
        data = json.dumps({key: value for key, value in json.loads(data).items() if key != field}).encode()
    with pytest.raises(CorruptCheckpointError):
        decode(data, HERE)


@pytest.mark.parametrize(
    "field", ["epoch", "seconds", "metrics", "reasons", "pinned", "config", "damage", "ties", "software"]
)
def test_a_field_that_may_be_absent_has_a_default(field: str) -> None:
    decode(sealed({}, without=field), HERE)


def test_the_version_written_is_the_documented_one() -> None:
    assert (FORMAT_VERSION, json.loads(encode(SAMPLE))["format_version"]) == ("1.0", "1.0")
