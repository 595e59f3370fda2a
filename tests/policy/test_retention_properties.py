"""Retention over any history: what can never go whatever the rules say."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from milepost.policy.retention import Facts, KeepBest, KeepLast, best, is_usable, plan_retention
from milepost.records import Checkpoint, Level
from tests.policy.histories import FACTS, RUN, budgets, histories, keepers, numbers, rules, scored

facts = st.builds(
    Facts,
    run_id=st.just(RUN),
    now=st.integers(0, 20).map(float),
    next_bytes=st.sampled_from([0, 40, 100, 500]),
    other_bytes=st.sampled_from([0, 7, 300]),
    disk_bytes=st.sampled_from([None, 600, 3000]),
)


def left_by(plan) -> list[Checkpoint]:
    """The history as it is when a plan is done."""
    left = []
    for decision in plan.decisions:
        if decision.reasons:
            size, gone = decision.size, decision.level is not decision.checkpoint.level
            changed = {"level": decision.level, "size": size, "state_size": 0} if gone else {}
            left.append(replace(decision.checkpoint, **changed))
    return left


@given(histories(), rules, st.lists(budgets, max_size=2), facts, st.data())
def test_whatever_the_rules_and_budgets_the_invariants_hold(history, rules, limits, facts, data):
    resumed = data.draw(st.sampled_from([None, *(each.id for each in history)]))
    asked = data.draw(st.permutations([*rules, *limits]))
    plan = plan_retention(data.draw(st.permutations(history)), asked, replace(facts, resumed_from=resumed))
    lost = {each.id for each in (*plan.prune, *plan.demote)}
    newest = max(history, key=lambda each: each.serial)
    own = [each for each in history if each.run_id == RUN]
    to_resume = [each for each in own if each.resumable]
    assert newest.id not in lost
    assert resumed not in lost
    assert not any(each.id in lost for each in history if each.pinned or each.run_id != RUN)
    assert not own or own[-1].id not in lost
    assert not to_resume or to_resume[-1].id not in lost
    assert sorted([*plan.keep, *plan.prune], key=lambda each: each.serial) == history
    assert all(decision.level.rank <= decision.checkpoint.level.rank for decision in plan.decisions)
    assert all(decision.against for decision in plan.decisions if decision.checkpoint.id in lost)
    if not asked:
        assert not lost


@given(histories(), st.lists(keepers, min_size=1, max_size=3), facts)
def test_the_highest_level_that_any_rule_asks_for_wins(history, rules, facts):
    plan = plan_retention(history, rules, facts)
    own = tuple(each for each in history if each.run_id == RUN)
    for decision in plan.decisions:
        asked = [
            Level(getattr(rule, "level", Level.FULL))
            for rule in rules
            if decision.checkpoint in own and decision.checkpoint.serial in rule.reasons_to_keep(own, facts)
        ]
        if decision.bound:
            assert decision.level is decision.checkpoint.level
        else:
            assert bool(decision.reasons) == bool(asked)
            full = Level.FULL in asked and decision.checkpoint.level is Level.FULL
            assert not asked or decision.level is (Level.FULL if full else Level.WEIGHTS)


@given(histories(), rules, budgets, facts)
def test_within_a_budget_there_is_room_for_the_next_or_the_plan_says_what_is_short(history, rules, budget, facts):
    plan = plan_retention(history, [*rules, budget], facts)
    limit = budget.allowed_bytes(facts)
    if limit is None:
        assert plan.limit is None
        return
    least = sum(decision.size for decision in plan.decisions if decision.bound) + facts.other_bytes
    used = sum(decision.size for decision in plan.decisions) + facts.other_bytes
    assert plan.short == max(0, least + facts.next_bytes - limit)
    if not plan.short:
        assert used + facts.next_bytes + plan.trash_room <= limit
    elif least <= limit:
        assert used <= limit
    else:
        # What cannot be kept within costs nothing.
        assert plan.keep == plan_retention(history, rules, facts).keep


@given(histories(), rules, budgets, facts)
def test_a_budget_takes_no_more_than_it_must(history, rules, budget, facts):
    limit = budget.allowed_bytes(facts)
    plan = plan_retention(history, [*rules, budget], facts)
    if limit is None:
        return
    used = sum(decision.size for decision in plan.decisions) + facts.other_bytes + facts.next_bytes
    taken = [decision for decision in plan.decisions if decision.against.startswith("over the disk budget")]
    if taken and not plan.short:
        assert used + max(decision.freed for decision in taken) > limit


@given(histories(), rules, st.lists(budgets, max_size=1), facts, st.data())
def test_the_plan_does_not_depend_on_the_order_of_what_it_is_given(history, rules, limits, facts, data):
    shuffled = plan_retention(data.draw(st.permutations(history)), [*rules, *limits], facts)
    assert shuffled == plan_retention(history, [*rules, *limits], facts)


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


@given(st.lists(numbers, min_size=1, max_size=12), st.integers(1, 3), st.sampled_from(["min", "max"]), st.booleans())
def test_pruning_after_each_save_never_loses_the_best(scores, n, mode, weights):
    rules = [KeepBest(n, "loss", mode, level="weights" if weights else "full"), KeepLast(1)]
    left: list[Checkpoint] = []
    for new in scored(*scores):
        left = left_by(plan_retention([*left, new], rules, FACTS))
    whole = scored(*scores)
    # With no number at all the newest stand in for the best, so only numbers are promised to outlive each save.
    found = best(whole, "loss", mode)
    if found is not None and is_usable(found.metrics["loss"], mode):
        assert found.id in {each.id for each in left}
    assert whole[-1].id in {each.id for each in left}
    assert left[-1].level is Level.FULL


@given(histories(), rules, facts)
def test_doing_a_plan_again_changes_nothing_more(history, rules, facts):
    again = plan_retention(left_by(plan_retention(history, rules, facts)), rules, facts)
    assert again.prune == () and again.demote == ()
