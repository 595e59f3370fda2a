"""What the verbs that keep, prune and explain share: the rules they go by, and the right to change a run's folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from milepost.errors import CheckpointNotFoundError, ConfigError, MilepostError, RunLockedError
from milepost.policy.plan import KeepRule, RetentionPlan
from milepost.records import Checkpoint
from milepost.storage.backend import Backend, LocalBackend
from milepost.storage.catalog import Catalog, read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.lock import RunLock
from milepost.storage.sweep import ensure_folder, recover

RunDir = Annotated[Path, typer.Argument(help="The run's folder (output_dir).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="RULE", help="A rule such as last=2 or best=1,metric=val_loss; any number of them."),
]


def given_rules(texts: Sequence[str] | None) -> list[KeepRule] | None:
    """The rules of ``--keep``; None if there are none. Raises ConfigError."""
    from milepost.recipes.rules import keep_rules_from_texts

    return keep_rules_from_texts(texts, "--keep") if texts else None


def stored_settings(newest: Checkpoint | None) -> dict[str, Any] | None:
    """The configuration that is stored in a checkpoint; None if there is none, or it cannot be read."""
    import yaml

    from milepost.storage.manifest import read_manifest
    from milepost.storage.reader import read_text

    if newest is None or newest.config is None:
        return None
    try:
        values = yaml.safe_load(read_text(newest.path, newest.config, read_manifest(newest.path)))
    except (MilepostError, OSError, KeyError, ValueError, yaml.YAMLError):
        # A listing is no place to fail over a file beside the weights; `verify` names it.
        return None
    return values if isinstance(values, dict) else None


def stored_rules(newest: Checkpoint | None) -> list[KeepRule] | None:
    """The keep rules of the configuration that is stored in a checkpoint; None if they are not known."""
    from milepost.recipes.rules import stored_keep_rules

    values = stored_settings(newest)
    try:
        return None if values is None else stored_keep_rules(values)
    except (MilepostError, ValueError, TypeError):
        return None


def plan_of(folder: Path, rules: Sequence[KeepRule]) -> RetentionPlan:
    """What rules ask for in a run's folder, for the run of its newest checkpoint. Raises OSError."""
    from milepost.keeping import Keeper

    newest = read_catalog(folder).newest
    keeper = Keeper(RunFolder(folder), LocalBackend(), tuple(rules))
    return keeper.plan(None if newest is None else newest.run_id)


@contextmanager
def changing(folder: Path, *, recovering: bool = True) -> Iterator[tuple[RunFolder, Backend]]:
    """A run's folder, to change it: with the run's lock, or beside the live run that holds it.

    Only what is done within ``edits.editing``, the catalog being read again in there, is safe beside a live run. What
    a killed run left is put right first if ``recovering``, which gives trash back whose time is over.
    """
    run, backend = RunFolder(folder.resolve()), LocalBackend()
    ensure_folder(backend, run.control)
    lock = None
    # Beside a live run there is nothing to put right: it does that itself.
    with suppress(RunLockedError):
        lock = RunLock(run.path, run.lock)
    try:
        if lock is not None and recovering:
            recover(run, backend)
        yield run, backend
    finally:
        if lock is not None:
            lock.release()


def checkpoint_at(run: RunFolder, step: int | None) -> tuple[Catalog, Checkpoint]:
    """The catalog as it is now, and the checkpoint of a step, or the newest. Raises CheckpointNotFoundError."""
    catalog = read_catalog(run.path)
    found = catalog.newest if step is None else catalog.at(step)
    if found is None:
        there = ", ".join(str(each.step) for each in catalog.checkpoints) or "none"
        wanted = "no checkpoints" if step is None else f"no checkpoint of step {step}"
        raise CheckpointNotFoundError(f"{run.path} has {wanted}. Steps that it has: {there}.", path=run.path, step=step)
    return catalog, found


def parsed_duration(text: float | str, option: str) -> float:
    """A length of time that an option gives. Raises ConfigError."""
    from milepost.quantities import parse_duration

    try:
        return parse_duration(text, option)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error), key=option, value=text) from None
