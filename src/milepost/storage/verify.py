"""Are a checkpoint's bytes what its manifest says? Reads files, follows no symbolic link, runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from milepost.errors import CorruptCheckpointError, UnsupportedFormatError
from milepost.storage.manifest import read_manifest
from milepost.storage.reading import Reading

VerifyLevel = Literal["digests", "sizes"]


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
    problems: list[str] = []
    if level == "sizes" and manifest.damage is not None:
        # Looking at all bytes, below, knows better.
        problems.append(f"a resume passed it over: {manifest.damage}")
    try:
        Reading(path, manifest.files, digests=level == "digests", rest=True, on_bytes=on_bytes).read({})
    except CorruptCheckpointError as error:
        problems += error.problems
    return problems
