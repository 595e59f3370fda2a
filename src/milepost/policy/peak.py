"""How much disk space a run will take at most, by its rules and the size of its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milepost.policy.budget import DiskLimit
from milepost.policy.plan import Facts, KeepRule
from milepost.quantities import format_size
from milepost.records import Level


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one checkpoint of this run: the whole, and its weights alone."""

    full: int
    weights: int


@dataclass(frozen=True, slots=True)
class Peak:
    """What is there at most: kept at each level, and one being written. ``full`` is None where no number limits it."""

    full: int | None
    weights: int
    sizes: Sizes
    limit: int | None = None

    @property
    def bytes(self) -> int | None:
        """All of it together, at most the disk budget; None where nothing limits it."""
        if self.full is None:
            return self.limit
        total = (self.full + 1) * self.sizes.full + self.weights * self.sizes.weights
        return total if self.limit is None else min(total, self.limit)

    @property
    def spelled(self) -> str:
        """``3 full, 2 of weights + 1 being written``."""
        if self.full is None:
            return "all that the disk budget allows" if self.limit is not None else "all that are saved"
        weights = f", {self.weights} of weights" if self.weights else ""
        return f"{self.full} full{weights} + 1 being written"


def expected_peak(rules: Sequence[KeepRule], sizes: Sizes, facts: Facts) -> Peak:
    """The peak of a run with these rules; pins are not foreseen."""
    limits = [rule for rule in rules if isinstance(rule, DiskLimit)]
    known = [allowed for rule in limits if (allowed := rule.allowed_bytes(facts)) is not None]
    limit = min(known, default=None)
    wanting = [rule for rule in rules if rule not in limits]
    counts = {Level.FULL: 0, Level.WEIGHTS: 0}
    newest_counted = False
    for rule in wanting:
        most = getattr(rule, "most", None)
        level = Level(getattr(rule, "level", Level.FULL))
        if most is None:
            return Peak(None, 0, sizes, limit)
        newest = bool(getattr(rule, "has_newest", False))
        if newest and level is not Level.FULL:
            # The newest is whole whatever the rule asks.
            most -= 1
        newest_counted = newest_counted or (newest and level is Level.FULL)
        counts[level] += most
    if not wanting:
        return Peak(None, 0, sizes, limit)
    return Peak(counts[Level.FULL] + (not newest_counted), counts[Level.WEIGHTS], sizes, limit)


def describe(peak: Peak, free: int, present: int) -> str:
    """A sentence for people; ``present`` are the bytes of it that lie there already."""
    each = f"one takes {format_size(peak.sizes.full)}"
    room = f"{format_size(free)} are free"
    if peak.bytes is None:
        return f"{peak.spelled} will be kept, {each}; {room}, enough for {free // max(peak.sizes.full, 1):,} more"
    there = f", of which {format_size(present)} are there already" if present else ""
    return f"at most {peak.spelled}: {format_size(peak.bytes)}{there} ({each}); {room}"
