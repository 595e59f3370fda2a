"""Acting on retention's plan: read the catalog, plan, prune, sweep, and say what went and why."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from milepost.policy.retention import Facts, KeepBest, KeepRule, RetentionPlan, best, plan_retention, without_a_number
from milepost.records import Checkpoint
from milepost.storage.backend import Backend
from milepost.storage.catalog import read_catalog
from milepost.storage.commit import rewrite_manifest
from milepost.storage.layout import RunFolder
from milepost.storage.manifest import Manifest
from milepost.storage.sweep import prune, release_superseded, sweep_trash

logger = logging.getLogger("milepost")


def as_keep_rules(keep: KeepRule | Sequence[KeepRule] | None) -> tuple[KeepRule, ...]:
    """Rules from one rule, a list of them, or None. Raises TypeError for anything that is not a rule."""
    rules = () if keep is None else tuple(keep) if isinstance(keep, list | tuple) else (keep,)
    for rule in rules:
        if not callable(getattr(rule, "reasons_to_keep", None)) or isinstance(rule, type):
            raise TypeError(
                f"keep: {rule!r} is not a rule; use KeepLast(2), KeepBest(1, 'val_loss'), … or a list of them"
            )
    return rules


class Keeper:
    """Keeps a run's folder as its rules ask. ``resumed_from`` is protected until a newer checkpoint is durable."""

    def __init__(self, run: RunFolder, backend: Backend, rules: tuple[KeepRule, ...]) -> None:
        self._run = run
        self._backend = backend
        self._rules = rules
        self._warned: set[str] = set()
        self.resumed_from: str | None = None

    def plan(self, run_id: str) -> RetentionPlan:
        """What the rules ask for now; nothing is done."""
        facts = Facts(run_id=run_id, resumed_from=self.resumed_from, now=time.time())
        return plan_retention(read_catalog(self._run.path).checkpoints, self._rules, facts)

    def tidy(self, run_id: str) -> None:
        """Prune what no rule wants, and give its bytes back. A failure is a warning: it costs no save."""
        try:
            self._warn_of_scores()
            doomed = self.plan(run_id).prune
            for checkpoint in doomed:
                logger.info("pruning %s: no rule keeps it", checkpoint.path)
            prune(self._run, self._backend, doomed)
            sweep_trash(self._run, self._backend)
        except OSError as error:
            logger.warning("pruning in %s stopped (%s); it is tried again after the next save", self._run.path, error)

    def committed(self, checkpoint: Checkpoint) -> None:
        """Act on a new checkpoint: what a rewind left aside is trash from now on, and the rules are asked again."""
        self.resumed_from = None
        try:
            release_superseded(self._run, self._backend, checkpoint.serial)
        except OSError as error:
            logger.warning("%s could not be cleared (%s)", self._run.superseded, error)
        self.tidy(checkpoint.run_id)

    def change(self, checkpoint: Checkpoint, fields: Mapping[str, Any]) -> None:
        """Rewrite fields of a checkpoint's manifest (``metrics`` are added to it), and ask the rules again."""

        def changed(manifest: Manifest) -> Manifest:
            metrics = {**manifest.metrics, **fields.get("metrics", {})}
            return replace(manifest, **{**fields, "metrics": metrics})

        rewrite_manifest(self._backend, checkpoint.path, changed)
        self.tidy(checkpoint.run_id)

    def best(self, metric: str, mode: str | None) -> Checkpoint | None:
        """The checkpoint with the best score. Raises ValueError if neither ``mode`` nor a rule says what is better."""
        modes = {rule.mode for rule in self._rules if isinstance(rule, KeepBest) and rule.metric == metric}
        if mode is None and len(modes) != 1:
            raise ValueError(f"best({metric!r}): no rule says whether less or more is better; say mode='min' or 'max'")
        return best(read_catalog(self._run.path).checkpoints, metric, mode or modes.pop())

    def _warn_of_scores(self) -> None:
        checkpoints = read_catalog(self._run.path).checkpoints
        for rule in self._rules:
            if isinstance(rule, KeepBest) and rule.metric not in self._warned:
                bad = without_a_number(checkpoints, rule.metric, rule.mode)
                if bad:
                    self._warned.add(rule.metric)
                    logger.warning(
                        "%s of %s is no usable score; such checkpoints rank worst", rule.metric, bad[-1].name
                    )
