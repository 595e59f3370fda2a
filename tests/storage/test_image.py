"""The image of a checkpoint's tensor files: every byte has one place, and is given from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.memory import PAGE, address_of
from milepost.records import Snapshot, TensorBytes
from milepost.storage import image as images
from milepost.storage import streaming
from milepost.storage.digests import digest
from milepost.storage.image import Image, layout_key, plan_image
from milepost.storage.streaming import StreamedContent
from tests.storage.samples import tensor

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def states(draw: st.DrawFn) -> Snapshot:
    def group(prefix: str) -> dict[str, TensorBytes]:
        sizes = draw(st.lists(st.integers(0, 3 * PAGE), max_size=5))
        return {f"{prefix}{at}": tensor("U8", (size,), bytes([at + 1]) * size) for at, size in enumerate(sizes)}

    return Snapshot(group("w"), {}, {}, group("t"))


def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 2 * PAGE)
    monkeypatch.setattr(streaming, "CHUNK", 2 * PAGE)


def whole(image: Image, state: Snapshot) -> dict[str, bytes]:
    """The files as the plan says they are, put together piece by piece."""
    sources = image.sources(state)
    memory = bytearray(image.size)
    for chunk in image.chunks:
        for piece in chunk.pieces:
            sources[piece.source].copy_into(memoryview(memory)[piece.target : piece.target + piece.length], piece.start)
    files = {}
    for file in image.files:
        start = image.chunks[file.chunks[0]].start
        files[file.name] = bytes(memory[start : start + file.size])
    return files


@QUICK
@given(state=states(), most=st.integers(1, 6 * PAGE))
def test_chunks_tile_every_file_and_pieces_every_chunk(monkeypatch, state, most) -> None:
    small_chunks(monkeypatch)
    image = plan_image(state, most)
    assert [chunk for file in image.files for chunk in file.chunks] == list(range(len(image.chunks)))
    for number, file in enumerate(image.files):
        chunks = [image.chunks[at] for at in file.chunks]
        assert chunks[0].start % PAGE == 0
        assert sum(chunk.length for chunk in chunks) == file.size
        at = chunks[0].start
        for chunk in chunks:
            assert (chunk.file, chunk.start) == (number, at)
            assert chunk.length == 2 * PAGE or chunk is chunks[-1]
            for piece in chunk.pieces:
                assert piece.target == at and piece.length > 0
                at += piece.length
    assert image.size >= max(chunk.start + chunk.length for chunk in image.chunks)


@QUICK
@given(state=states(), most=st.integers(1, 6 * PAGE))
def test_what_is_streamed_is_what_the_plan_says_also_when_it_is_asked_for_twice(monkeypatch, state, most) -> None:
    small_chunks(monkeypatch)
    image = plan_image(state, most)
    expected = whole(image, state)
    content = StreamedContent(image, image.sources(state))
    for attempt in range(2):
        for file in image.files:
            read = bytearray()
            for number in file.chunks:
                if attempt == 0 and number == len(image.chunks) - 1 and number:
                    break  # a disk that is full: the writer begins again
                view = content.chunk(number)
                assert address_of(view) % PAGE == 0
                assert content.digest(number) == digest(view)
                read += view
            else:
                assert bytes(read) == expected[file.name]
    content.close()


@given(first=states(), second=states())
@QUICK
def test_layouts_are_equal_exactly_if_their_keys_are(first, second) -> None:
    same = layout_key(first, 5) == layout_key(second, 5)
    assert same == (
        (plan_image(first, 5).headers, first.weights.keys()) == (plan_image(second, 5).headers, second.weights.keys())
    )
    assert layout_key(first, 5) != layout_key(first, 6)


def test_no_more_buffers_are_made_than_three(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(streaming, "CHUNK", PAGE)
    monkeypatch.setattr(images, "CHUNK", PAGE)
    arena = streaming.Arena
    monkeypatch.setattr(streaming, "Arena", lambda size: made.append(size) or arena(size))
    state = Snapshot({"w": tensor("U8", (50 * PAGE,), b"x" * 50 * PAGE)}, {}, {}, {})
    image = plan_image(state, 1 << 40)
    content = StreamedContent(image, image.sources(state))
    for number in range(len(image.chunks)):
        content.chunk(number)
    content.close()
    assert made == [PAGE] * 3


def test_a_source_that_fails_fails_the_chunk(monkeypatch) -> None:
    small_chunks(monkeypatch)

    class Gone(TensorBytes):
        def copy_into(self, target: memoryview, start: int) -> None:
            raise OSError(5, "gone")

    data = tensor("U8", (20 * PAGE,), b"x" * 20 * PAGE)
    state = Snapshot({"w": Gone(data.dtype, data.shape, data.data)}, {}, {}, {})
    image = plan_image(state, 1 << 40)
    content = StreamedContent(image, image.sources(state))
    with pytest.raises(OSError, match="gone"):
        for number in range(len(image.chunks)):
            content.chunk(number)
    content.close()


def test_the_file_names_say_how_many_there_are(tmp_path: Path) -> None:
    state = Snapshot({str(at): tensor("U8", (10,), b"x" * 10) for at in range(3)}, {}, {}, {})
    image = plan_image(state, 10)
    assert [file.name for file in image.files][:3] == [f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)]
    assert image.weight_map == {str(at): f"model-0000{at + 1}-of-00003.safetensors" for at in range(3)}
