"""Made-up catalogs: by hand, and any at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from milepost.policy.retention import DiskBudget, Facts, KeepBest, KeepEvery, KeepLast, plan_retention
from milepost.policy.spread import KeepLogSpaced, KeepWithin
from milepost.records import Checkpoint, Level

RUN = "this run"
FACTS = Facts(run_id=RUN)


def checkpoint(step: int, serial: int | None = None, **fields: object) -> Checkpoint:
    serial = step if serial is None else serial
    made = Checkpoint(step, Path(f"/run/step_{step}"), serial, RUN, f"id-{serial}", float(serial), 100, state_size=60)
    return replace(made, **fields)


def scored(*scores: float | None, metric: str = "loss") -> list[Checkpoint]:
    return [
        checkpoint(step, metrics={} if score is None else {metric: score}) for step, score in enumerate(scores, start=1)
    ]


def kept(checkpoints: Sequence[Checkpoint], rules: Sequence[object], facts: Facts = FACTS) -> list[int]:
    return [each.step for each in plan_retention(checkpoints, rules, facts).keep]


numbers = st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0]), st.floats(-2, 2))


@st.composite
def histories(draw: st.DrawFn) -> list[Checkpoint]:
    steps = draw(st.lists(st.integers(0, 50), unique=True, min_size=1, max_size=12))
    return [
        checkpoint(
            step,
            serial,
            pinned=draw(st.booleans()) and draw(st.booleans()),
            run_id=draw(st.sampled_from([RUN, RUN, RUN, "another"])),
            **draw(st.sampled_from([{}, {}, {"level": Level.WEIGHTS, "size": 40, "state_size": 0}])),
            metrics={} if (score := draw(numbers)) is None else {"loss": score},
        )
        for serial, step in enumerate(draw(st.permutations(steps)), start=1)
    ]


class KeepNothing:
    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        return {}


levels = st.sampled_from(["full", "full", "weights", Level.WEIGHTS])
keepers = st.one_of(
    st.builds(KeepLast, st.integers(1, 5), levels),
    st.builds(KeepEvery, st.integers(1, 20), levels),
    st.builds(KeepBest, st.integers(1, 4), st.just("loss"), st.sampled_from(["min", "max"]), levels),
    st.builds(KeepLogSpaced, st.integers(1, 5), st.sampled_from([1.5, 2.0, 3.0]), levels),
    st.builds(KeepWithin, st.integers(0, 8), levels),
    st.just(KeepNothing()),
)
rules = st.lists(keepers, max_size=3)
budgets = st.one_of(st.builds(DiskBudget, st.integers(1, 1500), levels), st.builds(DiskBudget, st.just("50%"), levels))
