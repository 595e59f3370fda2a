"""The catalog: a run's checkpoints, read from their manifests and from nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from milepost.errors import CheckpointNotFoundError, CorruptCheckpointError, UnsupportedFormatError
from milepost.records import Checkpoint, Damaged
from milepost.storage.layout import MANIFEST, parse_step
from milepost.storage.manifest import Manifest, read_manifest


@dataclass(frozen=True, slots=True)
class Catalog:
    """A run's checkpoints in commit order, the newest last.

    ``damaged`` are folders with a manifest that cannot be used; ``ignored`` have a checkpoint's name but are none:
    no manifest in them, or a symbolic link.
    """

    checkpoints: tuple[Checkpoint, ...] = ()
    damaged: tuple[Damaged, ...] = ()
    ignored: tuple[Damaged, ...] = ()

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint of a step, or None."""
        return next((checkpoint for checkpoint in self.checkpoints if checkpoint.step == step), None)

    @property
    def folders(self) -> dict[int, Path]:
        """The folder of every step that has a manifest, readable or not."""
        whole = {checkpoint.step: checkpoint.path for checkpoint in self.checkpoints}
        return {**{entry.step: entry.path for entry in self.damaged}, **whole}

    @property
    def newest(self) -> Checkpoint | None:
        """The one committed last, whatever its step."""
        return self.checkpoints[-1] if self.checkpoints else None


def read_catalog(folder: Path) -> Catalog:
    """Read the catalog of a run folder; an absent folder has no checkpoints.

    Files, and names that are not exactly ``step_N``, are left out. Raises OSError if the folder cannot be listed.
    """
    checkpoints: list[Checkpoint] = []
    damaged: list[Damaged] = []
    ignored: list[Damaged] = []
    for step, path, linked in _step_folders(folder):
        if linked:
            ignored.append(Damaged(step, path, "it is a symbolic link, and those are not followed"))
            continue
        try:
            manifest = read_manifest(path)
            checkpoint = manifest.as_checkpoint(path)
        except FileNotFoundError:
            # Beside a live run a folder may be pruned between the listing and this look.
            if path.is_dir():
                ignored.append(Damaged(step, path, f"it has no {MANIFEST}"))
        except CorruptCheckpointError as error:
            damaged.append(Damaged(step, path, "; ".join(error.problems)))
        except UnsupportedFormatError as error:
            damaged.append(Damaged(step, path, f"written in the newer format {error.version}", error.version))
        else:
            if manifest.step != step:
                damaged.append(Damaged(step, path, f"its manifest belongs to step {manifest.step}"))
            elif manifest.damage is not None:
                damaged.append(Damaged(step, path, manifest.damage, passed_over=checkpoint))
            else:
                checkpoints.append(checkpoint)
    checkpoints.sort(key=lambda checkpoint: (checkpoint.serial, checkpoint.created, checkpoint.step))
    damaged.sort(key=lambda entry: entry.step)
    ignored.sort(key=lambda entry: entry.step)
    return Catalog(tuple(checkpoints), tuple(damaged), tuple(ignored))


def find_checkpoint(path: Path) -> tuple[Checkpoint, Manifest]:
    """The checkpoint in the folder ``path``, whatever the folder is called.

    Raises CheckpointNotFoundError where there is no manifest, CorruptCheckpointError, UnsupportedFormatError.
    """
    try:
        manifest = read_manifest(path)
    except FileNotFoundError:
        raise CheckpointNotFoundError(
            f"{path} is not a checkpoint: it has no milepost.json. Name a step_N folder of a run.", path=path
        ) from None
    return manifest.as_checkpoint(path), manifest


def newest_serial(catalog: Catalog) -> int:
    """The highest serial in use, 0 in an empty catalog."""
    passed_over = (entry.passed_over for entry in catalog.damaged)
    known = (*catalog.checkpoints, *(checkpoint for checkpoint in passed_over if checkpoint is not None))
    return max((checkpoint.serial for checkpoint in known), default=0)


def _step_folders(folder: Path) -> list[tuple[int, Path, bool]]:
    found = []
    for entry in _entries(folder):
        step = parse_step(entry.name)
        if step is not None and (entry.is_symlink() or entry.is_dir(follow_symlinks=False)):
            found.append((step, Path(entry.path), entry.is_symlink()))
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
