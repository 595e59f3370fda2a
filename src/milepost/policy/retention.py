"""What to keep: rules give reasons, ``plan_retention`` makes a plan of them, and others act on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from milepost.policy.arguments import level_argument, one_of, whole
from milepost.policy.budget import DiskBudget, DiskLimit, fit
from milepost.policy.health import protected_by_health
from milepost.policy.plan import Decision, Facts, KeepRule, RetentionPlan
from milepost.records import Checkpoint, Level

__all__ = [
    "Decision",
    "DiskBudget",
    "Facts",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepRule",
    "RetentionPlan",
    "best",
    "is_usable",
    "keep_last_rule",
    "plan_retention",
    "ranked",
    "without_a_number",
]

Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class KeepLast:
    """The ``n`` checkpoints committed last."""

    n: int
    level: Level | str = Level.FULL
    has_newest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("KeepLast", "n", self.n, 1))
        object.__setattr__(self, "level", level_argument("KeepLast", self.level))

    @property
    def most(self) -> int:
        """The largest number that it wants."""
        return self.n

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
    level: Level | str = Level.FULL

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("KeepBest", "n", self.n, 1))
        if not isinstance(self.metric, str) or not self.metric:
            raise TypeError(f"KeepBest(metric={self.metric!r}): metric must be the name of a score")
        one_of("KeepBest", "mode", self.mode, ("min", "max"))
        object.__setattr__(self, "level", level_argument("KeepBest", self.level))

    @property
    def most(self) -> int:
        """The largest number that it wants."""
        return self.n

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
    level: Level | str = Level.FULL

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_steps", whole("KeepEvery", "n_steps", self.n_steps, 1))
        object.__setattr__(self, "level", level_argument("KeepEvery", self.level))

    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        """Multiples, whatever their number."""
        reason = f"every {self.n_steps} steps"
        return {checkpoint.serial: reason for checkpoint in checkpoints if checkpoint.step % self.n_steps == 0}


def plan_retention(checkpoints: Sequence[Checkpoint], rules: Sequence[KeepRule], facts: Facts) -> RetentionPlan:
    """Ask every rule, and keep what any of them wants, at the highest level that any wants; without rules keep all.

    Whatever the rules say, these stay, at the level they have: the newest, the newest that can be resumed, the one
    resumed from, pinned ones, and those of another run. Raises TypeError naming a rule whose answer is not a mapping.
    """
    catalog = sorted(checkpoints, key=_commit_order)
    # A tuple, since a rule that sorted a list in place would change which one is the newest.
    own = tuple(checkpoint for checkpoint in catalog if facts.run_id in (None, checkpoint.run_id))
    limits = [rule for rule in rules if isinstance(rule, DiskLimit)]
    asked = [rule for rule in rules if rule not in limits] or list(rules)
    answers = [(rule, _answer(rule, own, facts)) for rule in asked]
    bound = _bound(catalog, own, facts)
    decisions = [_decide(checkpoint, bound.get(id(checkpoint), []), answers, facts) for checkpoint in catalog]
    return fit(decisions, limits, facts)


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


def _decide(
    checkpoint: Checkpoint,
    bound: list[str],
    answers: Sequence[tuple[KeepRule, Mapping[int, str]]],
    facts: Facts,
) -> Decision:
    mine = facts.run_id in (None, checkpoint.run_id)
    wanting = [(rule, answer[checkpoint.serial]) for rule, answer in answers if mine and checkpoint.serial in answer]
    levels = [Level(getattr(rule, "level", Level.FULL)) for rule, _ in wanting]
    if bound or not answers:
        levels = [checkpoint.level]
    level = min(max(levels, key=_rank, default=checkpoint.level), checkpoint.level, key=_rank)
    reasons = bound + [_reason(rule, text) for rule, text in wanting]
    if not answers and not reasons:
        reasons = ["no rule: all are kept"]
    # What a rule for the best wants is claimed more strongly than by all others together.
    claim = len(wanting) + len(answers) * any(isinstance(rule, KeepBest) for rule, _ in wanting)
    lower = level is not checkpoint.level
    against = "" if reasons and not lower else "no rule wants more than its weights" if lower else "no rule keeps it"
    return Decision(checkpoint, tuple(reasons), level, against, bool(bound), claim)


def _reason(rule: KeepRule, text: str) -> str:
    level = Level(getattr(rule, "level", Level.FULL))
    return text if level is Level.FULL else f"{text}, {level.value}"


def _rank(level: Level) -> int:
    return level.rank


def _bound(catalog: Sequence[Checkpoint], own: Sequence[Checkpoint], facts: Facts) -> dict[int, list[str]]:
    """Why each checkpoint that must stay has to, by the identity of its record."""
    newest = {id(each) for each in (*catalog[-1:], *own[-1:])}
    to_resume = {
        id(each)
        for group in (catalog, own)
        for each in [full for full in group if full.resumable][-1:]
        if id(each) not in newest
    }
    healthy = {id(each) for each in protected_by_health(own)}
    bound = {}
    for checkpoint in catalog:
        checks = {
            "newest": id(checkpoint) in newest,
            "newest that can be resumed": id(checkpoint) in to_resume,
            "pinned": checkpoint.pinned,
            "healthy, and a later one is not": id(checkpoint) in healthy,
            "resumed from": facts.resumed_from is not None and checkpoint.id == facts.resumed_from,
            "written by another run": facts.run_id not in (None, checkpoint.run_id),
        }
        bound[id(checkpoint)] = [reason for reason, holds in checks.items() if holds]
    return bound
