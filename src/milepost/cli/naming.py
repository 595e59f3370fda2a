"""The checkpoint that a word on the command line means: a step, ``latest``, ``best``, or a folder's path."""

from __future__ import annotations

from pathlib import Path

from milepost.cli.choosing import checkpoint_folder
from milepost.cli.reporting import existing_run
from milepost.cli.retention import stored_rules
from milepost.errors import CheckpointNotFoundError, ConfigError
from milepost.policy.retention import KeepBest, best
from milepost.storage.catalog import find_checkpoint, read_catalog
from milepost.storage.layout import MANIFEST


def named_checkpoint(run: Path, word: str, metric: str | None = None, mode: str | None = None) -> Path:
    """The folder of a run's checkpoint: of a step, or ``latest``, ``best`` (by ``metric``).

    Raises CheckpointNotFoundError naming the steps there are, ConfigError for a word that means nothing and for a
    best that nothing says how to find.
    """
    if word == "latest":
        return checkpoint_folder(run, None)
    if word == "best":
        return _best(run, metric, mode)
    if word.isascii() and word.isdecimal():
        return checkpoint_folder(run, int(word))
    raise ConfigError(f"{word!r} is no checkpoint of a run: give a step, latest or best")


def given_checkpoint(path: Path) -> Path:
    """The checkpoint in a folder that somebody names. Raises CheckpointNotFoundError."""
    # A link that somebody names is followed; links inside a checkpoint are not.
    folder = existing_run(path).resolve()
    find_checkpoint(folder)
    return folder


def is_checkpoint(path: Path) -> bool:
    """Whether the folder is a checkpoint, and not a run with checkpoints in it."""
    return (path.expanduser() / MANIFEST).is_file()


def _best(run: Path, metric: str | None, mode: str | None) -> Path:
    catalog = read_catalog(run)
    stored = None if catalog.newest is None else stored_rules(catalog.newest)
    rules = {rule.metric: rule.mode for rule in stored or () if isinstance(rule, KeepBest)}
    if metric is None and len(rules) != 1:
        known = sorted({name for checkpoint in catalog.checkpoints for name in checkpoint.metrics})
        raise ConfigError(
            f"no rule of {run} says by which metric a checkpoint is the best; say --metric, one of "
            f"{', '.join(known) or 'none'}"
        )
    metric = next(iter(rules)) if metric is None else metric
    found = best(catalog.checkpoints, metric, mode or rules.get(metric, "min"))
    if found is None:
        raise CheckpointNotFoundError(f"{run} has no checkpoint with the metric {metric!r}", path=run)
    return found.path
