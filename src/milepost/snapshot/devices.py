"""Copies from devices that run beside the training: on a stream of their own, into memory the device can reach."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

logger = logging.getLogger("milepost")


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device whose streams a copy of the tensor is ordered by."""
    return tensor.device


class CudaCopies:
    """Copies from one CUDA device, on a side stream, ordered after all that the current stream has been given.

    ``cuda`` is ``torch.cuda``; tests have another. Not measured yet: built without such a device at hand.
    """

    def __init__(self, cuda: Any, device: torch.device, stream: Any, before: Any) -> None:
        self._cuda = cuda
        self._device = device
        self._stream = stream
        self._before = before
        self._event = cuda.Event()

    def launch(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Begin to copy each live tensor to its place in host memory."""
        with self._cuda.device(self._device), self._cuda.stream(self._stream), torch.no_grad():
            self._stream.wait_event(self._before)
            for live, place in pairs:
                place.copy_(live, non_blocking=True)
                # The training may let go of it; its memory must not have another use before the copy is over.
                live.record_stream(self._stream)
            self._event.record(self._stream)

    def finish(self) -> None:
        """Wait for the copies' own event, not for the whole device."""
        self._event.synchronize()

    def hold(self) -> None:
        """Make the training's stream wait, on the device, for the copies' event."""
        self._cuda.current_stream(self._device).wait_event(self._event)


class CudaStreams:
    """One side stream for each CUDA device, and memory that such devices copy to without a detour."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._streams: dict[torch.device, Any] = {}
        self._pinned: dict[int, int] = {}

    def begin(self, device: torch.device, *, beside: bool) -> CudaCopies:
        """Copies of the state as it is at this point of the training's stream; call it on the training thread.

        They are made ``beside`` the work that comes next, or before it.
        """
        current = self._cuda.current_stream(device)
        if beside and device not in self._streams:
            self._streams[device] = self._cuda.Stream(device)
        before = self._cuda.Event()
        before.record(current)
        return CudaCopies(self._cuda, device, self._streams[device] if beside else current, before)

    def pin(self, address: int, size: int) -> None:
        """Lock a range of memory for the device's copies; where that is refused they are slower, and it is said."""
        if self._pinned.get(address) == size or not size:
            return
        status = int(self._cuda.cudart().cudaHostRegister(address, size, 0))
        if status == 0:
            self._pinned[address] = size
        else:
            logger.warning("%d bytes could not be pinned (CUDA error %d); copies are slower", size, status)

    def unpin(self, address: int) -> None:
        """Unlock a range before its memory goes."""
        if self._pinned.pop(address, None) is not None:
            self._cuda.cudart().cudaHostUnregister(address)
