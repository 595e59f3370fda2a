"""What to keep: rules give reasons, ``plan_retention`` makes a plan of them, and others act on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from milepost.policy.arguments import one_of, whole
from milepost.policy.health import protected_by_health
from milepost.records import Checkpoint

Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules may know beside the catalog.

    ``resumed_from`` is the id of the checkpoint this process went on from, as long as it must stay. ``now`` is in
    seconds since 1970 (UTC).
    """

    run_id: str | None = None
    resumed_from: str | None = None
    now: float = 0.0


@runtime_checkable
class KeepRule(Protocol):
    """Anything that can say which checkpoints it wants to be kept."""

    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        """Short reasons by serial, for checkpoints of this run in commit order; the others it does not want."""


@dataclass(frozen=True, slots=True)
class KeepLast:
    """The ``n`` checkpoints committed last."""

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("KeepLast", "n", self.n, 1))

    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        """The end of the list."""
        return {checkpoint.serial: f"last {self.n}" for checkpoint in checkpoints[-self.n :]}


@dataclass(frozen=True, slots=True)
class KeepBest:
    """The ``n`` checkpoints with the best score of ``metric``; less is better with ``mode="min"``.

    A score must be beaten: of equal ones the earlier is kept. NaN and the bad infinity never displace a number; where
    there is no number at all, the newest with a score are kept. A checkpoint without the score does not count.
    """

    n: int
    metric: str
    mode: Mode = "min"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("KeepBest", "n", self.n, 1))
        if not isinstance(self.metric, str) or not self.metric:
            raise TypeError(f"KeepBest(metric={self.metric!r}): metric must be the name of a score")
        one_of("KeepBest", "mode", self.mode, ("min", "max"))

    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        """The best first."""
        chosen = ranked(checkpoints, self.metric, self.mode)[: self.n]
        return {
            checkpoint.serial: f"best {self.metric} ({checkpoint.metrics[self.metric]:.4g})"
            if place == 0
            else f"number {place + 1} in {self.metric} ({checkpoint.metrics[self.metric]:.4g})"
            for place, checkpoint in enumerate(chosen)
        }


@dataclass(frozen=True, slots=True)
class KeepEvery:
    """Every checkpoint whose step is a multiple of ``n_steps``, for ever."""

    n_steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_steps", whole("KeepEvery", "n_steps", self.n_steps, 1))

    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        """Multiples, whatever their number."""
        reason = f"every {self.n_steps} steps"
        return {checkpoint.serial: reason for checkpoint in checkpoints if checkpoint.step % self.n_steps == 0}


@dataclass(frozen=True, slots=True)
class Decision:
    """One checkpoint and why it is kept; no reason means that it is to be pruned."""

    checkpoint: Checkpoint
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What is to become of each checkpoint, in commit order. Printing it is the dry run."""

    decisions: tuple[Decision, ...]

    @property
    def keep(self) -> tuple[Checkpoint, ...]:
        """Those that stay."""
        return tuple(decision.checkpoint for decision in self.decisions if decision.reasons)

    @property
    def prune(self) -> tuple[Checkpoint, ...]:
        """Those that nothing wants."""
        return tuple(decision.checkpoint for decision in self.decisions if not decision.reasons)

    def reasons(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        """Why a checkpoint stays; empty if it does not. Raises KeyError if the plan was not asked about it."""
        for decision in self.decisions:
            # Not by equality: a NaN among the metrics of a record that was read again differs from itself.
            if decision.checkpoint.id == checkpoint.id:
                return decision.reasons
        raise KeyError(f"{checkpoint.name} ({checkpoint.id}) is not in this plan")


def plan_retention(checkpoints: Sequence[Checkpoint], rules: Sequence[KeepRule], facts: Facts) -> RetentionPlan:
    """Ask every rule, and keep what any of them wants; without rules all are kept.

    Whatever the rules say, these stay: the newest, the one resumed from, pinned ones, and those of another run.
    Raises TypeError naming a rule whose answer is not a mapping.
    """
    catalog = sorted(checkpoints, key=_commit_order)
    # A tuple, since a rule that sorted a list in place would change which one is the newest.
    own = tuple(checkpoint for checkpoint in catalog if facts.run_id in (None, checkpoint.run_id))
    wanted = [_answer(rule, own, facts) for rule in rules]
    decisions = []
    healthy = protected_by_health(own)
    for checkpoint in catalog:
        mine = facts.run_id in (None, checkpoint.run_id)
        reasons = _unconditional(checkpoint, catalog[-1], own[-1] if own else None, facts)
        if any(checkpoint is each for each in healthy):
            reasons.append("healthy, and a later one is not")
        reasons += [answer[checkpoint.serial] for answer in wanted if mine and checkpoint.serial in answer]
        if not rules and not reasons:
            reasons.append("no rule: all are kept")
        decisions.append(Decision(checkpoint, tuple(reasons)))
    return RetentionPlan(tuple(decisions))


def keep_last_rule(value: object) -> KeepLast | None:
    """The rule that a setting such as ``keep_last_n_checkpoints`` asks for: None and -1 keep all, hence no rule.

    Raises ValueError naming rule, argument and value for anything else that is not a whole number of at least 1.
    """
    if value is None:
        return None
    try:
        count = whole("KeepLast", "n", value, -1)
        return None if count == -1 else KeepLast(count)
    except (TypeError, ValueError):
        raise ValueError(
            f"KeepLast(n={value!r}): n must be a whole number of at least 1, or null or -1 to keep all"
        ) from None


def ranked(checkpoints: Sequence[Checkpoint], metric: str, mode: str) -> list[Checkpoint]:
    """Checkpoints that have the score: best first, equal ones by age, then the unusable ones, newest first.

    Raises ValueError for an unknown ``mode``.
    """
    one_of("best", "mode", mode, ("min", "max"))
    scored = sorted((checkpoint for checkpoint in checkpoints if metric in checkpoint.metrics), key=_commit_order)
    sign = 1 if mode == "min" else -1
    usable = [checkpoint for checkpoint in scored if is_usable(checkpoint.metrics[metric], mode)]
    unusable = [checkpoint for checkpoint in scored if not is_usable(checkpoint.metrics[metric], mode)]
    return sorted(usable, key=lambda checkpoint: sign * checkpoint.metrics[metric]) + unusable[::-1]


def best(checkpoints: Sequence[Checkpoint], metric: str, mode: str) -> Checkpoint | None:
    """The checkpoint with the best score, None if none has one. Raises ValueError for an unknown ``mode``."""
    return next(iter(ranked(checkpoints, metric, mode)), None)


def is_usable(score: float, mode: str) -> bool:
    """Whether a score can be the best: not NaN, and not the infinity that is worst."""
    return not math.isnan(score) and score != (math.inf if mode == "min" else -math.inf)


def without_a_number(checkpoints: Sequence[Checkpoint], metric: str, mode: str) -> tuple[Checkpoint, ...]:
    """Checkpoints whose score is there but not usable."""
    scored = (checkpoint for checkpoint in checkpoints if metric in checkpoint.metrics)
    return tuple(checkpoint for checkpoint in scored if not is_usable(checkpoint.metrics[metric], mode))


def _commit_order(checkpoint: Checkpoint) -> tuple[int, float, int]:
    return (checkpoint.serial, checkpoint.created, checkpoint.step)


def _answer(rule: KeepRule, own: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
    answer = rule.reasons_to_keep(own, facts)
    if not isinstance(answer, Mapping):
        raise TypeError(f"{rule!r}: reasons_to_keep must give a mapping of serials to reasons, not {answer!r}")
    return answer


def _unconditional(checkpoint: Checkpoint, newest: Checkpoint, own: Checkpoint | None, facts: Facts) -> list[str]:
    reasons = []
    if checkpoint is newest or checkpoint is own:
        reasons.append("newest")
    if checkpoint.pinned:
        reasons.append("pinned")
    if facts.resumed_from is not None and checkpoint.id == facts.resumed_from:
        reasons.append("resumed from")
    if facts.run_id not in (None, checkpoint.run_id):
        reasons.append("written by another run")
    return reasons
