"""The copy of a state into host memory, while training waits for it or goes on."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial

import torch

from milepost.errors import SaveFailedError
from milepost.memory import Arena, move
from milepost.records import TensorSource
from milepost.snapshot.devices import CudaCopies, CudaStreams, device_of
from milepost.snapshot.live import LiveTensor, place_in
from milepost.storage.digests import digest
from milepost.storage.image import Image, Piece
from milepost.workers import Action, Workers

# Giving up the interpreter for less than this takes longer than the copy.
_SMALL = 64 * 1024
_move_small = ctypes.PyDLL(None).memmove
_move_small.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_move_small.restype = ctypes.c_void_p


class SpoiledCopyError(SaveFailedError):
    """Something else than an optimizer's step changed the state while it was copied."""


class _Until(Enum):
    """How long a job may take: until ``begin`` returns, until the next step, or longer."""

    RETURN = 0
    STEP = 1
    LATER = 2


class Copying:
    """One copy of a state on its way into an arena that has the image's layout; a ``Content`` for the writer.

    With ``overlapped``, what only an optimizer's step changes is copied after ``begin`` has returned, and ``finish``
    must come before such a step; all else, and without it everything, is copied when ``begin`` returns.
    """

    def __init__(
        self, image: Image, arena: Arena, sources: Sequence[TensorSource], workers: Workers, streams: CudaStreams
    ) -> None:
        self._image = image
        self._arena = arena
        self._sources: Sequence[TensorSource] = sources
        self._workers = workers
        self._streams = streams
        self._changed = threading.Condition()
        # Jobs not done, by chunk and by who waits for them; one is ``begin`` itself.
        self._of_chunk = [1] * len(image.chunks)
        self._left = dict.fromkeys(_Until, 0) | {_Until.RETURN: 1}
        self._digests: dict[int, str] = {}
        self._error: BaseException | None = None
        self._copies: list[CudaCopies] = []
        self._spoiled: list[str] | None = None
        self._submitted = False

    def begin(self, *, overlapped: bool) -> None:
        """Copy what must be copied at once, and queue the rest. The writer may be waiting for it already."""
        try:
            self._begin(overlapped)
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                if not self._submitted:
                    # Nobody will do what was planned, and nobody may wait for it.
                    self._left = dict.fromkeys(_Until, 0)
                    self._spoiled = []
                self._changed.notify_all()
            raise

    def _begin(self, overlapped: bool) -> None:
        at_once: list[Action] = []
        later: list[Action] = []
        scattered: dict[int, LiveTensor] = {}
        # Few, so that the time for all others is the workers'.
        apart = {
            number
            for number, source in enumerate(self._sources)
            if type(source) is not LiveTensor or not source.address or (overlapped and not source.deferrable)
        }
        for number in apart:
            self._copy_apart(number, at_once, scattered)
        until, jobs = (_Until.STEP, later) if overlapped else (_Until.RETURN, at_once)
        for number, chunk in enumerate(self._image.chunks):
            if any(piece.source not in apart for piece in chunk.pieces):
                jobs.append(self._job(until, [number], partial(self._copy, chunk.pieces, apart)))
        launches = self._plan_scattered(scattered, overlapped, at_once, later)
        with self._changed:
            self._left[_Until.RETURN] -= 1
            if self._copied:
                self._spoiled = []
                self._changed.notify_all()
        self._arrive(range(len(self._of_chunk)))
        for launch in launches:
            launch()
        self._submitted = True
        self._workers.submit((*at_once, *later))
        self._help_until(lambda: not self._left[_Until.RETURN])
        if not overlapped:
            for copies in self._copies:
                copies.finish()

    def finish(self) -> None:
        """Wait, and help, until nothing is left that an optimizer's step would change."""
        self._help_until(lambda: not self._left[_Until.STEP])
        self._judge()
        for copies in self._copies:
            copies.hold()

    @property
    def pending(self) -> bool:
        """Whether ``finish`` has something to do."""
        return self._spoiled is None

    def chunk(self, number: int) -> memoryview:
        """A chunk's bytes, once they are there. Raises the error of a copy that failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._of_chunk[number])
        self._raise_error()
        chunk = self._image.chunks[number]
        return self._arena.view[chunk.start : chunk.start + chunk.length]

    def digest(self, number: int) -> str:
        """A chunk's digest, once it is there."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or number in self._digests)
        self._raise_error()
        return self._digests[number]

    def confirm(self) -> None:
        """Raise SpoiledCopyError if the state was changed by something else than a step while it was copied."""
        with self._changed:
            self._changed.wait_for(lambda: self._copied)
        self._raise_error()
        if self._spoiled:
            raise SpoiledCopyError(
                f"{', '.join(self._spoiled[:3])}{' and others' if len(self._spoiled) > 3 else ''} changed outside an "
                "optimizer's step while the state was being copied, so the copy is of no use. Make such changes before "
                "checkpoints.step(), or use CheckpointManager(..., capture='immediate')."
            )

    def close(self) -> None:
        """Let go of the live state, and of the arena, once no copy is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._copied)
        self._sources = ()

    def _copy_apart(self, number: int, at_once: list[Action], scattered: dict[int, LiveTensor]) -> None:
        """Copy a source now if it is small, plan that if it is large, and set it apart if it is not in one place."""
        source = self._sources[number]
        for chunk, piece in self._image.pieces_of_sources.get(number, ()):
            if not isinstance(source, LiveTensor):
                source.copy_into(self._arena.view[piece.target : piece.target + piece.length], piece.start)
            elif not source.address:
                scattered[number] = source
            elif piece.length < _SMALL:
                self._copy((piece,), ())
            else:
                at_once.append(self._job(_Until.RETURN, [chunk], partial(self._copy, (piece,), ())))

    def _copy(self, pieces: Sequence[Piece], apart: Container[int]) -> None:
        for piece in pieces:
            source = self._sources[piece.source]
            if piece.source not in apart and isinstance(source, LiveTensor):
                copy = _move_small if piece.length < _SMALL else move
                copy(self._arena.address + piece.target, source.address + piece.start, piece.length)

    def _place(self, number: int) -> memoryview:
        # A tensor's bytes lie one after the other, whatever the chunks.
        start = self._image.pieces_of_sources[number][0][1].target
        return self._arena.view[start : start + self._sources[number].nbytes]

    def _chunks_of(self, number: int) -> list[int]:
        return [chunk for chunk, _ in self._image.pieces_of_sources[number]]

    def _plan_scattered(
        self, scattered: Mapping[int, LiveTensor], overlapped: bool, at_once: list[Action], later: list[Action]
    ) -> list[Action]:
        """Plan the copies that torch makes; gives those from devices that are launched before ``begin`` returns."""
        devices: dict[tuple[torch.device, bool], list[int]] = {}
        for number, source in scattered.items():
            defer = overlapped and source.deferrable
            device = device_of(source.tensor)
            if device.type == "cuda" and place_in(self._place(number), source.tensor) is not None:
                devices.setdefault((device, defer), []).append(number)
                continue
            until, jobs = (_Until.STEP, later) if defer else (_Until.RETURN, at_once)
            chunks = self._chunks_of(number)
            jobs.append(self._job(until, chunks, partial(source.copy_whole, self._place(number))))
        launches = []
        for (device, defer), numbers in devices.items():
            launch = self._launching(device, {number: scattered[number].tensor for number in numbers}, beside=defer)
            if defer:
                later.append(self._job(_Until.STEP, [], launch))
            else:
                launches.append(launch)
        return launches

    def _launching(self, device: torch.device, found: Mapping[int, torch.Tensor], *, beside: bool) -> Action:
        self._streams.pin(self._arena.address, self._arena.size)
        copies = self._streams.begin(device, beside=beside)
        self._copies.append(copies)
        chunks = [chunk for number in found for chunk in self._chunks_of(number)]
        arrived = self._job(_Until.LATER, chunks, copies.finish)

        def launch() -> None:
            places = {number: place_in(self._place(number), tensor) for number, tensor in found.items()}
            copies.launch([(found[number], place) for number, place in places.items() if place is not None])
            self._workers.submit([arrived], urgent=False)

        return launch

    @property
    def _copied(self) -> bool:
        return not any(self._left.values())

    def _job(self, until: _Until, chunks: Sequence[int], action: Callable[[], object]) -> Action:
        self._left[until] += 1
        for number in chunks:
            self._of_chunk[number] += 1
        return partial(self._do, until, chunks, action)

    def _do(self, until: _Until, chunks: Sequence[int], action: Callable[[], object]) -> None:
        error: BaseException | None = None
        try:
            action()
        except BaseException as caught:
            error = caught
        with self._changed:
            self._error = self._error or error
            self._left[until] -= 1
            if self._copied:
                # At once: what is written to these tensors from now on does no harm.
                self._judge()
            self._changed.notify_all()
        self._arrive(chunks)

    def _arrive(self, chunks: Iterable[int]) -> None:
        full = []
        with self._changed:
            for number in chunks:
                self._of_chunk[number] -= 1
                if not self._of_chunk[number]:
                    full.append(partial(self._take_digest, number))
            self._changed.notify_all()
        if full:
            self._workers.submit(full, urgent=False)

    def _take_digest(self, number: int) -> None:
        if not self._sources:
            return
        chunk = self._image.chunks[number]
        value = digest(self._arena.view[chunk.start : chunk.start + chunk.length])
        with self._changed:
            self._digests[number] = value
            self._changed.notify_all()

    def _judge(self) -> None:
        """Look once, before the first step can change anything, whether somebody else has."""
        with self._changed:
            if self._spoiled is None:
                tensors = [source for source in self._sources if isinstance(source, LiveTensor) and source.deferrable]
                self._spoiled = [source.path for source in tensors if source.changed]

    def _help_until(self, done: Callable[[], bool]) -> None:
        while not done() and self._workers.help():
            pass
        with self._changed:
            self._changed.wait_for(lambda: done() or self._error is not None)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise SaveFailedError(f"the state could not be copied: {self._error!r}") from self._error
