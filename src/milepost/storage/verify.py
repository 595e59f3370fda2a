"""Are a checkpoint's bytes what its manifest says? Reads files, follows no symbolic link, runs nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Literal

from milepost.errors import CorruptCheckpointError, UnsupportedFormatError
from milepost.storage.digests import FileRecord, digest
from milepost.storage.manifest import read_manifest

VerifyLevel = Literal["digests", "sizes"]
_REASONS = {
    errno.ENOENT: "is missing",
    errno.ELOOP: "is a symbolic link, and those are not followed",
    errno.ENOTDIR: "does not lie in a folder (symbolic links are not followed)",
}


def verify_checkpoint(
    path: Path, *, level: VerifyLevel = "digests", on_bytes: Callable[[int], None] | None = None
) -> list[str]:
    """One sentence for each fault of the checkpoint in ``path``; none when it is whole.

    ``on_bytes`` is told the number of bytes each time some were checked. Raises FileNotFoundError without a manifest.
    """
    try:
        manifest = read_manifest(path)
    except CorruptCheckpointError as error:
        return list(error.problems)
    except UnsupportedFormatError as error:
        return [str(error)]
    problems = [] if manifest.damage is None else [f"a resume passed it over: {manifest.damage}"]
    for name, record in manifest.files.items():
        try:
            for piece in read_verified(path, name, record, digests=level == "digests"):
                if on_bytes is not None:
                    on_bytes(piece)
        except CorruptCheckpointError as error:
            problems += error.problems
    return problems


def read_verified(
    folder: Path, name: str, record: FileRecord, *, digests: bool, into: memoryview | None = None
) -> Iterator[int]:
    """Read one listed file chunk by chunk, giving each chunk's size once it is checked.

    ``into``, of the file's size, receives the bytes; without it and without ``digests`` nothing is read. Raises
    CorruptCheckpointError at the first fault: absent, not a plain file, another size, another digest, unreadable.
    """
    try:
        with open(open_plain(folder, name), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if found.st_size != record.size:
                raise _fault(folder, name, f"has {found.st_size} bytes, the manifest says {record.size}")
            if not digests and into is None:
                yield record.size
                return
            target = memoryview(bytearray(min(record.chunk, record.size))) if into is None else into
            for index, expected in enumerate(record.digests):
                start = index * record.chunk
                length = min(record.chunk, record.size - start)
                chunk = target[:length] if into is None else target[start : start + length]
                _fill(file, chunk, folder, name)
                if digests and digest(chunk) != expected:
                    raise _fault(folder, name, f"differs from its digest between bytes {start} and {start + length}")
                yield length
    except OSError as error:
        raise unreadable(folder, name, error) from error


def _fill(file: FileIO, chunk: memoryview, folder: Path, name: str) -> None:
    done = 0
    while done < chunk.nbytes:
        count = file.readinto(chunk[done:])
        if not count:
            raise _fault(folder, name, "ends before its size")
        done += count


def open_plain(folder: Path, name: str) -> int:
    """A descriptor of a plain file in a checkpoint, no link followed. Raises OSError, CorruptCheckpointError."""
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
        raise _fault(folder, name, "is not a plain file")
    return descriptor


def unreadable(folder: Path, name: str, error: OSError) -> CorruptCheckpointError:
    """The error for a listed file that cannot be opened or read."""
    return _fault(folder, name, _REASONS.get(error.errno or 0, f"cannot be read ({error.strerror})"))


def _fault(folder: Path, name: str, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{folder / name} {what}", path=folder, problems=[f"{name} {what}"])
