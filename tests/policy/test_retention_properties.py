"""Retention over any history: what can never go whatever the rules say."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from milepost.policy.retention import Facts, KeepBest, KeepLast, best, is_usable, plan_retention
from milepost.records import Checkpoint
from tests.policy.histories import FACTS, RUN, histories, numbers, rules, scored


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
    own = [each for each in history if each.run_id == RUN]
    assert not own or own[-1].id not in pruned
    if not rules:
        assert not pruned


@given(histories(), rules, st.data())
def test_the_plan_does_not_depend_on_the_order_of_what_it_is_given(history, rules, data):
    assert plan_retention(data.draw(st.permutations(history)), rules, FACTS) == plan_retention(history, rules, FACTS)


@given(st.lists(numbers, max_size=10), st.integers(1, 4), st.sampled_from(["min", "max"]))
def test_the_best_are_those_that_fewer_than_n_others_beat(scores, n, mode):
    def beats(one: int, two: int) -> bool:
        """Spelled out for every pair, apart from the code under test: serials stand for ages."""
        worst = math.inf if mode == "min" else -math.inf
        first, second = scores[one - 1], scores[two - 1]
        bad, other_bad = (math.isnan(score) or score == worst for score in (first, second))
        if bad or other_bad:
            return one > two if bad and other_bad else other_bad
        return one < two if first == second else (first < second) == (mode == "min")

    rated = [serial for serial, score in enumerate(scores, start=1) if score is not None]
    expected = {one for one in rated if sum(beats(two, one) for two in rated if two != one) < n}
    assert set(KeepBest(n, "loss", mode).reasons_to_keep(scored(*scores), FACTS)) == expected


@given(st.lists(numbers, min_size=1, max_size=12), st.integers(1, 3), st.sampled_from(["min", "max"]))
def test_pruning_after_each_save_never_loses_the_best(scores, n, mode):
    rules = [KeepBest(n, "loss", mode), KeepLast(1)]
    left: tuple[Checkpoint, ...] = ()
    for new in scored(*scores):
        left = plan_retention([*left, new], rules, FACTS).keep
    whole = scored(*scores)
    # With no number at all the newest stand in for the best, so only numbers are promised to outlive each save.
    found = best(whole, "loss", mode)
    if found is not None and is_usable(found.metrics["loss"], mode):
        assert found.id in {each.id for each in left}
    assert whole[-1].id in {each.id for each in left}


@given(histories(), rules)
def test_pruning_again_prunes_nothing_more(history, rules):
    plan = plan_retention(history, rules, FACTS)
    assert plan_retention(plan.keep, rules, FACTS).prune == ()
