"""Acting on retention's plan: read the catalog, plan, prune, demote, sweep, and say what went and why."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from milepost.errors import DiskFullError, MilepostError
from milepost.policy.budget import DiskLimit
from milepost.policy.retention import Facts, KeepBest, KeepRule, RetentionPlan, best, plan_retention, without_a_number
from milepost.quantities import format_size
from milepost.records import Checkpoint
from milepost.storage.backend import Backend
from milepost.storage.catalog import Catalog, read_catalog
from milepost.storage.commit import rewrite_manifest
from milepost.storage.edits import editing
from milepost.storage.layout import RunFolder
from milepost.storage.levels import demote
from milepost.storage.log import Event, record, unexpired
from milepost.storage.manifest import Manifest
from milepost.storage.pointers import point
from milepost.storage.sweep import release_superseded, sweep_trash
from milepost.storage.trash import discard, sweep_to
from milepost.storage.usage import disk_size, other_bytes, trash_bytes

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
    """Keeps a run's folder as its rules ask. ``resumed_from`` is protected until a newer checkpoint is durable.

    What is pruned stays in the trash for ``grace`` seconds. ``limited`` says whether a rule limits the disk space,
    ``active`` whether the run has begun: before, its checkpoints are not verified, and a changed manifest prunes none.
    """

    def __init__(self, run: RunFolder, backend: Backend, rules: tuple[KeepRule, ...], *, grace: float = 0.0) -> None:
        self._run = run
        self._backend = backend
        self.rules = rules
        self.grace = grace
        self.limited = any(isinstance(rule, DiskLimit) for rule in rules)
        self._warned: set[str] = set()
        self.resumed_from: str | None = None
        self.active = False

    def plan(self, run_id: str | None, next_bytes: int | None = None) -> RetentionPlan:
        """What the rules ask for now; nothing is done. By default the next checkpoint is expected to be like the last.

        Raises OSError.
        """
        catalog = read_catalog(self._run.path)
        facts = Facts(run_id=run_id, resumed_from=self.resumed_from, now=time.time())
        if self.limited:
            full = [checkpoint.size for checkpoint in catalog.checkpoints if checkpoint.resumable]
            facts = replace(
                facts,
                next_bytes=next_bytes if next_bytes is not None else full[-1] if full else 0,
                other_bytes=other_bytes(self._run, catalog),
                disk_bytes=disk_size(self._run.path),
            )
        return plan_retention(catalog.checkpoints, self.rules, facts)

    def make_way(self, run_id: str, needed: int) -> None:
        """Before a commit of ``needed`` bytes: let go what the disk budget does not leave room for.

        Raises DiskFullError, with everything as it was, where nothing that may go makes room enough; OSError.
        """
        with editing(self._run):
            plan = self.plan(run_id, needed)
            if plan.limit is None:
                return
            if plan.short:
                raise DiskFullError(self._too_small(plan, needed), path=self._run.path, needed=needed, free=plan.limit)
            self.act(plan)

    def tidy(self, run_id: str | None) -> None:
        """Do what the rules ask for, and give the bytes back. A failure is a warning: it costs no save."""
        try:
            with editing(self._run):
                self._warn_of_scores()
                self.act(self.plan(run_id))
        except (OSError, MilepostError) as error:
            logger.warning("pruning in %s stopped (%s); it is tried again after the next save", self._run.path, error)

    def act(self, plan: RetentionPlan) -> None:
        """Do what a plan says: prune, sweep, demote. Call it within ``editing``. Raises OSError, MilepostError."""
        self._point(plan.keep)
        going = [decision for decision in plan.decisions if not decision.reasons]
        for decision in going:
            logger.info("pruning %s: %s", decision.checkpoint.path, decision.against)
        pairs = [(decision.checkpoint, decision.against) for decision in going]
        discard(self._run, self._backend, pairs, now=time.time(), grace=self.grace)
        self._sweep(plan)
        for checkpoint in plan.demote:
            decision = plan.about(checkpoint)
            logger.info("demoting %s to its %s: %s", checkpoint.path, decision.level.value, decision.against)
            event = Event(time.time(), "demoted", checkpoint.step, decision.against, decision.freed)
            record(self._run, self._backend, [event])
            demote(self._run, self._backend, checkpoint, decision.level)

    def committed(self, checkpoint: Checkpoint) -> None:
        """Act on a new checkpoint: what a rewind left aside is trash from now on, and the rules are asked again."""
        self.resumed_from = None
        try:
            release_superseded(self._run, self._backend, checkpoint.serial)
        except OSError as error:
            logger.warning("%s could not be cleared (%s)", self._run.superseded, error)
        self.tidy(checkpoint.run_id)

    def change(self, checkpoint: Checkpoint, fields: Mapping[str, Any]) -> None:
        """Rewrite fields of a checkpoint's manifest (``metrics`` are added to it), and ask an active keeper's rules."""

        def changed(manifest: Manifest) -> Manifest:
            metrics = {**manifest.metrics, **fields.get("metrics", {})}
            return replace(manifest, **{**fields, "metrics": metrics})

        with editing(self._run):
            if "pinned" in fields:
                what = "pinned" if fields["pinned"] else "unpinned"
                record(self._run, self._backend, [Event(time.time(), what, checkpoint.step)])
            rewrite_manifest(self._backend, checkpoint.path, changed)
        if self.active:
            self.tidy(checkpoint.run_id)

    def best(self, metric: str, mode: str | None) -> Checkpoint | None:
        """The checkpoint with the best score. Raises ValueError if neither ``mode`` nor a rule says what is better."""
        modes = {rule.mode for rule in self.rules if isinstance(rule, KeepBest) and rule.metric == metric}
        if mode is None and len(modes) != 1:
            raise ValueError(f"best({metric!r}): no rule says whether less or more is better; say mode='min' or 'max'")
        return best(read_catalog(self._run.path).checkpoints, metric, mode or modes.pop())

    def _sweep(self, plan: RetentionPlan) -> None:
        sweep_trash(self._run, self._backend, unexpired(self._run, time.time()))
        if plan.trash_room is not None and trash_bytes(self._run) > plan.trash_room:
            sweep_to(self._run, self._backend, plan.trash_room, "the disk budget needs its bytes")

    def _point(self, kept: Sequence[Checkpoint]) -> None:
        # Before anything goes, so that neither ever names what is gone; and never a reason to stop.
        rule = next((rule for rule in self.rules if isinstance(rule, KeepBest)), None)
        chosen = best(kept, rule.metric, rule.mode) if rule is not None else None
        with suppress(OSError):
            point(self._run, self._backend, "latest", kept[-1].name if kept else None)
            point(self._run, self._backend, "best", None if chosen is None else chosen.name)

    def _too_small(self, plan: RetentionPlan, needed: int) -> str:
        catalog: Catalog = read_catalog(self._run.path)
        bound = [decision for decision in plan.decisions if decision.bound]
        held = sum(decision.size for decision in bound)
        names = ", ".join(f"{each.checkpoint.name} ({'; '.join(each.reasons[:1])})" for each in bound[-4:]) or "nothing"
        return (
            f"the disk budget of {format_size(plan.limit or 0)} leaves no room for the next checkpoint: it needs about "
            f"{format_size(needed)}, what must stay takes {format_size(held)} ({names}), and other files of "
            f"{self._run.path} take {format_size(other_bytes(self._run, catalog))}. It is short of "
            f"{format_size(plan.short)}. Unpin a checkpoint, or allow more."
        )

    def _warn_of_scores(self) -> None:
        checkpoints = read_catalog(self._run.path).checkpoints
        for rule in self.rules:
            if isinstance(rule, KeepBest) and rule.metric not in self._warned:
                bad = without_a_number(checkpoints, rule.metric, rule.mode)
                if bad:
                    self._warned.add(rule.metric)
                    logger.warning(
                        "%s of %s is no usable score; such checkpoints rank worst", rule.metric, bad[-1].name
                    )
