"""Every exception that Milepost raises on purpose.

An error says what was asked, where, and what to do next; its facts are attributes too, so that programs need not
parse the sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class MilepostError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(MilepostError, ValueError):
    """A setting that cannot work, found before any work was done."""

    def __init__(self, message: str, *, key: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.key = key
        self.value = value


class CheckpointNotFoundError(MilepostError):
    """The checkpoint that was asked for is not in the catalog."""

    def __init__(self, message: str, *, path: Path | None = None, step: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.step = step


class CheckpointExistsError(MilepostError):
    """The run folder already holds checkpoints, and nothing said what should become of them."""

    def __init__(self, message: str, *, path: Path | None = None, step: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.step = step


class CorruptCheckpointError(MilepostError):
    """A checkpoint's bytes are not what its manifest says; ``problems`` holds one sentence for each fault.

    ``unread`` says that the system could not read them, which may be otherwise another time.
    """

    def __init__(
        self, message: str, *, path: Path | None = None, problems: Sequence[str] = (), unread: bool = False
    ) -> None:
        super().__init__(message)
        self.path = path
        self.problems = tuple(problems)
        self.unread = unread


class IncompatibleStateError(MilepostError):
    """The checkpoint is whole, but does not fit the live objects; nothing was changed."""

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.mismatched = tuple(mismatched)


class UnsupportedStateError(MilepostError, TypeError):
    """A value in ``state`` that cannot be stored without pickle; ``path`` is its full place in the state."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class UnsupportedFormatError(MilepostError):
    """The checkpoint was written by a newer major version of the format."""

    def __init__(self, message: str, *, path: Path | None = None, version: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.version = version


class RunLockedError(MilepostError):
    """Another live manager writes in this run folder."""

    def __init__(self, message: str, *, path: Path | None = None, pid: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.pid = pid


class SaveFailedError(MilepostError):
    """A save did not become durable; older checkpoints are untouched. The cause is chained."""

    def __init__(self, message: str, *, path: Path | None = None, step: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.step = step


class DiskFullError(SaveFailedError):
    """A save did not fit on the disk, also after the trash was emptied. Sizes are in bytes."""

    def __init__(
        self,
        message: str,
        *,
        path: Path | None = None,
        step: int | None = None,
        needed: int | None = None,
        free: int | None = None,
    ) -> None:
        super().__init__(message, path=path, step=step)
        self.needed = needed
        self.free = free
