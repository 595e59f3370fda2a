"""When to save: a schedule looks at a ``Moment`` and gives its reason, or None.

A schedule is a pure function of the moments of a run, so that any number of restarts gives the same steps: what is
due is what was reached or passed since the moment before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from milepost.policy.arguments import positive, whole
from milepost.policy.series import log_series, series_arguments
from milepost.records import Moment


@runtime_checkable
class SaveSchedule(Protocol):
    """Anything that can say whether a moment is one to save at."""

    def reason_to_save(self, moment: Moment) -> str | None:
        """A short reason, or None if nothing is due."""


@dataclass(frozen=True, slots=True)
class EverySteps:
    """Every ``n`` steps, counted from ``offset``: at offset + n, offset + 2n, … and at a positive offset itself."""

    n: int
    offset: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("EverySteps", "n", self.n, 1))
        object.__setattr__(self, "offset", whole("EverySteps", "offset", self.offset, 0))

    def reason_to_save(self, moment: Moment) -> str | None:
        """Due when a multiple of n was reached or passed."""
        before = max((moment.previous_step - self.offset) // self.n, -1 if self.offset else 0)
        if (moment.step - self.offset) // self.n > before:
            return f"every {self.n} steps"
        return None

    def steps_after(self, step: int) -> Iterator[int]:
        """The steps at which it is due after ``step``."""
        due = self.offset + max((step - self.offset) // self.n + 1, 0 if self.offset else 1) * self.n
        while True:
            yield due
            due += self.n


@dataclass(frozen=True, slots=True)
class AtSteps:
    """At each of the given steps."""

    steps: tuple[int, ...]

    def __init__(self, steps: Sequence[int]) -> None:
        if isinstance(steps, str | bytes) or not hasattr(steps, "__iter__"):
            raise TypeError(f"AtSteps(steps={steps!r}): steps must be a list of whole numbers")
        numbers = sorted({whole("AtSteps", "steps", step, 1) for step in steps})
        if not numbers:
            raise ValueError("AtSteps(steps=[]): steps must name at least one step")
        object.__setattr__(self, "steps", tuple(numbers))

    def reason_to_save(self, moment: Moment) -> str | None:
        """Due when one of the steps was reached or passed."""
        reached = bisect_right(self.steps, moment.step)
        if reached and self.steps[reached - 1] > moment.previous_step:
            return f"step {self.steps[reached - 1]} was asked for"
        return None

    def steps_after(self, step: int) -> Iterator[int]:
        """The steps at which it is due after ``step``."""
        return iter(self.steps[bisect_right(self.steps, step) :])


@dataclass(frozen=True, slots=True)
class LogSpaced:
    """Dense early, sparse late: at ``first``, then each time the step has grown by ``factor`` (rounded up).

    The series ends at 10^15 steps.
    """

    first: int = 10
    factor: float = 2.0

    def __post_init__(self) -> None:
        first, factor = series_arguments("LogSpaced", self.first, self.factor)
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "factor", factor)

    def reason_to_save(self, moment: Moment) -> str | None:
        """Due when a step of the series was reached or passed."""
        if moment.step < self.first:
            return None
        series = log_series(self.first, self.factor)
        reached = series[bisect_right(series, moment.step) - 1]
        return f"log-spaced step {reached}" if reached > moment.previous_step else None

    def steps_after(self, step: int) -> Iterator[int]:
        """The steps at which it is due after ``step``."""
        series = log_series(self.first, self.factor)
        return iter(series[bisect_right(series, step) :])


@dataclass(frozen=True, slots=True)
class EveryMinutes:
    """Each time that ``minutes`` more of training have passed; stops between do not count."""

    minutes: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "minutes", positive("EveryMinutes", "minutes", self.minutes))

    def reason_to_save(self, moment: Moment) -> str | None:
        """Due when a multiple of the length was passed, on the clock that is stored in checkpoints."""
        length = self.minutes * 60
        if moment.seconds // length > moment.previous_seconds // length:
            return f"every {self.minutes:g} minutes"
        return None


@dataclass(frozen=True, slots=True)
class AtEpochEnd:
    """At each end of an epoch."""

    def reason_to_save(self, moment: Moment) -> str | None:
        """Due when the loop says so."""
        return "end of an epoch" if moment.epoch_end else None


@dataclass(frozen=True, slots=True)
class First:
    """At the first step of a fresh run: the soonest proof that saving works."""

    def reason_to_save(self, moment: Moment) -> str | None:
        """Due once in a run's life."""
        return "first step" if moment.previous_step == 0 else None

    def steps_after(self, step: int) -> Iterator[int]:
        """The first step, if it is still to come."""
        return iter((1,) if step < 1 else ())


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Whenever any of several schedules is due; an empty one never is. One inside another is opened up.

    Raises TypeError naming the place of anything that is not a schedule.
    """

    schedules: tuple[SaveSchedule, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.schedules, list | tuple):
            raise TypeError(f"AnyOf(schedules={self.schedules!r}): schedules must be a list of schedules")
        flat: list[SaveSchedule] = []
        for schedule in _checked(self.schedules, "AnyOf: schedules"):
            flat += schedule.schedules if isinstance(schedule, AnyOf) else (schedule,)
        object.__setattr__(self, "schedules", tuple(flat))

    def reason_to_save(self, moment: Moment) -> str | None:
        """All reasons, joined."""
        return "; ".join(reasons_to_save(self, moment)) or None


def as_schedule(save: SaveSchedule | Sequence[SaveSchedule] | None) -> AnyOf:
    """One schedule from one, a list of them (any of), or None (never).

    Raises TypeError naming the place of anything that is not a schedule.
    """
    if isinstance(save, AnyOf):
        return save
    schedules: tuple[Any, ...] = () if save is None else tuple(save) if isinstance(save, list | tuple) else (save,)
    return AnyOf(_checked(schedules, "save"))


def reasons_to_save(schedule: SaveSchedule | Sequence[SaveSchedule] | None, moment: Moment) -> tuple[str, ...]:
    """The reasons of all schedules that are due; quickest with what ``as_schedule`` gives."""
    # This runs at every training step, and there is mostly nothing due.
    reasons = [each.reason_to_save(moment) for each in as_schedule(schedule).schedules]
    return tuple([reason for reason in reasons if reason is not None])


def next_due(schedule: SaveSchedule | Sequence[SaveSchedule] | None, after_step: int, horizon: int) -> int | None:
    """The next step after ``after_step``, at most ``horizon``, at which a schedule that counts steps is due.

    None if there is none, or only ones that depend on the clock or on epochs.
    """
    parts = as_schedule(schedule).schedules
    firsts = [next(iter(part.steps_after(after_step)), None) for part in parts if hasattr(part, "steps_after")]
    return min((step for step in firsts if step is not None and step <= horizon), default=None)


def first_due(schedule: SaveSchedule | Sequence[SaveSchedule] | None, last_step: int) -> int | None:
    """The first step of a whole run of ``last_step`` steps at which a schedule that counts steps is due.

    None means that it never saves in such a run, if none of its parts depend on the clock or on epochs.
    """
    return next_due(schedule, 0, last_step)


def _checked(schedules: Sequence[Any], what: str) -> tuple[SaveSchedule, ...]:
    for index, schedule in enumerate(schedules):
        if isinstance(schedule, type) or not callable(getattr(schedule, "reason_to_save", None)):
            raise TypeError(f"{what}[{index}] is {schedule!r}, not a schedule such as EverySteps(500)")
    return tuple(schedules)
