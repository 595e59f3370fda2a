"""The trash: what was pruned, when and why, and how it comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from milepost.errors import CheckpointExistsError, CheckpointNotFoundError, CorruptCheckpointError, MilepostError
from milepost.records import Checkpoint
from milepost.storage.backend import Backend
from milepost.storage.commit import rewrite_manifest
from milepost.storage.edits import editing
from milepost.storage.layout import RunFolder, aside_name, parse_aside
from milepost.storage.log import Event, read_log, record
from milepost.storage.manifest import Manifest, read_manifest
from milepost.storage.sweep import bytes_in, prune, sweep_trash, trashed
from milepost.storage.verify import verify_checkpoint


@dataclass(frozen=True, slots=True)
class Trashed:
    """A checkpoint in the trash. ``since`` and ``until`` are in seconds since 1970 (UTC), ``until`` the grace's end."""

    step: int
    path: Path
    size: int
    serial: int
    since: float
    why: str
    until: float | None


def discard(
    run: RunFolder,
    backend: Backend,
    doomed: Sequence[tuple[Checkpoint, str]],
    *,
    now: float,
    grace: float = 0.0,
) -> None:
    """Move checkpoints to the trash, each for its reason, to stay there for ``grace`` seconds. Raises OSError."""
    if not doomed:
        return
    names = [aside_name(checkpoint.name, "pruned") for checkpoint, _ in doomed]
    until = now + grace if grace > 0 else None
    # Before the move: nothing lies in the trash without its reason and its time.
    record(
        run,
        backend,
        [
            Event(now, "pruned", checkpoint.step, why, checkpoint.size, name, until)
            for (checkpoint, why), name in zip(doomed, names, strict=True)
        ],
    )
    prune(run, backend, [checkpoint for checkpoint, _ in doomed], names)


def read_trash(run: RunFolder) -> list[Trashed]:
    """What is in the trash, what was pruned first coming first."""
    logged = {event.name: event for event in read_log(run) if event.what == "pruned"}
    found = []
    for path in trashed(run):
        try:
            serial = read_manifest(path).serial
            since = path.lstat().st_ctime
            size = bytes_in(path)
        except (OSError, MilepostError):
            continue
        event = logged.get(path.name)
        why, until = ("", None) if event is None else (event.why, event.until)
        step = parse_aside(path.name)
        if step is not None:
            found.append(Trashed(step, path, size, serial, since if event is None else event.time, why, until))
    return sorted(found, key=lambda entry: (entry.since, entry.serial))


def sweep_to(run: RunFolder, backend: Backend, room: int, why: str) -> None:
    """Give back the oldest trash until at most ``room`` bytes are left in it. Raises OSError."""
    spare, held = set(), 0
    for entry in reversed(read_trash(run)):
        held += entry.size
        if held > room:
            break
        spare.add(entry.path.name)
    sweep_trash(run, backend, spare, why)


def undelete(run: RunFolder, backend: Backend, step: int, *, now: float, pin: bool = True) -> Checkpoint:
    """Bring back what was last pruned of a step, and give its record; pinned, or the rules would prune it again.

    Raises CheckpointExistsError if there is a ``step_N`` again, CheckpointNotFoundError if the trash has none of this
    step, CorruptCheckpointError if its bytes are partly given back, OSError.
    """
    with editing(run):
        entries = read_trash(run)
        entry = next((each for each in reversed(entries) if each.step == step), None)
        if entry is None:
            raise CheckpointNotFoundError(_absent(run, step, entries), path=run.path, step=step)
        final = run.checkpoint(step)
        if final.is_symlink() or final.exists():
            raise CheckpointExistsError(
                f"{final} is there, so the one in the trash cannot come back under its name. Move it away first.",
                path=final,
                step=step,
            )
        problems = verify_checkpoint(entry.path, level="sizes")
        if problems:
            raise CorruptCheckpointError(
                f"{entry.path} cannot come back: {'; '.join(problems)}", path=entry.path, problems=problems
            )
        record(run, backend, [Event(now, "undeleted", step, "asked for", entry.size, entry.path.name)])
        if pin:
            rewrite_manifest(backend, entry.path, _pinned)
        backend.rename(entry.path, final)
        # The new place first: a power failure leaves it in one of the two.
        backend.sync_folder(run.path)
        backend.sync_folder(run.trash)
        return read_manifest(final).as_checkpoint(final)


def _pinned(manifest: Manifest) -> Manifest:
    return replace(manifest, pinned=True)


def _absent(run: RunFolder, step: int, entries: Sequence[Trashed]) -> str:
    there = ", ".join(str(each) for each in sorted({entry.step for entry in entries})) or "nothing"
    gone = [event for event in read_log(run) if event.step == step and event.what == "swept"]
    past = " Its bytes were given back; to keep them for a while, set trash_grace." if gone else ""
    return f"the trash of {run.path} has no checkpoint of step {step}; it has {there}.{past}"
