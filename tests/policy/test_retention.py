"""Retention: what stays, why, and what can never go whatever the rules say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.policy.resuming import resume_candidates
from milepost.policy.retention import (
    Facts,
    KeepBest,
    KeepEvery,
    KeepLast,
    best,
    is_usable,
    plan_retention,
    without_a_number,
)
from milepost.records import Checkpoint, Level

RUN = "this run"
FACTS = Facts(run_id=RUN)


def checkpoint(step: int, serial: int | None = None, **fields: object) -> Checkpoint:
    serial = step if serial is None else serial
    made = Checkpoint(step, Path(f"/run/step_{step}"), serial, RUN, f"id-{serial}", float(serial), 100)
    return replace(made, **fields)


def scored(*scores: float | None, metric: str = "loss") -> list[Checkpoint]:
    return [
        checkpoint(step, metrics={} if score is None else {metric: score}) for step, score in enumerate(scores, start=1)
    ]


def kept(checkpoints: Sequence[Checkpoint], rules: Sequence[object], facts: Facts = FACTS) -> list[int]:
    return [each.step for each in plan_retention(checkpoints, rules, facts).keep]


TEN = [checkpoint(step) for step in range(1, 11)]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], list(range(1, 11))),
        ([KeepLast(1)], [10]),
        ([KeepLast(3)], [8, 9, 10]),
        ([KeepLast(99)], list(range(1, 11))),
        ([KeepEvery(4)], [4, 8, 10]),
        ([KeepEvery(4), KeepLast(2)], [4, 8, 9, 10]),
        ([KeepBest(1, "loss")], [10]),
    ],
)
def test_case_05_rules_are_a_union_and_the_newest_stays(rules, expected):
    assert kept(TEN, rules) == expected


def test_case_06_the_last_are_those_committed_last():
    history = [checkpoint(2, 1), checkpoint(10, 2), checkpoint(9, 3)]
    assert kept(history, [KeepLast(2)]) == [10, 9]


def test_case_07_the_one_resumed_from_and_pinned_ones_stay():
    history = [checkpoint(10), checkpoint(11, pinned=True), checkpoint(12)]
    assert kept(history, [KeepLast(1)], replace(FACTS, resumed_from="id-10")) == [10, 11, 12]
    assert kept(history, [KeepLast(1)]) == [11, 12]


def test_case_08_best_and_newest():
    assert kept(scored(0.5, 0.1, 0.4, 0.6), [KeepLast(2), KeepBest(1, "loss")]) == [2, 3, 4]


def test_case_09_what_another_run_wrote_stays_and_is_not_counted():
    history = [checkpoint(100, 1, run_id="another"), checkpoint(2, 2), checkpoint(4, 3)]
    plan = plan_retention(history, [KeepLast(1)], FACTS)
    assert [each.step for each in plan.prune] == [2]
    assert plan.reasons(history[0]) == ("written by another run",)


def test_case_09_the_newest_of_this_run_stays_also_if_another_runs_is_newer():
    history = [checkpoint(4, 1), checkpoint(100, 9, run_id="another")]
    assert kept(history, [KeepEvery(1000)]) == [4, 100]


@pytest.mark.parametrize(
    ("scores", "mode", "expected"),
    [
        ((0.9, 0.5), "max", 1),
        ((0.0, -1.0), "max", 1),
        ((-3.0, -4.0), "min", 2),
        ((0.5, None, 0.4), "min", 3),
        ((0.4, 0.4, 0.4), "min", 1),
        ((0.4, 0.4), "max", 1),
        ((math.nan, 0.4, math.nan, 0.6), "min", 2),
        ((math.nan, 0.4, math.nan, 0.6), "max", 4),
        ((math.nan, math.nan), "min", 2),
        ((math.inf, 5.0), "min", 2),
        ((-math.inf, -5.0), "max", 2),
        ((-math.inf, -5.0), "min", 1),
        ((math.inf, 5.0), "max", 1),
        ((math.inf, math.nan), "min", 2),
    ],
)
def test_case_13_and_14_which_score_is_best(scores, mode, expected):
    found = best(scored(*scores), "loss", mode)
    assert found is not None and found.step == expected


def test_case_13_without_a_score_there_is_no_best():
    assert best(scored(None, None), "loss", "min") is None
    assert best([], "loss", "min") is None


def test_case_14_scores_that_are_no_numbers_are_named():
    found = without_a_number(scored(math.nan, 0.4, None, math.inf), "loss", "min")
    assert [each.step for each in found] == [1, 4]


@pytest.mark.parametrize("n", [1, 2])
def test_case_14_if_all_are_no_numbers_the_newest_are_kept(n):
    history = scored(math.nan, math.nan, math.nan)
    assert kept([*history, checkpoint(4)], [KeepBest(n, "loss")]) == [*range(4 - n, 4), 4]


def test_reasons_say_why():
    history = scored(0.5, 0.1, 0.4)
    plan = plan_retention(history, [KeepLast(2), KeepBest(2, "loss")], FACTS)
    assert plan.reasons(history[0]) == ()
    assert plan.reasons(history[1]) == ("last 2", "best loss (0.1)")
    assert plan.reasons(history[2]) == ("newest", "last 2", "number 2 in loss (0.4)")


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
            metrics={} if (score := draw(numbers)) is None else {"loss": score},
        )
        for serial, step in enumerate(draw(st.permutations(steps)), start=1)
    ]


class KeepNothing:
    def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
        return {}


rules = st.lists(
    st.one_of(
        st.builds(KeepLast, st.integers(1, 5)),
        st.builds(KeepEvery, st.integers(1, 20)),
        st.builds(KeepBest, st.integers(1, 4), st.just("loss"), st.sampled_from(["min", "max"])),
        st.just(KeepNothing()),
    ),
    max_size=3,
)


@given(histories(), rules, st.data())
def test_whatever_the_rules_the_invariants_hold(history, rules, data):
    resumed = data.draw(st.sampled_from([None, *(each.id for each in history)]))
    plan = plan_retention(data.draw(st.permutations(history)), rules, Facts(RUN, resumed))
    pruned = {each.id for each in plan.prune}
    newest = max(history, key=lambda each: each.serial)
    assert newest.id not in pruned
    assert resumed not in pruned
    assert not any(each.id in pruned for each in history if each.pinned or each.run_id != RUN)
    assert sorted([*plan.keep, *plan.prune], key=lambda each: each.serial) == history
    if not rules:
        assert not pruned


@given(histories(), rules, st.data())
def test_the_plan_does_not_depend_on_the_order_of_what_it_is_given(history, rules, data):
    assert plan_retention(data.draw(st.permutations(history)), rules, FACTS) == plan_retention(history, rules, FACTS)


@given(histories(), st.integers(1, 4), st.sampled_from(["min", "max"]))
def test_the_best_are_those_that_a_slow_search_finds(history, n, mode):
    own = [each for each in history if each.run_id == RUN]
    left = [each for each in own if "loss" in each.metrics]
    expected = []
    while left and len(expected) < n:
        winner = left[0]
        for other in left[1:]:
            one, two = winner.metrics["loss"], other.metrics["loss"]
            if not is_usable(one, mode) or (is_usable(two, mode) and (two < one if mode == "min" else two > one)):
                winner = other
        expected.append(winner.serial)
        left.remove(winner)
    assert set(KeepBest(n, "loss", mode).reasons_to_keep(own, FACTS)) == set(expected)


@given(histories(), rules)
def test_pruning_again_prunes_nothing_more(history, rules):
    plan = plan_retention(history, rules, FACTS)
    assert plan_retention(plan.keep, rules, FACTS).prune == ()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: KeepLast(0), ValueError, r"KeepLast\(n=0\): n must be a whole number of at least 1"),
        (lambda: KeepLast(-1), ValueError, "n=-1"),
        (lambda: KeepLast("2"), TypeError, "n='2'"),
        (lambda: KeepLast(1.5), TypeError, r"n=1\.5"),
        (lambda: KeepLast(True), TypeError, "n=True"),
        (lambda: KeepBest(0, "loss"), ValueError, "n=0"),
        (lambda: KeepBest(1, ""), TypeError, "metric=''"),
        (lambda: KeepBest(1, None), TypeError, "metric=None"),
        (lambda: KeepBest(1, "loss", mode="least"), ValueError, "mode='least'.*'min', 'max'"),
        (lambda: KeepEvery(0), ValueError, "n_steps=0"),
    ],
)
def test_case_05_a_bad_argument_fails_where_it_is_written(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_resuming_tries_the_newest_commit_first_and_full_ones_only():
    history = [checkpoint(5, 1), checkpoint(8, 2, level=Level.WEIGHTS), checkpoint(3, 3)]
    assert [each.step for each in resume_candidates(history, "auto")] == [3, 5]
    assert [each.step for each in resume_candidates(history, 5)] == [5]
    assert resume_candidates(history, 8) == ()
