"""Retention: what stays, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from milepost.policy.retention import (
    Facts,
    KeepBest,
    KeepEvery,
    KeepLast,
    best,
    keep_last_rule,
    plan_retention,
    without_a_number,
)
from milepost.records import Checkpoint
from tests.policy.histories import FACTS, KeepNothing, checkpoint, kept, scored

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


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (-1, None), (1, KeepLast(1)), (7, KeepLast(7)), (np.int64(2), KeepLast(2)), (np.int64(-1), None)],
)
def test_case_05_null_and_minus_one_keep_all(value, expected):
    assert keep_last_rule(value) == expected


@pytest.mark.parametrize("value", [0, -2, "2", "", 1.5, -1.0, True, False, [1]])
def test_case_05_what_is_no_count_is_refused(value):
    with pytest.raises(
        ValueError, match=r"KeepLast\(n=.*\): n must be a whole number of at least 1, or null"
    ) as caught:
        keep_last_rule(value)
    assert repr(value) in str(caught.value)


def test_case_05_one_leaves_exactly_the_newest_after_each_save():
    left: tuple[Checkpoint, ...] = ()
    for step in range(1, 6):
        left = plan_retention([*left, checkpoint(step)], [KeepLast(1)], FACTS).keep
        assert [each.step for each in left] == [step]


def test_case_06_the_last_are_those_committed_last():
    history = [checkpoint(2, 1), checkpoint(10, 2), checkpoint(9, 3)]
    assert kept(history, [KeepLast(2)]) == [10, 9]


def test_case_07_the_one_resumed_from_and_pinned_ones_stay():
    history = [checkpoint(10), checkpoint(11, pinned=True), checkpoint(12)]
    assert kept(history, [KeepLast(1)], replace(FACTS, resumed_from="id-10")) == [10, 11, 12]
    assert kept(history, [KeepLast(1)]) == [11, 12]


def test_case_07_a_history_of_saves_after_a_resume():
    history = [checkpoint(8), checkpoint(10)]
    resumed = replace(FACTS, resumed_from="id-8")
    assert kept(history, [KeepLast(1)], resumed) == [8, 10]
    assert kept([*history, checkpoint(12)], [KeepLast(1)], FACTS) == [12]


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


def test_case_09_another_runs_scores_do_not_compete():
    history = [checkpoint(1, 1, run_id="another", metrics={"loss": 0.0}), *scored(None, 0.5, 0.6)[1:], checkpoint(4)]
    assert kept(history, [KeepBest(1, "loss")]) == [1, 2, 4]


def test_case_09_a_rule_never_sees_another_runs_even_with_equal_serials():
    history = [checkpoint(100, 1, run_id="another", id="other"), checkpoint(2, 1), checkpoint(4, 2)]
    plan = plan_retention(history, [KeepLast(2)], FACTS)
    assert plan.reasons(history[0]) == ("written by another run",)
    assert plan.prune == ()


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


def test_case_15_a_save_without_a_score_is_plain_until_it_gets_one():
    history = scored(0.5, None, 0.6)
    assert kept(history, [KeepBest(1, "loss")]) == [1, 3]
    history[1] = replace(history[1], metrics={"loss": 0.1})
    assert kept(history, [KeepBest(1, "loss")]) == [2, 3]


def test_case_15_scores_of_another_name_do_not_count():
    assert kept(scored(0.1, 0.2, metric="accuracy"), [KeepBest(1, "loss")]) == [2]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode='lowest'"):
        best(scored(0.1), "loss", "lowest")


def test_reasons_say_why():
    history = scored(0.5, 0.1, 0.4)
    plan = plan_retention(history, [KeepLast(2), KeepBest(2, "loss")], FACTS)
    assert plan.reasons(history[0]) == ()
    assert plan.reasons(history[1]) == ("last 2", "best loss (0.1)")
    assert plan.reasons(history[2]) == ("newest", "last 2", "number 2 in loss (0.4)")


def test_every_unconditional_reason_is_said():
    history = [
        checkpoint(1, pinned=True),
        checkpoint(2, run_id="another"),
        checkpoint(3),
        checkpoint(4, pinned=True),
        checkpoint(5),
    ]
    plan = plan_retention(history, [KeepNothing()], replace(FACTS, resumed_from="id-4"))
    assert [decision.reasons for decision in plan.decisions] == [
        ("pinned",),
        ("written by another run",),
        (),
        ("pinned", "resumed from"),
        ("newest",),
    ]


def test_without_a_run_all_are_judged_alike():
    history = [checkpoint(1, run_id="one"), checkpoint(2, run_id="two"), checkpoint(3, run_id="three")]
    assert kept(history, [KeepLast(2)], Facts()) == [2, 3]


def test_an_empty_catalog_has_an_empty_plan():
    assert plan_retention([], [KeepLast(1)], FACTS).decisions == ()


def test_reasons_are_found_for_a_record_that_was_read_again():
    plan = plan_retention([checkpoint(1, metrics={"loss": float("nan")})], [], FACTS)
    assert plan.reasons(checkpoint(1, metrics={"loss": float("nan")})) == ("newest",)
    with pytest.raises(KeyError, match="step_2"):
        plan.reasons(checkpoint(2))


def test_a_rule_whose_answer_is_no_mapping_is_named():
    class Wrong:
        def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> list[int]:
            return [1]

    with pytest.raises(TypeError, match=r"Wrong.*mapping of serials to reasons, not \[1\]"):
        plan_retention(TEN, [Wrong()], FACTS)


def test_a_rule_cannot_change_the_catalog_that_it_is_shown():
    class Tampering:
        def reasons_to_keep(self, checkpoints: Sequence[Checkpoint], facts: Facts) -> Mapping[int, str]:
            assert not hasattr(checkpoints, "reverse")
            return {}

    assert kept(TEN, [Tampering()]) == [10]


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
