"""Parts of files read in parallel: to their places, checked, and no more than was asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.errors import CorruptCheckpointError
from milepost.storage import reading
from milepost.storage.digests import FileRecord, chunk_digests
from milepost.storage.manifest import read_manifest
from milepost.storage.reader import StoredState
from milepost.storage.reading import Reading, Span
from tests.storage.samples import save, tensor

IN_TMP_PATH = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CHUNK = 64


def put(folder: Path, name: str, data: bytes) -> FileRecord:
    (folder / name).write_bytes(data)
    return FileRecord(len(data), chunk_digests(data, CHUNK), CHUNK)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    size = draw(st.integers(0, 10 * CHUNK))
    edges = sorted(draw(st.lists(st.integers(0, size), max_size=8)))
    return size, [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=False)]


@IN_TMP_PATH
@given(cut=cuts(), digests=st.booleans(), rest=st.booleans(), at_once=st.integers(1, 100), most=st.integers(1, 3))
def test_every_span_gets_its_bytes(tmp_path, monkeypatch, cut, digests, rest, at_once, most) -> None:
    monkeypatch.setattr(reading, "_AT_ONCE", at_once)
    monkeypatch.setattr(reading, "_MOST_BUFFERS", most)
    size, wanted = cut
    data = bytes(at % 251 for at in range(size))
    record = put(tmp_path, "file", data)
    spans = [Span(low, memoryview(bytearray(high - low))) for low, high in wanted]
    seen: list[int] = []
    Reading(tmp_path, {"file": record}, digests=digests, rest=rest, on_bytes=seen.append).read({"file": spans})
    for span in spans:
        assert bytes(span.target) == data[span.start : span.end]
    if digests and rest:
        assert sum(seen) == size


@IN_TMP_PATH
@given(cut=cuts(), rest=st.booleans(), place=st.integers(0, 10 * CHUNK), short=st.integers(1, 40))
def test_a_changed_byte_is_noticed_in_every_chunk_that_is_read(tmp_path, monkeypatch, cut, rest, place, short) -> None:
    size, wanted = cut
    if not size:
        return
    place %= size
    data = bytearray(at % 251 for at in range(size))
    record = put(tmp_path, "file", bytes(data))
    data[place] ^= 1
    (tmp_path / "file").write_bytes(data)
    preadv = os.preadv
    # A system that gives less than it was asked for.
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:short]], at))
    spans = [Span(low, memoryview(bytearray(high - low))) for low, high in wanted]
    chunk = place // CHUNK
    touched = rest or any(
        low < min(size, (chunk + 1) * CHUNK) and high > chunk * CHUNK and low < high for low, high in wanted
    )
    read = Reading(tmp_path, {"file": record}, digests=True, rest=rest)
    try:
        if touched:
            start, end = chunk * CHUNK, min(size, (chunk + 1) * CHUNK)
            with pytest.raises(CorruptCheckpointError) as caught:
                read.read({"file": spans})
            assert list(caught.value.problems) == [f"file differs from its digest between bytes {start} and {end}"]
        else:
            read.read({"file": spans})
    finally:
        monkeypatch.undo()


def test_every_damaged_file_is_named_once(tmp_path) -> None:
    records = {name: put(tmp_path, name, bytes(10 * CHUNK)) for name in ("a", "b", "c", "d", "e")}
    (tmp_path / "a").write_bytes(b"\x01" * 10 * CHUNK)
    (tmp_path / "b").unlink()
    (tmp_path / "c").write_bytes(b"")
    (tmp_path / "d").unlink()
    (tmp_path / "d").symlink_to("e")
    with pytest.raises(CorruptCheckpointError) as caught:
        Reading(tmp_path, records, digests=True, rest=True).read({})
    assert len(caught.value.problems) == 4
    assert [problem[0] for problem in caught.value.problems] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), None])
def test_a_disk_that_fails_or_a_file_that_shrinks_is_damage(tmp_path, monkeypatch, fault) -> None:
    record = put(tmp_path, "file", bytes(10 * CHUNK))

    def fail(*_: Any) -> int:
        if fault is not None:
            raise fault
        return 0

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CorruptCheckpointError, match=r"cannot be read|ends before its size"):
        Reading(tmp_path, {"file": record}, digests=True, rest=True).read({})


def test_no_descriptor_stays_open(tmp_path) -> None:
    records = {name: put(tmp_path, name, bytes(10 * CHUNK)) for name in ("a", "b")}
    (tmp_path / "b").write_bytes(b"")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CorruptCheckpointError):
        Reading(tmp_path, records, digests=True, rest=True).read({})
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_tensor_or_a_part_of_it_is_read_without_the_others(tmp_path, monkeypatch) -> None:
    path = save(tmp_path, 4).path
    stored = StoredState(path, read_manifest(path))
    opened = []
    open_listed = reading.open_listed
    monkeypatch.setattr(reading, "open_listed", lambda *args: opened.append(args[1]) or open_listed(*args))
    number = (4).to_bytes(4, "little")
    assert bytes(stored.weights["a.weight"].data) == number * 6
    assert bytes(stored.weights["a.weight"].part(2, 7)) == (number * 6)[2:7]
    assert set(opened) == {"model.safetensors"}


def test_a_part_of_a_damaged_chunk_is_not_given(tmp_path) -> None:
    path = save(tmp_path, 4).path
    stored = StoredState(path, read_manifest(path))
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="differs from its digest"):
        stored.weights["a.weight"].part(0, 1)


def test_a_header_that_was_changed_is_damage_and_no_other_model(tmp_path) -> None:
    path = save(tmp_path, 4).path
    data = (path / "model.safetensors").read_bytes().replace(b"a.weight", b"z.weight")
    (path / "model.safetensors").write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors differs from its digest"):
        StoredState(path, read_manifest(path))


def test_headers_longer_than_a_chunk_are_read(tmp_path, monkeypatch) -> None:
    from milepost.records import Snapshot

    many = {f"{'long' * 50}.{at}": tensor("U8", (1,), b"x") for at in range(100)}
    path = save(tmp_path, 4, state=Snapshot(many, {}, {}, {})).path
    assert len(StoredState(path, read_manifest(path)).weights) == 100
