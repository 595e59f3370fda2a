"""What rules are asked with, and what a plan says: values, which others act on. Printing a plan is the dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from milepost.records import Checkpoint, Level


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules may know beside the catalog.

    ``resumed_from`` is the id of the checkpoint this process went on from, as long as it must stay. ``now`` is in
    seconds since 1970 (UTC). All else is in bytes, and only a disk budget asks for it: ``next_bytes`` are to be left
    free for the next checkpoint, ``other_bytes`` are in use by the run apart from checkpoints and trash, and
    ``disk_bytes`` is the size of the whole disk.
    """

    run_id: str | None = None
    resumed_from: str | None = None
    now: float = 0.0
    next_bytes: int = 0
    other_bytes: int = 0
    disk_bytes: int | None = None


@runtime_checkable
class KeepRule(Protocol):
    """Anything that can say which checkpoints it wants to be kept.

    A rule may have a ``level``: how much of them it wants, all (``Level.FULL``) where it has none. It may have
    ``most``, the largest number that it ever wants, and ``has_newest``, whether the newest is always one of them;
    both are for the disk space that is foretold.
    """

    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        """Short reasons by serial, for checkpoints of this run in commit order; the others it does not want."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of one checkpoint.

    ``reasons`` say why it is kept, and there are none if it is to be pruned. ``level`` is what it is to have then.
    ``against`` says why it goes, or loses a level. A ``bound`` one is out of the rules' reach. ``claim`` is how
    strongly rules want it.
    """

    checkpoint: Checkpoint
    reasons: tuple[str, ...]
    level: Level = Level.FULL
    against: str = ""
    bound: bool = False
    claim: int = 0

    @property
    def size(self) -> int:
        """Bytes that it will take."""
        return self.checkpoint.size_at(self.level) if self.reasons else 0

    @property
    def freed(self) -> int:
        """Bytes that it will give back."""
        return self.checkpoint.size - self.size


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What is to become of each checkpoint, in commit order.

    Where there is a disk budget, ``limit`` is its size in bytes, ``trash_room`` what the trash may keep of it, and
    ``short`` how many bytes the next checkpoint lacks even if all went that may go.
    """

    decisions: tuple[Decision, ...]
    limit: int | None = None
    trash_room: int | None = None
    short: int = 0

    @property
    def keep(self) -> tuple[Checkpoint, ...]:
        """Those that stay, at whatever level."""
        return tuple(decision.checkpoint for decision in self.decisions if decision.reasons)

    @property
    def prune(self) -> tuple[Checkpoint, ...]:
        """Those that go."""
        return tuple(decision.checkpoint for decision in self.decisions if not decision.reasons)

    @property
    def demote(self) -> tuple[Checkpoint, ...]:
        """Those that stay at a lower level than they have."""
        return tuple(
            decision.checkpoint
            for decision in self.decisions
            if decision.reasons and decision.level is not decision.checkpoint.level
        )

    def about(self, checkpoint: Checkpoint) -> Decision:
        """The decision about a checkpoint. Raises KeyError if the plan was not asked about it."""
        for decision in self.decisions:
            # Not by equality: a NaN among the metrics of a record that was read again differs from itself.
            if decision.checkpoint.id == checkpoint.id:
                return decision
        raise KeyError(f"{checkpoint.name} ({checkpoint.id}) is not in this plan")

    def reasons(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        """Why a checkpoint stays; empty if it does not. Raises KeyError as ``about``."""
        return self.about(checkpoint).reasons
