"""What memory and disk can do at best: the copy limit, the disk limit, the read limits. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

THREADS = 2
COPY_PIECE = 8 << 20
FILE_PIECE = 16 << 20
PAGE = 4096

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")


def aligned_buffer(nbytes: int) -> Bytes:
    """Memory of its own, at a page's start, a whole number of pages long, each of them touched."""
    buffer = np.frombuffer(mmap.mmap(-1, -(-nbytes // PAGE) * PAGE), dtype=np.uint8)
    buffer[::PAGE] = 1
    return buffer


def bytes_of(tensors: Iterable[torch.Tensor]) -> list[Bytes]:
    """The bytes of tensors in host memory, in place."""
    return [tensor.detach().reshape(-1).view(torch.uint8).numpy() for tensor in tensors]


def in_threads(work: Callable[[T], object], pieces: Sequence[T]) -> None:
    """Do ``work`` for every piece, two at a time; raises the first error."""
    waiting = iter(pieces)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            # One shared list iterator: taking the next piece is atomic.
            for piece in waiting:
                work(piece)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def copy_seconds(sources: Sequence[Bytes], target: Bytes) -> float:
    """The copy limit: the sources copied into a kept buffer by two threads, in pieces of 8 MiB."""
    pieces: list[tuple[Bytes, Bytes]] = []
    at = 0
    for source in sources:
        for begin in range(0, source.size, COPY_PIECE):
            part = source[begin : begin + COPY_PIECE]
            pieces.append((target[at : at + part.size], part))
            at += part.size
    begin_at = time.perf_counter()
    in_threads(lambda piece: np.copyto(piece[0], piece[1]), pieces)
    return time.perf_counter() - begin_at


def write_direct(path: Path, buffer: Bytes) -> bool:
    """A new file of the buffer's bytes, durable when this returns: preallocated, past the cache, synced, folder too.

    Gives False where the file system takes no O_DIRECT and the bytes went through the cache.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    direct = True
    try:
        descriptor = os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The refused call has made the file all the same.
        path.unlink(missing_ok=True)
        descriptor, direct = os.open(path, flags), False
    try:
        os.posix_fallocate(descriptor, 0, buffer.size)
        rest = _view(buffer)
        while rest.nbytes:
            rest = rest[os.write(descriptor, rest[:FILE_PIECE]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)
    return direct


def sync_folder(path: Path) -> None:
    """Force the folder's names to the disk."""
    sync_file(path)


def sync_file(path: Path) -> None:
    """Force one file (or folder) to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Force everything below ``path`` to the disk, names too: what a tool that does not sync still owes."""
    for found in sorted(path.rglob("*")):
        sync_file(found)
    sync_file(path)
    sync_folder(path.parent)


def drop_from_cache(paths: Iterable[Path]) -> float:
    """Ask the system to forget the files' pages; gives the share that it kept nevertheless, as mincore tells."""
    kept = total = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            resident, pages = pages_in_cache(descriptor)
        finally:
            os.close(descriptor)
        kept, total = kept + resident, total + pages
    return kept / total if total else 0.0


def pages_in_cache(descriptor: int) -> tuple[int, int]:
    """How many of a file's pages are in the page cache, and how many it has."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 0, 0
    pages = -(-size // mmap.PAGESIZE)
    with contextlib.closing(mmap.mmap(descriptor, size, prot=mmap.PROT_READ)) as mapped:
        view = np.frombuffer(mapped, dtype=np.uint8)
        found = np.zeros(pages, dtype=np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        address, vector = ctypes.c_void_p(view.ctypes.data), ctypes.c_void_p(found.ctypes.data)
        # The mapping cannot be closed while an array still looks at it.
        del view
        if libc.mincore(address, ctypes.c_size_t(size), vector):
            raise OSError(ctypes.get_errno(), "mincore failed")
    return int((found & 1).sum()), pages


def read_seconds(paths: Sequence[Path]) -> float:
    """The read limit: the files read by two threads into memory that nobody has touched before."""
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    sizes = [os.fstat(descriptor).st_size for descriptor in descriptors]
    pieces: list[tuple[Bytes, int, int]] = []
    with contextlib.ExitStack() as stack:
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        begin_at = time.perf_counter()
        target = np.frombuffer(mmap.mmap(-1, max(1, sum(sizes))), dtype=np.uint8)
        at = 0
        for descriptor, size in zip(descriptors, sizes, strict=True):
            for begin in range(0, size, FILE_PIECE):
                length = min(FILE_PIECE, size - begin)
                pieces.append((target[at : at + length], descriptor, begin))
                at += length
        in_threads(_fill, pieces)
        return time.perf_counter() - begin_at


def _fill(piece: tuple[Bytes, int, int]) -> None:
    target, descriptor, offset = piece
    rest = _view(target)
    while rest.nbytes:
        got = os.preadv(descriptor, [rest], offset)
        if got == 0:
            raise OSError(errno.EIO, "the file ended early")
        rest, offset = rest[got:], offset + got


def _view(buffer: Bytes) -> memoryview:
    # numpy's stubs declare the buffer protocol for newer Pythons only.
    exported: Any = buffer
    return memoryview(exported)
