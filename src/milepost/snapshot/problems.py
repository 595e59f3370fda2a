"""What does not fit between a snapshot and the live objects: collected, and raised as one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from milepost.errors import IncompatibleStateError


@dataclass(slots=True)
class Problems:
    """Names that only the live state has, or only the checkpoint, and sentences on what differs."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)

    def compare(self, live: set[str], saved: set[str], prefix: str = "") -> None:
        """Note the names that are in one of the two only, the prefix before each."""
        self.missing += [prefix + name for name in sorted(live - saved)]
        self.unexpected += [prefix + name for name in sorted(saved - live)]

    def raise_if_any(self) -> None:
        """Raise one IncompatibleStateError that names them all."""
        parts = [
            f"{len(names)} {what} ({_listed(names)})"
            for what, names in (
                ("missing in the checkpoint", self.missing),
                ("not in the live state", self.unexpected),
                ("that differ", self.mismatched),
            )
            if names
        ]
        if parts:
            raise IncompatibleStateError(
                "the checkpoint does not fit the live state, and nothing was changed: " + "; ".join(parts) + ". Build "
                "the objects as they were when it was saved, or name entries in allow_missing.",
                missing=self.missing,
                unexpected=self.unexpected,
                mismatched=self.mismatched,
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
