"""Saves, pins, demotions, prunes, undeletions and deaths in any order: what was promised is there after each."""

from __future__ import annotations

import math
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import CheckpointExistsError, CheckpointNotFoundError, CorruptCheckpointError
from milepost.keeping import Keeper
from milepost.policy.plan import KeepRule
from milepost.records import Checkpoint, Level
from milepost.storage.backend import Backend
from milepost.storage.catalog import read_catalog
from milepost.storage.commit import commit
from milepost.storage.layout import RunFolder, parse_step
from milepost.storage.levels import demote
from milepost.storage.sweep import recover
from milepost.storage.trash import read_trash, undelete
from milepost.storage.verify import verify_checkpoint
from tests.faults import FaultyBackend, Killed, UnsyncedBackend
from tests.policy.histories import numbers, rules
from tests.storage.samples import RUN, draft

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class World:
    """A run's folder, and what has been promised about it."""

    run: RunFolder
    rules: tuple[KeepRule, ...]
    grace: float
    serial: int = 0
    newest: int | None = None
    pinned: dict[int, Level] = field(default_factory=dict)

    def keeper(self, backend: Backend) -> Keeper:
        return Keeper(self.run, backend, self.rules, grace=self.grace)

    def at(self, step: int) -> Checkpoint | None:
        return read_catalog(self.run.path).at(step)

    def save(self, backend: Backend, score: float | None) -> None:
        self.serial += 1
        metrics = {} if score is None else {"loss": score}
        made = draft(self.serial, serial=self.serial, metrics=metrics, assets={})
        saved = commit(self.run, backend, made, max_shard_size=1 << 30)
        self.newest = saved.step
        self.keeper(backend).committed(saved)

    def pin(self, backend: Backend, step: int, pinned: bool) -> None:
        found = self.at(step)
        if found is None:
            return
        # Not promised while it is under way.
        self.pinned.pop(step, None)
        self.keeper(backend).change(found, {"pinned": pinned})
        if pinned:
            self.pinned[step] = found.level

    def demote(self, backend: Backend, step: int) -> None:
        found = self.at(step)
        if found is not None and not found.pinned and step != self.newest:
            assert demote(self.run, backend, found).level is Level.WEIGHTS

    def undelete(self, backend: Backend, step: int) -> None:
        try:
            back = undelete(self.run, backend, step, now=time.time())
        except (CheckpointExistsError, CheckpointNotFoundError, CorruptCheckpointError):
            return
        self.pinned[step] = back.level

    def restart(self) -> None:
        recover(self.run, UnsyncedBackend())
        found = read_catalog(self.run.path).newest
        if found is not None:
            # What was visible when the process died counts, whether or not anybody was told.
            self.newest, self.serial = found.step, max(self.serial, found.serial)
        self.keeper(UnsyncedBackend()).tidy(RUN)
        names = {name for name in os.listdir(self.run.path) if parse_step(name) is None}
        assert names <= {".milepost", ".trash", "latest", "best"}
        if not self.grace:
            assert read_trash(self.run) == []

    def check(self) -> None:
        catalog = read_catalog(self.run.path)
        assert not catalog.damaged and not catalog.ignored
        for checkpoint in catalog.checkpoints:
            assert verify_checkpoint(checkpoint.path) == []
        found = {checkpoint.step: checkpoint for checkpoint in catalog.checkpoints}
        if self.newest is not None:
            assert catalog.newest is not None and catalog.newest.step >= self.newest
            assert found[self.newest].level is Level.FULL
        for step, level in self.pinned.items():
            assert found[step].pinned and found[step].level is level


steps = st.integers(1, 8)
actions = st.one_of(
    st.tuples(st.just("save"), numbers),
    st.tuples(st.just("save"), st.floats(0, 1)),
    st.tuples(st.just("pin"), steps, st.booleans()),
    st.tuples(st.just("demote"), steps),
    st.tuples(st.just("undelete"), steps),
)
deaths = st.one_of(st.just(0), st.just(0), st.integers(1, 45))


@settings(max_examples=150, deadline=None)
@given(rules, st.sampled_from([0.0, math.inf]), st.lists(st.tuples(actions, deaths), min_size=2, max_size=12))
def test_whatever_is_done_and_whenever_it_dies_what_was_promised_is_there(rules, grace, story):
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        run = RunFolder(Path(folder).resolve())
        run.control.mkdir()
        world = World(run, tuple(rules), 1e9 if grace else 0.0)
        for (name, *arguments), at in story:
            try:
                getattr(world, name)(FaultyBackend(at=at, fault="die"), *arguments)
            except Killed:
                world.check()
                world.restart()
            world.check()
