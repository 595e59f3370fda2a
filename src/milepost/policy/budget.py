"""A limit of the disk space that a run's folder may take, and what goes so that it is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from milepost.policy.arguments import level_argument
from milepost.policy.plan import Decision, Facts, RetentionPlan
from milepost.quantities import format_size, parse_size
from milepost.records import Checkpoint, Level

_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")


@runtime_checkable
class DiskLimit(Protocol):
    """A rule that says how much may lie on the disk, rather than what is wanted."""

    def allowed_bytes(self, facts: Facts) -> int | None:
        """The limit in bytes; None if the facts do not say enough."""


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """At no moment more than ``limit`` in the run's folder, the checkpoint being written and the trash included.

    ``limit`` is a size (``"500GB"``, or bytes) or a share of the whole disk (``"80%"``). Together with rules that want
    checkpoints it only limits them; alone it keeps all that fits, at ``level``. Where room is short, the trash goes
    first, then training states, then checkpoints: each time what the fewest rules want, the oldest first, and what
    a ``KeepBest`` wants last.
    """

    limit: int | str
    level: Level | str = Level.FULL

    def __post_init__(self) -> None:
        share = self._share()
        if share is None:
            parse_size(self.limit, "DiskBudget: limit")
        elif not 0 < share <= 1:
            raise ValueError(f"DiskBudget(limit={self.limit!r}): limit must be above 0% and at most 100%")
        object.__setattr__(self, "level", level_argument("DiskBudget", self.level))

    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        """All of them, which counts only where no other rule wants any."""
        return {checkpoint.serial: f"fits the {self.spelled}" for checkpoint in checkpoints}

    def allowed_bytes(self, facts: Facts) -> int | None:
        """The limit in bytes; of a share, only where the facts have the disk's size."""
        share = self._share()
        if share is None:
            return parse_size(self.limit, "DiskBudget: limit")
        return None if facts.disk_bytes is None else int(share * facts.disk_bytes)

    @property
    def spelled(self) -> str:
        """The budget for people."""
        limit = self.limit.strip() if isinstance(self.limit, str) else format_size(self.limit)
        return f"disk budget of {limit}"

    def _share(self) -> float | None:
        match = _SHARE.fullmatch(self.limit) if isinstance(self.limit, str) else None
        return None if match is None else float(match[1]) / 100


def _spelled(rule: DiskLimit) -> str:
    return str(getattr(rule, "spelled", rule))


def fit(decisions: Sequence[Decision], limits: Sequence[DiskLimit], facts: Facts) -> RetentionPlan:
    """The plan that keeps within the smallest limit, with room for the next checkpoint.

    Bound checkpoints stay as they are. If these alone leave no room for the next one, nothing goes for its sake, and
    if they are more than the limit themselves, nothing goes at all: the plan says how much is ``short``.
    """
    known = [(allowed, rule) for rule in limits if (allowed := rule.allowed_bytes(facts)) is not None]
    if not known:
        return RetentionPlan(tuple(decisions))
    limit, rule = min(known, key=lambda pair: pair[0])
    least = sum(decision.size for decision in decisions if decision.bound) + facts.other_bytes
    short = max(0, least + facts.next_bytes - limit)
    target = limit - facts.other_bytes - (0 if short else facts.next_bytes)
    fitted = list(decisions) if least > limit else _reduced(list(decisions), target, f"over the {_spelled(rule)}")
    used = sum(decision.size for decision in fitted)
    return RetentionPlan(tuple(fitted), limit, max(0, target - used), short)


def _reduced(decisions: list[Decision], target: int, why: str) -> list[Decision]:
    """Demote and then prune until the rest takes at most ``target`` bytes, as far as the bound ones let it."""
    used = sum(decision.size for decision in decisions)
    free = [at for at, decision in enumerate(decisions) if decision.reasons and not decision.bound]
    order = sorted(free, key=lambda at: (decisions[at].claim, at))
    for reduced in (Level.WEIGHTS, None):
        for at in order:
            before = decisions[at]
            if used <= target:
                return decisions
            if reduced is None:
                decisions[at] = replace(before, reasons=(), against=why)
            elif before.level.rank > reduced.rank:
                decisions[at] = replace(before, level=reduced, against=why)
            used -= before.size - decisions[at].size
    return decisions
