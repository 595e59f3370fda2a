"""Copies from CUDA devices, tried with a stand-in that does its work only when the device is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from milepost.capturing import Capturer
from milepost.memory import Arena
from milepost.snapshot import live
from milepost.snapshot.capture import capture, survey
from milepost.snapshot.devices import CudaStreams
from milepost.snapshot.late import NoLateSurveyError
from milepost.snapshot.stateful import check_state

DEVICE = torch.device("cuda", 0)


class Stream:
    """A queue of work in order; what was given to it is done when somebody waits."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.work: list[Callable[[], None]] = []

    def wait_event(self, event: Event) -> None:
        self.work.append(event.synchronize)

    def run(self) -> None:
        while self.work:
            self.work.pop(0)()


class Event:
    """The point of a stream up to which ``synchronize`` has it done."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.count = 0
        self.waited_for = threading.Lock()

    def record(self, stream: Stream) -> None:
        self.stream, self.count = stream, len(stream.work)

    def synchronize(self) -> None:
        # Held while the work is done: a second one who waits goes on when it is.
        with self.waited_for:
            stream, self.stream = self.stream, None
            for _ in range(self.count if stream is not None else 0):
                if stream is not None and stream.work:
                    stream.work.pop(0)()


class FakeCuda:
    """``torch.cuda`` as far as copies need it."""

    def __init__(self, refuses_to_pin: bool = False) -> None:
        self.main = Stream(self)
        self.now = self.main
        self.pinned: dict[int, int] = {}
        self.refuses_to_pin = refuses_to_pin
        self.Event = Event

    def Stream(self, device: torch.device) -> Stream:
        return Stream(self)

    def current_stream(self, device: torch.device) -> Stream:
        return self.now

    @contextmanager
    def device(self, device: torch.device) -> Any:
        yield

    @contextmanager
    def stream(self, stream: Stream) -> Any:
        before, self.now = self.now, stream
        yield
        self.now = before

    def cudart(self) -> Any:
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if not self.refuses_to_pin:
            self.pinned[address] = size
        return 2 if self.refuses_to_pin else 0

    def cudaHostUnregister(self, address: int) -> None:
        del self.pinned[address]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Every tensor of the tests below says that it is on a CUDA device, and is copied in the stand-in's streams."""
    fake = FakeCuda()
    monkeypatch.setattr("milepost.capturing.CudaStreams", lambda: CudaStreams(fake))
    in_place = live.LiveTensor.__init__

    def elsewhere(self: live.LiveTensor, *args: Any) -> None:
        in_place(self, *args)
        if self.nbytes:
            self.address = 0

    monkeypatch.setattr(live.LiveTensor, "__init__", elsewhere)
    monkeypatch.setattr("milepost.copying.device_of", lambda tensor: DEVICE)
    monkeypatch.setattr("milepost.capturing.LateSurvey", elsewhere_at_once)
    copy_ = torch.Tensor.copy_

    def queued(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if non_blocking:
            fake.now.work.append(lambda: copy_(self, source))
            return self
        return copy_(self, source)

    monkeypatch.setattr(torch.Tensor, "copy_", queued)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    return fake


def elsewhere_at_once(*_: Any) -> None:
    raise NoLateSurveyError


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.entries = check_state({"model": self.model, "optimizer": self.optimizer})

    def forward(self) -> None:
        self.model(torch.randn(8, 4)).sum().backward()


def bytes_of(captured: Any) -> dict[str, bytes]:
    found = {}
    for file, names in zip(captured.image.files, captured.image.tensors, strict=True):
        content = b"".join(bytes(captured.content.chunk(number)) for number in file.chunks)
        sizes = [captured.state.weights.get(name) or captured.state.tensors[name] for name in names]
        at = len(content) - sum(tensor.nbytes for tensor in sizes)
        for name, tensor in zip(names, sizes, strict=True):
            found[f"{file.name} {name}"] = content[at : at + tensor.nbytes]
            at += tensor.nbytes
    return found


@pytest.mark.parametrize("overlapped", [True, False])
def test_a_copy_from_a_device_has_the_moment_though_it_is_made_later(cuda: FakeCuda, overlapped: bool) -> None:
    training = Training()
    training.forward()
    training.optimizer.step()
    capturer = Capturer(training.entries, 1 << 40, background=True, overlapped=overlapped)
    capturer.prepare()
    # The kernels of a step come after all that the training's stream was given before.
    training.optimizer.register_step_pre_hook(lambda *_: cuda.main.run())
    wanted = {name: bytes(tensor.data) for name, tensor in _flat(capture(training.entries)).items()}
    captured = capturer.capture()
    capturer.complete()
    # The forward pass changes buffers: the device does what it was given first, in order.
    cuda.main.run()
    training.forward()
    training.optimizer.step()
    found = {name.partition(" ")[2]: value for name, value in bytes_of(captured.parts()).items()}
    assert found == wanted
    captured.parts().content.confirm()
    captured.close()
    capturer.close()
    assert cuda.pinned == {}


def _flat(snapshot: Any) -> dict[str, Any]:
    return {**snapshot.weights, **snapshot.tensors}


def test_memory_is_pinned_once_and_given_back(caplog: pytest.LogCaptureFixture) -> None:
    cuda = FakeCuda()
    streams, arena = CudaStreams(cuda), Arena(10_000)
    for _ in range(3):
        streams.pin(arena.address, arena.size)
    assert cuda.pinned == {arena.address: 10_000}
    streams.unpin(arena.address)
    streams.unpin(arena.address)
    assert cuda.pinned == {}
    refused = CudaStreams(FakeCuda(refuses_to_pin=True))
    refused.pin(arena.address, arena.size)
    refused.unpin(arena.address)
    assert "could not be pinned (CUDA error 2)" in caplog.text


def test_the_training_stream_waits_on_the_device_and_the_program_does_not() -> None:
    cuda = FakeCuda()
    streams = CudaStreams(cuda)
    source, target = torch.ones(3), torch.zeros(3)
    copies = streams.begin(DEVICE, beside=True)
    done: list[str] = []
    original = torch.Tensor.copy_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
        patch.setattr(
            torch.Tensor,
            "copy_",
            lambda self, other, non_blocking: cuda.now.work.append(
                lambda: done.append("copy") or original(self, other)
            ),
        )
        copies.launch([(source, target)])
    copies.hold()
    cuda.main.work.append(lambda: done.append("update"))
    assert done == []
    cuda.main.run()
    assert done == ["copy", "update"]
    copies.finish()
    assert target.tolist() == [1, 1, 1]


def test_a_survey_of_a_state_on_the_host_needs_no_device() -> None:
    found = survey(Training().entries)
    assert all(isinstance(tensor, live.LiveTensor) for tensor in found.weights.values())
