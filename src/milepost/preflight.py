"""Before training: will the disk do? Said in the log, and refused where not even two checkpoints fit."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from milepost.errors import DiskFullError
from milepost.policy.peak import Peak, Sizes, describe, expected_peak
from milepost.policy.plan import Facts, KeepRule
from milepost.policy.saving import AnyOf
from milepost.quantities import format_duration, format_size
from milepost.snapshot.sizes import state_sizes
from milepost.snapshot.stateful import Entries
from milepost.storage.backend import Backend
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.usage import disk_size, other_bytes, trash_bytes

logger = logging.getLogger("milepost")


class Preflight:
    """The check, made at the first call. ``grace`` is how long the trash is kept, in seconds."""

    def __init__(
        self, run: RunFolder, backend: Backend, rules: Sequence[KeepRule], schedule: AnyOf, grace: float
    ) -> None:
        self._run = run
        self._backend = backend
        self._rules = rules
        # Without a schedule the last step alone is saved.
        self._saves = 2 if schedule.schedules else 1
        self._grace = grace
        self._done = False

    def check(self, entries: Entries) -> None:
        """Say what the checkpoints of this state will take at most, and what is free.

        Raises DiskFullError if the first two (or the one) cannot fit on the disk, or in the disk budget.
        """
        if self._done:
            return
        self._done = True
        weights, others = state_sizes(entries)
        self._check(Sizes(weights + others, weights))

    def _check(self, sizes: Sizes) -> None:
        catalog = read_catalog(self._run.path)
        free, trash = self._backend.free_bytes(self._run.path), trash_bytes(self._run)
        peak = expected_peak(self._rules, sizes, Facts(now=time.time(), disk_bytes=disk_size(self._run.path)))
        saved = any(checkpoint.resumable for checkpoint in catalog.checkpoints)
        needed = sizes.full * (1 if saved else self._saves)
        if needed > free + trash:
            what = f"needs {format_size(needed)}, and {format_size(free + trash)} are free"
            raise _refusal(self._run, what, needed, free)
        least = sizes.full * self._saves + other_bytes(self._run, catalog)
        if peak.limit is not None and least > peak.limit:
            what = f"needs {format_size(least)}, and the disk budget is {format_size(peak.limit)}"
            raise _refusal(self._run, what, least, peak.limit)
        present = trash + sum(checkpoint.size for checkpoint in catalog.checkpoints)
        self._say(peak, free, trash, present)

    def _say(self, peak: Peak, free: int, trash: int, present: int) -> None:
        trashed = f", {format_size(trash)} of that in the trash" if trash else ""
        stays = f"; what is pruned stays for {format_duration(self._grace)} and counts too" if self._grace else ""
        short = peak.bytes is not None and peak.bytes > free + present
        warning = ", which is not enough for all of it" if short else ""
        said = f"{describe(peak, free, present)}{trashed}{warning}{stays}"
        logger.log(logging.WARNING if short else logging.INFO, "disk space in %s: %s", self._run.path, said)


def _refusal(run: RunFolder, what: str, needed: int, free: int) -> DiskFullError:
    return DiskFullError(
        f"the checkpoints of this run do not fit in {run.path}: to save safely (the newest stays until the next one is "
        f"durable) it {what}. Free some space, allow more, or choose another folder.",
        path=run.path,
        needed=needed,
        free=free,
    )
