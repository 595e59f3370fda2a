"""What is timed is what it says: the bytes are there, hooks are seen, and nothing is written where nothing should."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
import torch

from benchmarks import limits, loops
from benchmarks.alone import resume
from benchmarks.catalog import BY_NAME, METHODS
from benchmarks.engine import CaptureAlone
from benchmarks.loops import Training, window
from benchmarks.memory import peak_bytes, reset_peak
from benchmarks.methods import Method


@pytest.fixture(scope="module")
def training() -> Training:
    made = Training(200_000)
    made.step()
    return made


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


class Waiting(Method):
    """Holds training up for 2 in its call, 3 in a hook, 5 in its lock, and is durable after three steps of 100."""

    def __init__(self, training, folder, clock):
        super().__init__(training, folder)
        self.left, self.clock = 0, clock
        self.handle = training.optimizer.register_step_pre_hook(self.hook)

    def hook(self, *_):
        self.clock.now += 3 if self.left == 3 else 0

    @contextlib.contextmanager
    def updating(self):
        self.clock.now += 5 if self.left == 3 else 0
        yield
        self.clock.now += 100

    def save(self):
        self.left = 3
        self.clock.now += 2

    def stepped(self):
        self.left -= 1

    def done(self):
        return self.left <= 0


def test_the_limits_move_every_byte(training, tmp_path):
    sources = limits.bytes_of(training.tensors)
    buffer = limits.aligned_buffer(training.state_bytes)
    assert buffer.ctypes.data % limits.PAGE == 0
    assert limits.copy_seconds(sources, buffer) > 0
    everything = np.concatenate(sources)
    assert np.array_equal(buffer[: everything.size], everything)
    limits.write_direct(tmp_path / "file", buffer)
    assert (tmp_path / "file").read_bytes() == buffer.tobytes()
    assert limits.read_seconds([tmp_path / "file"]) > 0
    with pytest.raises(FileExistsError):
        limits.write_direct(tmp_path / "file", buffer)


def test_a_file_is_read_whole_by_its_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "FILE_PIECE", 4096)
    content = np.random.default_rng(0).integers(0, 256, 50_001, dtype=np.uint8)
    (tmp_path / "file").write_bytes(content.tobytes())
    seen: list[np.ndarray] = []
    monkeypatch.setattr(
        limits, "in_threads", lambda work, pieces: [(work(p), seen.append(p[0].copy())) for p in pieces]
    )
    limits.read_seconds([tmp_path / "file"])
    assert np.array_equal(np.concatenate(seen), content)


def test_an_error_in_a_thread_is_raised():
    def fail(piece):
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        limits.in_threads(fail, [(np.zeros(1, dtype=np.uint8), None)])


def test_the_page_cache_tells_what_it_has(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    with path.open("rb") as file:
        resident, pages = limits.pages_in_cache(file.fileno())
    assert (resident, pages) == (25, 25)
    # A file system in memory keeps its pages; any other gives them up.
    assert 0.0 <= limits.drop_from_cache([path]) <= 1.0


def test_a_peak_of_memory_is_seen_and_forgotten():
    before = reset_peak()
    block = np.ones(32 << 20, dtype=np.uint8)
    assert peak_bytes() - before >= block.nbytes * 0.9
    del block
    assert reset_peak() - before < 16 << 20


def test_a_window_sees_where_training_was_held_up(training, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loops, "time", clock)
    method = Waiting(training, tmp_path / "waiting", clock)
    try:
        found = window(training, method, least=1)
    finally:
        method.handle.remove()
    assert (found.steps, found.call, found.hook, found.lock, found.held) == (3, 2, 3, 5, 10)
    assert found.seconds == 310
    assert window(training, None, least=2).steps == 2


@pytest.mark.parametrize("name", [entry.name for entry in METHODS if entry.ours or not entry.background])
def test_a_method_saves_and_tidies_up(name, training, tmp_path):
    method = BY_NAME[name].make(training, tmp_path / name)
    try:
        for _ in range(2):
            training.step(method)
            method.stepped()
            method.save()
            method.wait()
            files = [path for path in method.folder.rglob("*") if path.is_file()]
            assert sum(path.stat().st_size for path in files) >= training.state_bytes
            method.tidy()
        left = [path for path in method.folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in left) < training.state_bytes / 10
    finally:
        method.close()


def test_capture_alone_writes_no_tensors(training, tmp_path):
    overlapped = BY_NAME["milepost-overlapped"].make(training, tmp_path / "run")
    alone = CaptureAlone(overlapped)
    try:
        window(training, alone, least=1)
        alone.wait()
        files = list(overlapped.folder.rglob("*.safetensors"))
        assert files
        assert sum(path.stat().st_size for path in files) == 0
        alone.tidy()
        overlapped.stepped()
        overlapped.save()
        overlapped.wait()
        assert sum(path.stat().st_size for path in overlapped.folder.rglob("*.safetensors")) > training.state_bytes / 2
    finally:
        overlapped.close()


@pytest.mark.parametrize("raw_first", [True, False])
def test_resuming_is_measured_beside_reading(raw_first, training, tmp_path):
    method = BY_NAME["milepost-blocking"].make(training, tmp_path / "kept")
    method.save()
    method.close()
    found = resume(200_000, str(tmp_path / "kept" / "run"), cold=False, raw_first=raw_first)
    assert found["bytes"] >= training.state_bytes
    assert found["raw"] > 0
    assert found["resume"] > 0
    assert min(found["in_cache"]) == 1.0
    assert json.dumps(found)


def test_the_model_is_of_the_size_asked_for():
    with torch.device("meta"):
        model = loops.model_of(100_000_000)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(100_000_000, rel=0.1)
