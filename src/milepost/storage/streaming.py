"""The bytes of an image brought together while they are written, in a few buffers: no copy of the state is made."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from milepost.memory import Arena
from milepost.records import TensorSource
from milepost.storage.digests import CHUNK, digest
from milepost.storage.image import Image

# Two are being filled while one is written: 48 MiB, of which no more is taken than the image has.
_BUFFERS = 3


class StreamedContent:
    """An image's bytes, copied from their sources chunk by chunk just ahead of the writer."""

    def __init__(self, image: Image, sources: Sequence[TensorSource]) -> None:
        self._image = image
        self._sources = sources
        self._digests: dict[int, str] = {}
        count = min(_BUFFERS, len(image.chunks))
        largest = max((chunk.length for chunk in image.chunks), default=0)
        self._buffers = [Arena(min(CHUNK, largest)).view for _ in range(count)]
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="milepost-stream") if count > 1 else None
        self._ahead: deque[tuple[int, Future[None]]] = deque()

    def chunk(self, number: int) -> memoryview:
        """A chunk's bytes; the ones after it are made ready meanwhile."""
        if self._pool is None:
            self._fill(number)
        else:
            if not self._ahead or self._ahead[0][0] != number:
                self._forget()
                self._ahead.append((number, self._pool.submit(self._fill, number)))
            self._ahead.popleft()[1].result()
            # The buffer of the chunk before this one is free now.
            following = self._ahead[-1][0] + 1 if self._ahead else number + 1
            while following < len(self._image.chunks) and following < number + len(self._buffers):
                self._ahead.append((following, self._pool.submit(self._fill, following)))
                following += 1
        return self._view(number)

    def digest(self, number: int) -> str:
        """The digest of a chunk that was asked for before."""
        return self._digests[number]

    def confirm(self) -> None:
        """Nothing: the state stays as it is while it is streamed."""

    def close(self) -> None:
        """Give the buffers and the thread back."""
        self._forget()
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _fill(self, number: int) -> None:
        chunk, view = self._image.chunks[number], self._view(number)
        for piece in chunk.pieces:
            at = piece.target - chunk.start
            self._sources[piece.source].copy_into(view[at : at + piece.length], piece.start)
        self._digests[number] = digest(view)

    def _view(self, number: int) -> memoryview:
        return self._buffers[number % len(self._buffers)][: self._image.chunks[number].length]

    def _forget(self) -> None:
        while self._ahead:
            future = self._ahead.popleft()[1]
            if not future.cancel():
                # It writes to a buffer that is about to have another use.
                future.exception()
