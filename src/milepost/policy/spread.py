"""Keep rules that spread checkpoints over a run's life: by step, and by age."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milepost.policy.arguments import level_argument
from milepost.policy.plan import Facts
from milepost.policy.series import log_series, series_arguments
from milepost.quantities import parse_duration
from milepost.records import Checkpoint, Level


@dataclass(frozen=True, slots=True)
class KeepLogSpaced:
    """Small intervals early, long ones late: the first checkpoint from each step of the series on.

    The series is that of ``LogSpaced``: ``first``, then each time the step has grown by ``factor``.
    """

    first: int = 10
    factor: float = 2.0
    level: Level | str = Level.FULL

    def __post_init__(self) -> None:
        first, factor = series_arguments("KeepLogSpaced", self.first, self.factor)
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "level", level_argument("KeepLogSpaced", self.level))

    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        """One for each step of the series that has been reached; a later one never takes its place."""
        series = log_series(self.first, self.factor)
        chosen: dict[int, Checkpoint] = {}
        for checkpoint in sorted(checkpoints, key=lambda checkpoint: checkpoint.step):
            if checkpoint.step >= self.first:
                chosen.setdefault(series[bisect_right(series, checkpoint.step) - 1], checkpoint)
        return {checkpoint.serial: f"log-spaced from step {step}" for step, checkpoint in chosen.items()}


@dataclass(frozen=True, slots=True)
class KeepWithin:
    """Those that are younger than ``duration``: seconds, or a text such as ``"2h"``, ``"30min"``, ``"7d"``."""

    duration: float | str
    level: Level | str = Level.FULL

    def __post_init__(self) -> None:
        parse_duration(self.duration, "KeepWithin: duration")
        object.__setattr__(self, "level", level_argument("KeepWithin", self.level))

    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        """By the clock: while a run stands still, its checkpoints age."""
        oldest = facts.now - parse_duration(self.duration, "KeepWithin: duration")
        text = self.duration.strip() if isinstance(self.duration, str) else f"{self.duration:g} s"
        return {checkpoint.serial: f"within {text}" for checkpoint in checkpoints if checkpoint.created > oldest}
