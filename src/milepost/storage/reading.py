"""Listed files of a checkpoint read in parallel, straight to where their bytes belong, digests checked on the way."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from milepost.errors import CorruptCheckpointError
from milepost.memory import cores
from milepost.storage.digests import FileRecord

# So much is read at once: it is still in the processor's cache when its digest is taken.
_AT_ONCE = 1024 * 1024
_MOST_BUFFERS = 512
_REASONS = {
    errno.ENOENT: "is missing",
    errno.ELOOP: "is a symbolic link, and those are not followed",
    errno.ENOTDIR: "does not lie in a folder (symbolic links are not followed)",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file from its byte ``start`` on, as many as ``target`` has, and where they go."""

    start: int
    target: memoryview

    @property
    def end(self) -> int:
        """Where in the file they end."""
        return self.start + self.target.nbytes


@dataclass
class Reading:
    """Some files of a checkpoint, to be read. ``problems`` are the faults found, by file, the first of each.

    With ``digests`` every chunk that is read is checked; with ``rest`` those too from which nothing is wanted.
    ``on_bytes`` is told the number of bytes each time some were read, in any thread, one at a time.
    """

    folder: Path
    records: Mapping[str, FileRecord]
    digests: bool
    rest: bool
    on_bytes: Callable[[int], None] | None = None
    problems: dict[str, str] = field(default_factory=dict)

    def read(self, spans: Mapping[str, Sequence[Span]]) -> None:
        """Read all files, or what is wanted of them. Raises CorruptCheckpointError naming every damaged one."""
        self._lock = threading.Lock()
        self._local = threading.local()
        self._unread = True
        with contextlib.ExitStack() as stack:
            jobs = []
            for name, record in self.records.items():
                try:
                    descriptor = open_listed(self.folder, name, record)
                except CorruptCheckpointError as error:
                    self._fault(name, error.problems[0], unread=error.unread)
                    continue
                stack.callback(os.close, descriptor)
                jobs += [(name, descriptor, job) for job in self._jobs(record, spans.get(name, ()))]
            if len(jobs) <= 2:
                for job in jobs:
                    self._do(*job)
            else:
                with ThreadPoolExecutor(min(4, max(2, cores())), thread_name_prefix="milepost-read") as pool:
                    for _ in pool.map(lambda job: self._do(*job), jobs):
                        pass
        if self.problems:
            problems = [self.problems[name] for name in self.records if name in self.problems]
            text = f"{self.folder}: " + "; ".join(problems)
            raise CorruptCheckpointError(text, path=self.folder, problems=problems, unread=self._unread)

    def _jobs(self, record: FileRecord, spans: Sequence[Span]) -> Iterator[_Part]:
        ordered = sorted((span for span in spans if span.target.nbytes), key=lambda span: span.start)
        first = 0
        for number in range(-(-record.size // record.chunk)):
            start = number * record.chunk
            end = min(start + record.chunk, record.size)
            while first < len(ordered) and ordered[first].end <= start:
                first += 1
            inside = []
            for span in ordered[first:]:
                if span.start >= end:
                    break
                low, high = max(span.start, start), min(span.end, end)
                inside.append(Span(low, span.target[low - span.start : high - span.start]))
            if inside or (self.digests and self.rest):
                yield _Part(start, end, inside, record.digests[number] if self.digests else None)

    def _do(self, name: str, descriptor: int, part: _Part) -> None:
        if name in self.problems:
            return
        try:
            whole = part.read(descriptor, self._scratch())
        except OSError as error:
            self._fault(name, f"{name} cannot be read ({error.strerror})", unread=True)
            return
        if whole is None:
            self._fault(name, f"{name} ends before its size")
        elif not whole:
            self._fault(name, f"{name} differs from its digest between bytes {part.start} and {part.end}")
        elif self.on_bytes is not None:
            with self._lock:
                self.on_bytes(part.end - part.start)

    def _fault(self, name: str, what: str, *, unread: bool = False) -> None:
        with self._lock:
            self._unread &= unread
            self.problems.setdefault(name, what)

    def _scratch(self) -> memoryview:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = memoryview(bytearray(_AT_ONCE))
        scratch: memoryview = self._local.scratch
        return scratch


@dataclass(frozen=True, slots=True)
class _Part:
    """One chunk of a file: what is wanted of it, in order, and the digest of all of it if that is to be checked."""

    start: int
    end: int
    spans: Sequence[Span]
    digest: str | None

    def read(self, descriptor: int, scratch: memoryview) -> bool | None:
        """Whether it is what its digest says; None where the file ends too early. Raises OSError."""
        hasher = xxhash.xxh3_128()
        for at, buffers in self._batches(scratch):
            if not _read_all(descriptor, buffers, at):
                return None
            if self.digest is not None:
                for buffer in buffers:
                    hasher.update(buffer)
        return self.digest is None or hasher.hexdigest() == self.digest

    def _batches(self, scratch: memoryview) -> Iterator[tuple[int, list[memoryview]]]:
        """Buffers that follow each other in the file, and where the first begins; scratch is used once in each."""
        start, size, batch = self.start, 0, list[memoryview]()
        for at, buffer in self._pieces(scratch):
            if batch and (at != start + size or size >= _AT_ONCE or len(batch) >= _MOST_BUFFERS):
                yield start, batch
                batch = []
            if not batch:
                start, size = at, 0
            batch.append(buffer)
            size += buffer.nbytes
            if buffer.obj is scratch.obj:
                yield start, batch
                batch = []
        if batch:
            yield start, batch

    def _pieces(self, scratch: memoryview) -> Iterator[tuple[int, memoryview]]:
        at = self.start
        for span in (*self.spans, Span(self.end, memoryview(b""))):
            while self.digest is not None and at < span.start:
                length = min(span.start - at, scratch.nbytes)
                yield at, scratch[:length]
                at += length
            for begin in range(0, span.target.nbytes, _AT_ONCE):
                yield span.start + begin, span.target[begin : begin + _AT_ONCE]
            at = max(at, span.end)


def open_listed(folder: Path, name: str, record: FileRecord) -> int:
    """A descriptor of one listed file. Raises CorruptCheckpointError: absent, not a plain file, another size."""
    try:
        descriptor = _open_plain(folder, name)
    except OSError as error:
        known = _REASONS.get(error.errno or 0)
        what = f"{name} {known or f'cannot be read ({error.strerror})'}"
        raise CorruptCheckpointError(f"{folder}/{what}", path=folder, problems=[what], unread=known is None) from error
    size = os.fstat(descriptor).st_size
    if size != record.size:
        os.close(descriptor)
        raise fault(folder, f"{name} has {size} bytes, the manifest says {record.size}")
    return descriptor


def fault(folder: Path, what: str) -> CorruptCheckpointError:
    """The error for one fault of a checkpoint, which begins with the file's name."""
    return CorruptCheckpointError(f"{folder}/{what}", path=folder, problems=[what])


def _read_all(descriptor: int, buffers: list[memoryview], at: int) -> bool:
    rest = buffers
    while rest:
        count = os.preadv(descriptor, rest, at)
        if not count:
            return False
        at += count
        while rest and count >= rest[0].nbytes:
            count -= rest[0].nbytes
            rest = rest[1:]
        if count:
            rest = [rest[0][count:], *rest[1:]]
    return True


def _open_plain(folder: Path, name: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    at = os.open(folder, flags | os.O_DIRECTORY)
    for part in name.split("/")[:-1]:
        try:
            inner = os.open(part, flags | os.O_DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    try:
        # Not blocking: opening a named pipe would wait for its writer.
        descriptor = os.open(name.rsplit("/", 1)[-1], flags | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise fault(folder, f"{name} is not a plain file")
    return descriptor
