"""Keep rules that came with levels and budgets: which checkpoints they want, at which level, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from milepost.policy.budget import DiskBudget, DiskLimit
from milepost.policy.peak import Peak, Sizes, describe, expected_peak
from milepost.policy.retention import Facts, KeepBest, KeepEvery, KeepLast, plan_retention
from milepost.policy.spread import KeepLogSpaced, KeepWithin
from milepost.records import Level
from tests.policy.histories import FACTS, KeepNothing, checkpoint, kept, scored

HUNDREDS = [checkpoint(step, serial) for serial, step in enumerate(range(100, 1300, 100), start=1)]
NOON = replace(FACTS, now=12 * 3600.0)


def levels(checkpoints, rules, facts=FACTS):
    plan = plan_retention(checkpoints, rules, facts)
    return {each.checkpoint.step: each.level.value for each in plan.decisions if each.reasons}


@pytest.mark.parametrize(
    ("first", "factor", "expected"),
    [
        (100, 2.0, [100, 200, 400, 800, 1200]),
        (150, 2.0, [200, 300, 600, 1200]),
        (1, 10.0, [100, 1000, 1200]),
        (5000, 2.0, [1200]),
        (1000, 1.1, [1000, 1100, 1200]),
    ],
)
def test_log_spaced_keeps_the_first_from_each_step_of_the_series_on(first, factor, expected):
    assert kept(HUNDREDS, [KeepLogSpaced(first, factor)]) == expected


def test_log_spaced_keeps_the_same_ones_however_often_it_is_asked():
    left = []
    for new in HUNDREDS:
        left = list(plan_retention([*left, new], [KeepLogSpaced(100, 2.0)], FACTS).keep)
    assert [each.step for each in left] == [100, 200, 400, 800, 1200]


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("2h", [11, 12]),
        ("90min", [11, 12]),
        (3600, [12]),
        ("0s", [12]),
        ("1d", list(range(1, 13))),
        ("1w", list(range(1, 13))),
    ],
)
def test_within_goes_by_the_clock_that_it_is_told(duration, expected):
    history = [checkpoint(hour, created=hour * 3600.0) for hour in range(1, 13)]
    assert kept(history, [KeepWithin(duration)], NOON) == expected


def test_a_checkpoint_from_the_future_is_young():
    history = [checkpoint(1, created=99 * 3600.0), checkpoint(2, created=3600.0), checkpoint(3, created=3700.0)]
    assert kept(history, [KeepWithin("1h")], NOON) == [1, 3]


def test_the_highest_level_wins_and_the_newest_stays_whole():
    history = scored(0.1, 0.5, 0.4, 0.6, 0.7)
    rules = [KeepLast(3, level="weights"), KeepBest(1, "loss", level="weights"), KeepEvery(3)]
    assert levels(history, rules) == {1: "weights", 3: "full", 4: "weights", 5: "full"}
    plan = plan_retention(history, rules, FACTS)
    assert [each.step for each in plan.prune] == [2]
    assert [each.step for each in plan.demote] == [1, 4]
    assert plan.reasons(history[0]) == ("best loss (0.1), weights",)
    assert plan.about(history[0]).against == "no rule wants more than its weights"
    assert plan.about(history[1]).against == "no rule keeps it"


def test_what_has_lost_its_training_state_does_not_get_it_back():
    history = [checkpoint(1, level=Level.WEIGHTS), checkpoint(2), checkpoint(3)]
    assert levels(history, [KeepLast(3)]) == {1: "weights", 2: "full", 3: "full"}


def test_the_newest_that_can_be_resumed_stays_whole_beside_newer_weights():
    history = [checkpoint(1), checkpoint(2), checkpoint(3, level=Level.WEIGHTS)]
    plan = plan_retention(history, [KeepNothing()], FACTS)
    assert [decision.reasons for decision in plan.decisions] == [(), ("newest that can be resumed",), ("newest",)]
    assert plan.demote == ()


def test_without_rules_nothing_is_demoted():
    assert plan_retention(scored(0.1, 0.2), [], FACTS).demote == ()


def budgeted(limit, rules=(), **facts):
    history = scored(0.1, 0.5, 0.4, 0.6, 0.7)
    plan = plan_retention(history, [*rules, DiskBudget(limit)], replace(FACTS, **facts))
    return {each.checkpoint.step: each.level.value[0] if each.reasons else "-" for each in plan.decisions}


@pytest.mark.parametrize(
    ("limit", "rules", "expected"),
    [
        (500, (), "fffff"),
        (499, (), "wffff"),
        (260, (), "wwwwf"),
        (259, (), "-wwwf"),
        (179, (), "---wf"),
        (100, (), "----f"),
        (99, (), "fffff"),
        (400, (KeepLast(2),), "---ff"),
        (150, (KeepLast(2),), "---wf"),
        (240, (KeepLast(2), KeepBest(1, "loss")), "f--wf"),
        (199, (KeepLast(2), KeepBest(1, "loss")), "w--wf"),
        (179, (KeepLast(2), KeepBest(1, "loss")), "w---f"),
        (139, (KeepLast(2), KeepBest(1, "loss")), "----f"),
        (150, (KeepBest(1, "loss"), KeepEvery(1)), "w---f"),
        (240, (KeepLast(3), KeepEvery(3)), "--fwf"),
    ],
)
def test_a_budget_takes_states_first_then_what_is_least_wanted_the_oldest_first(limit, rules, expected):
    assert "".join(budgeted(limit, rules).values()) == expected


def test_a_budget_leaves_room_for_the_next_one_and_counts_all_else():
    assert budgeted(500, next_bytes=100) == {1: "w", 2: "w", 3: "f", 4: "f", 5: "f"}
    assert budgeted(500, other_bytes=150) == {1: "w", 2: "w", 3: "w", 4: "f", 5: "f"}


def test_a_budget_that_cannot_hold_the_next_one_says_what_is_short_and_takes_nothing_for_it():
    history = [checkpoint(1), checkpoint(2, pinned=True), checkpoint(3)]
    plan = plan_retention(history, [DiskBudget(300)], replace(FACTS, next_bytes=150))
    assert (plan.short, plan.limit, plan.prune, plan.demote) == (50, 300, (), ())


def test_the_trash_may_keep_what_the_budget_leaves():
    plan = plan_retention([checkpoint(1), checkpoint(2)], [DiskBudget(500)], replace(FACTS, next_bytes=100))
    assert plan.trash_room == 200


def test_a_share_of_the_disk_is_known_where_its_size_is():
    assert DiskBudget("80%").allowed_bytes(Facts(disk_bytes=1000)) == 800
    assert DiskBudget("80%").allowed_bytes(Facts()) is None
    assert DiskBudget("1.5GB").allowed_bytes(Facts()) == 1_500_000_000
    assert isinstance(DiskBudget("80%"), DiskLimit) and not isinstance(KeepLast(1), DiskLimit)


def test_a_rule_of_ones_own_may_have_a_level_and_a_limit():
    class Odd:
        level = "weights"

        def reasons_to_keep(self, checkpoints, facts):
            return {each.serial: "odd" for each in checkpoints if each.step % 2}

    class Two:
        def reasons_to_keep(self, checkpoints, facts):
            return {}

        def allowed_bytes(self, facts):
            return 200

    assert levels([checkpoint(step) for step in range(1, 6)], [Odd(), Two()]) == {1: "weights", 3: "weights", 5: "full"}


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: KeepLogSpaced(0, 2), ValueError, r"KeepLogSpaced\(first=0\)"),
        (lambda: KeepLogSpaced(10, 1), ValueError, r"KeepLogSpaced\(factor=1\)"),
        (lambda: KeepLogSpaced(10, 1.0001), ValueError, r"factor must be at least 1\.001"),
        (lambda: KeepWithin("2 fortnights"), ValueError, r"KeepWithin: duration='2 fortnights'"),
        (lambda: KeepWithin(-1), ValueError, "at least 0"),
        (lambda: KeepWithin(None), TypeError, "duration=None"),
        (lambda: KeepWithin(float("nan")), ValueError, "finite"),
        (lambda: DiskBudget("much"), ValueError, "DiskBudget: limit='much'"),
        (lambda: DiskBudget("0%"), ValueError, "at most 100%"),
        (lambda: DiskBudget("101%"), ValueError, "at most 100%"),
        (lambda: DiskBudget(0), ValueError, "at least one byte"),
        (lambda: DiskBudget(None), TypeError, "limit=None"),
        (lambda: KeepLast(1, level="half"), ValueError, r"KeepLast\(level='half'\).*'full', 'weights'"),
        (lambda: KeepBest(1, "loss", level=None), ValueError, r"KeepBest\(level=None\)"),
        (lambda: KeepEvery(5, level="packed"), ValueError, r"KeepEvery\(level='packed'\)"),
        (lambda: DiskBudget("5GB", level=1), ValueError, r"DiskBudget\(level=1\)"),
    ],
)
def test_a_bad_argument_fails_where_it_is_written(make, error, text):
    with pytest.raises(error, match=text):
        make()


SIZES = Sizes(full=48, weights=16)


@pytest.mark.parametrize(
    ("rules", "full", "weights", "total"),
    [
        ([KeepLast(2)], 2, 0, 3 * 48),
        ([KeepLast(2), KeepBest(1, "loss")], 3, 0, 4 * 48),
        ([KeepBest(1, "loss")], 2, 0, 3 * 48),
        ([KeepLast(1), KeepBest(2, "loss", level="weights")], 1, 2, 2 * 48 + 2 * 16),
        ([KeepLast(3, level="weights")], 1, 2, 2 * 48 + 2 * 16),
        ([KeepEvery(10), KeepLast(1)], None, 0, None),
        ([], None, 0, None),
        ([DiskBudget(1000)], None, 0, 1000),
        ([KeepLast(2), DiskBudget(100)], 2, 0, 100),
    ],
)
def test_the_expected_peak_is_what_the_rules_keep_and_one_more(rules, full, weights, total):
    peak = expected_peak(rules, SIZES, FACTS)
    assert (peak.full, peak.weights, peak.bytes) == (full, weights, total)


def test_no_history_takes_more_than_the_expected_peak():
    rules = [KeepLast(2, level="weights"), KeepBest(2, "loss"), KeepBest(1, "loss", "max", level="weights")]
    sizes = Sizes(100, 40)
    peak, left = expected_peak(rules, sizes, FACTS), []
    for new in scored(0.5, 0.4, 0.9, 0.3, 0.7, 0.2, 0.8, 1.0):
        assert sum(each.size for each in left) + sizes.full <= (peak.bytes or 0)
        left = [
            replace(each.checkpoint, level=each.level, size=each.size, state_size=each.size - 40)
            for each in plan_retention([*left, new], rules, FACTS).decisions
            if each.reasons
        ]


def test_the_peak_is_said_for_people():
    said = describe(Peak(3, 0, Sizes(48_250_000_000, 16 * 10**9)), free=410 * 10**9, present=0)
    assert said == "at most 3 full + 1 being written: 193.0 GB (one takes 48.2 GB); 410.0 GB are free"
    said = describe(Peak(None, 0, Sizes(50, 20)), free=260, present=50)
    assert said == "all that are saved will be kept, one takes 50 B; 260 B are free, enough for 5 more"
