"""What a backend promises."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class WritableFile(Protocol):
    """A new file, written from its start to its end."""

    @property
    def direct(self) -> bool:
        """Whether all of it, but for a last part of a block, went to the disk past the system's cache."""

    def write(self, data: memoryview | bytes) -> None:
        """Append all of ``data``. Raises OSError."""

    def sync(self) -> None:
        """Return only when all that was written survives a power failure. Raises OSError."""

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing."""


class Backend(Protocol):
    """Every operation that changes the disk. Each may raise OSError, and each is one step of a commit.

    Contract: ``rename`` is atomic (seen before or after, never between) and refuses, with FileExistsError or
    OSError(ENOTEMPTY), a target folder that is not empty; a file that is the target is replaced. Names become
    durable with ``sync_folder`` of the folder that holds them. No change follows a symbolic link at a path's end.
    """

    def create(self, path: Path, size: int | None = None) -> WritableFile:
        """A new file for writing; FileExistsError if anything has that name.

        ``size`` announces a large file of so many bytes, which may be given its place at once, and be written past
        the system's cache as long as what is written begins at a page and is a multiple of 4096 bytes.
        """

    def make_folder(self, path: Path) -> None:
        """A new folder; FileExistsError if anything has that name."""

    def rename(self, source: Path, target: Path) -> None:
        """Move a file or folder within one file system, atomically."""

    def sync_folder(self, path: Path) -> None:
        """Return only when the names in the folder survive a power failure."""

    def remove_file(self, path: Path) -> None:
        """Remove a file or a symbolic link (never what it points to)."""

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end of a file, made if absent, and return only when that survives a power failure."""

    def link(self, path: Path, target: str) -> None:
        """A new symbolic link with the text ``target``; FileExistsError if anything has that name."""

    def free_bytes(self, path: Path) -> int:
        """Bytes that can still be written on the path's file system."""
