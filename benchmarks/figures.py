"""Samples of a run, paired by round, and what they say: medians, intervals, verdicts. Pure functions of numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of ``n`` samples between two of them; ``coverage`` is the chance that these hold the true median."""

    median: float
    low: float
    high: float
    coverage: float
    n: int

    @property
    def wide_enough(self) -> bool:
        """Whether there were samples enough for an interval of 95 %: six or more."""
        return self.coverage >= LEVEL


def interval(samples: Sequence[float], level: float = LEVEL) -> Interval:
    """The median and the narrowest pair of order statistics that holds the true one with probability ``level``.

    It asks nothing of the samples' distribution but that they are independent. With fewer than six samples no pair
    reaches 95 %: the interval is then the least and the largest, and ``coverage`` says what they are worth.
    """
    ordered = sorted(samples)
    n = len(ordered)
    if n == 0:
        raise ValueError("an interval needs at least one sample")
    cut, beyond = 0, 0.5**n
    # The true median lies below the k-th smallest sample with the chance of fewer than k heads in n throws.
    while cut + 1 < n - 1 - cut and 1 - 2 * (beyond + math.comb(n, cut + 1) * 0.5**n) >= level:
        cut += 1
        beyond += math.comb(n, cut) * 0.5**n
    return Interval(statistics.median(ordered), ordered[cut], ordered[n - 1 - cut], max(0.0, 1 - 2 * beyond), n)


def verdict(found: Interval, target: float) -> str:
    """``met`` if the whole interval is within the target, ``missed`` if none of it is, else ``undecided``."""
    if not found.wide_enough:
        return "too few pairs"
    if found.high <= target:
        return "met"
    return "missed" if found.low > target else "undecided"


def ratio(above: float, below: float, target: float = 1.0) -> float:
    """A quotient that keeps its side of the target where the divisor is noise around nothing.

    A loss measured as zero or less divides nothing sensibly: the pair then counts as endlessly far on the side of
    the target that ``above <= target * below`` puts it on.
    """
    if below > 0:
        return above / below
    return -math.inf if above <= target * below else math.inf


@dataclass
class Samples:
    """Numbers by name and round, and what went wrong by name."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, round_: int, value: float) -> None:
        """Note one number of one round."""
        self.values.setdefault(name, {})[round_] = value

    def of(self, name: str) -> list[float]:
        """All numbers of that name, by round."""
        return [value for _, value in sorted(self.values.get(name, {}).items())]

    def ratios(self, above: str, below: str, target: float = 1.0) -> list[float]:
        """The quotients of the rounds that have both."""
        first, second = self.values.get(above, {}), self.values.get(below, {})
        return [ratio(first[at], second[at], target) for at in sorted(first.keys() & second.keys())]


@dataclass(frozen=True, slots=True)
class Figure:
    """One promise: what is measured (divided by ``below`` if that is named) and the most that it may be."""

    title: str
    above: str
    target: float
    below: str | None = None
    unit: str = "x"

    def samples(self, of: Samples) -> list[float]:
        """The paired numbers that the figure is the median of."""
        return of.of(self.above) if self.below is None else of.ratios(self.above, self.below, self.target)


def promises(peers: Mapping[str, str]) -> list[Figure]:
    """Every figure that has a target. ``peers`` maps the names of methods that save in the background to labels."""
    over, at_once = "milepost-overlapped", "milepost-immediate"
    copy, disk = "limit.copy", "limit.disk"
    return [
        Figure("blocking save: durable ÷ disk limit", "durable.milepost-blocking", 1.15, disk),
        Figure("blocking save: extra peak memory", "memory.milepost-blocking", 64, unit="MB"),
        Figure("background save, overlapped: durable ÷ disk limit", f"durable.{over}", 1.10, disk),
        Figure("background save, immediate: durable ÷ disk limit", f"durable.{at_once}", 1.10, disk),
        Figure("held up, immediate ÷ copy limit", f"held.{at_once}", 1.10, copy),
        Figure("held up, overlapped ÷ copy limit", f"held.{over}", 0.05, copy),
        Figure("training lost, overlapped ÷ bare writer's", f"lost.{over}", 1.25, "lost.bare-writer"),
        Figure("training lost, capture alone ÷ copy limit", "lost.milepost-capture", 1.0, copy),
        *(Figure(f"training lost, overlapped ÷ {label}", f"lost.{over}", 1.0, f"lost.{name}")
          for name, label in peers.items()),
        Figure("first save, overlapped: held up ÷ copy limit", f"first-held.{over}", 0.05, copy),
        Figure("first save, overlapped: durable ÷ later ones", f"first-durable.{over}", 1.3, f"later-durable.{over}"),
        Figure("background save: extra memory ÷ state", f"memory.{over}", 1.05),
        Figure("background save: memory after later saves ÷ after first", f"memory-growth.{over}", 1.01),
        Figure("resume, cold ÷ raw read limit", "resume.cold", 1.3, "limit.read-cold"),
        Figure("resume, warm ÷ raw read limit", "resume.warm", 1.5, "limit.read-warm"),
        Figure("resume: extra peak memory", "memory.resume", 64, unit="MB"),
        Figure("manager.step() not due", "step-cost", 10, unit="µs"),
    ]  # fmt: skip
