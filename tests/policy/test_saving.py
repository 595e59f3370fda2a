"""Schedules: the same steps in one go, over any restarts, and with steps left out."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.policy.saving import (
    AnyOf,
    AtEpochEnd,
    AtSteps,
    EveryMinutes,
    EverySteps,
    First,
    LogSpaced,
    as_schedule,
    first_due,
    next_due,
    reasons_to_save,
)
from milepost.records import Moment


def due(schedule: Any, visited: list[int], *, start: int = 0, seconds_a_step: float = 1.0) -> list[int]:
    """The visited steps at which a schedule is due; training time grows with the step."""
    return [
        step
        for before, step in pairwise([start, *visited])
        if schedule.reason_to_save(
            Moment(step, before, seconds=step * seconds_a_step, previous_seconds=before * seconds_a_step)
        )
    ]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (EverySteps(5), [5, 10, 15, 20]),
        (EverySteps(1), list(range(1, 21))),
        (EverySteps(30), []),
        (EverySteps(5, offset=3), [3, 8, 13, 18]),
        (EverySteps(5, offset=30), []),
        (AtSteps([7, 3, 3, 40]), [3, 7]),
        (LogSpaced(first=2, factor=2), [2, 4, 8, 16]),
        (LogSpaced(first=1, factor=1.5), [1, 2, 3, 5, 8, 12, 18]),
        (LogSpaced(first=1, factor=1.001), list(range(1, 21))),
        (First(), [1]),
        (EveryMinutes(0.1), [6, 12, 18]),
        (AtEpochEnd(), []),
        (AnyOf((EverySteps(8), AtSteps([3]))), [3, 8, 16]),
        (AnyOf(()), []),
    ],
)
def test_a_schedule_is_due_at_its_steps(schedule, expected):
    assert due(schedule, list(range(1, 21))) == expected


@pytest.mark.parametrize(("last", "expected"), [(10, [5, 10]), (11, [5, 10])])
def test_case_01_each_multiple_is_due_once(last, expected):
    assert due(EverySteps(5), list(range(1, last + 1))) == expected


def test_case_01_asking_again_at_the_same_step_gives_nothing():
    assert EverySteps(5).reason_to_save(Moment(10, 10)) is None


def test_case_02_only_optimizer_updates_are_counted():
    updates = [micro_step // 4 for micro_step in range(1, 17) if micro_step % 4 == 0]
    assert due(EverySteps(2), updates) == [2, 4]


@pytest.mark.parametrize("schedule", [EverySteps(5), EverySteps(1), AtSteps([1]), LogSpaced(1, 2), EveryMinutes(1)])
def test_case_03_no_schedule_asks_for_step_0(schedule):
    assert schedule.reason_to_save(Moment(0, 0)) is None
    assert next_due(schedule, 0, 100) != 0


def test_case_04_the_count_never_restarts_at_an_epoch():
    several = as_schedule([EverySteps(5), AtEpochEnd()])
    answers = {step: reasons_to_save(several, Moment(step, step - 1, epoch_end=step % 3 == 0)) for step in range(1, 13)}
    assert [step for step, reasons in answers.items() if "every 5 steps" in reasons] == [5, 10]
    assert [step for step, reasons in answers.items() if "end of an epoch" in reasons] == [3, 6, 9, 12]


def test_case_04_an_epoch_end_is_due_whatever_the_step():
    assert AtEpochEnd().reason_to_save(Moment(3, 2, epoch_end=True)) == "end of an epoch"


schedules = st.one_of(
    st.builds(EverySteps, st.integers(1, 40), st.integers(0, 40)),
    st.builds(AtSteps, st.lists(st.integers(1, 200), min_size=1, max_size=10)),
    st.builds(LogSpaced, st.integers(1, 50), st.floats(1.001, 5)),
    st.builds(EveryMinutes, st.floats(0.01, 2)),
    st.just(First()),
)


@given(schedules, st.lists(st.integers(1, 199), unique=True))
def test_restarts_at_any_steps_change_nothing(schedule, stops):
    whole = due(schedule, list(range(1, 201)))
    parts = []
    for start, end in pairwise([0, *sorted(stops), 200]):
        parts += due(schedule, list(range(start + 1, end + 1)), start=start)
    assert parts == whole


@given(schedules, st.lists(st.integers(1, 199), max_size=10))
def test_crashes_that_lose_the_steps_since_the_last_save_change_nothing(schedule, crashes):
    whole = due(schedule, list(range(1, 201)))
    saved: set[int] = set()
    start = 0
    for end in [*sorted(crashes), 200]:
        saved.update(due(schedule, list(range(start + 1, end + 1)), start=start))
        start = max(saved, default=0)
    assert sorted(saved) == whole


@given(schedules, st.lists(st.integers(1, 200), unique=True, min_size=1))
def test_steps_that_are_left_out_count_as_passed(schedule, visited):
    visited = sorted(visited)
    whole = due(schedule, list(range(1, visited[-1] + 1)))
    expected = [step for before, step in pairwise([0, *visited]) if any(before < each <= step for each in whole)]
    assert due(schedule, visited) == expected


@given(schedules.filter(lambda schedule: hasattr(schedule, "steps_after")), st.integers(0, 150))
def test_next_due_foretells_the_next_save(schedule, after):
    whole = due(schedule, list(range(1, 201)))
    assert next_due(schedule, after, 200) == min((step for step in whole if step > after), default=None)


def test_next_due_of_several_is_the_soonest_and_of_the_clock_is_unknown():
    several = as_schedule([EverySteps(50), AtSteps([30]), EveryMinutes(1), AtEpochEnd()])
    assert next_due(several, 10, 1000) == 30
    assert next_due(several, 30, 1000) == 50
    assert next_due(EveryMinutes(1), 0, 1000) is None
    assert next_due(several, 10, 20) is None


def test_first_due_tells_of_a_schedule_that_never_saves_before_the_last_step():
    assert first_due(EverySteps(500), 499) is None
    assert first_due(EverySteps(500), 500) == 500
    assert first_due([EverySteps(500), AtSteps([70, 80])], 100) == 70
    assert first_due(First(), 100) == 1
    assert first_due(None, 100) is None


@pytest.mark.parametrize("step", [10**9, 10**12, 10**15, 10**18])
@pytest.mark.parametrize("schedule", [EverySteps(7), LogSpaced(10, 2), LogSpaced(1, 1.001), AtSteps([5])])
def test_huge_steps_agree_with_what_was_foretold(schedule, step):
    foretold = next_due(schedule, step - 1, step) is not None
    assert (schedule.reason_to_save(Moment(step, step - 1)) is not None) == foretold


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (LogSpaced(100, 1e307), [100]),
        (LogSpaced(10**400, 2), []),
        (LogSpaced(3, 10**15), [3]),
        (LogSpaced(10**9, 10), [10**9, 10**10, 10**11, 10**12, 10**13, 10**14, 10**15]),
    ],
)
def test_large_factors_and_large_beginnings_end_before_infinity(schedule, expected):
    found, step = [], 0
    while (following := next_due(schedule, step, 10**18)) is not None:
        step = following
        found.append(step)
        assert schedule.reason_to_save(Moment(step, step - 1)) is not None
    assert found == expected


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 100), st.integers(0, 100))
def test_every_steps_is_due_at_offset_and_each_n_after_it(n, offset, before, more):
    expected = any(
        step >= offset and step > 0 and (step - offset) % n == 0 for step in range(before + 1, before + more + 1)
    )
    assert (EverySteps(n, offset).reason_to_save(Moment(before + more, before)) is not None) == expected


def test_a_clock_that_is_not_even_passes_each_mark_once():
    clock = [0.0, 59.9, 60.0, 61.0, 200.0, 239.9, 240.0]
    moments = [
        Moment(step + 1, step, seconds=now, previous_seconds=then) for step, (then, now) in enumerate(pairwise(clock))
    ]
    asked = [moment.seconds for moment in moments if EveryMinutes(1).reason_to_save(moment)]
    assert asked == [60.0, 200.0, 240.0]


def test_all_reasons_are_given():
    several = as_schedule([EverySteps(5), AtSteps([10]), First()])
    assert reasons_to_save(several, Moment(10, 9)) == ("every 5 steps", "step 10 was asked for")
    assert several.reason_to_save(Moment(10, 9)) == "every 5 steps; step 10 was asked for"
    assert reasons_to_save(as_schedule(None), Moment(10, 9)) == ()


def test_one_inside_another_is_opened_up():
    nested = AnyOf((EverySteps(5), AnyOf([AtSteps([10]), AnyOf()])))
    assert nested == AnyOf((EverySteps(5), AtSteps([10]))) == as_schedule(nested)
    assert reasons_to_save(nested, Moment(10, 9)) == ("every 5 steps", "step 10 was asked for")
    assert next_due(nested, 5, 100) == 10
    assert hash(nested) == hash(as_schedule([EverySteps(5), AtSteps([10])]))


@pytest.mark.parametrize("form", [EverySteps(5), [EverySteps(5)], (EverySteps(5),), AnyOf((EverySteps(5),))])
def test_one_a_list_or_any_of_them_mean_the_same(form):
    assert as_schedule(form) == AnyOf((EverySteps(5),))
    assert reasons_to_save(form, Moment(5, 4)) == ("every 5 steps",)
    assert reasons_to_save(form, Moment(6, 5)) == ()
    assert first_due(form, 10) == next_due(form, 0, 10) == 5


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: EverySteps(0), ValueError, r"EverySteps\(n=0\): n must be a whole number of at least 1"),
        (lambda: EverySteps(-3), ValueError, r"n=-3"),
        (lambda: EverySteps(1.5), TypeError, r"n=1\.5"),
        (lambda: EverySteps("10"), TypeError, r"n='10'"),
        (lambda: EverySteps(True), TypeError, r"n=True"),
        (lambda: EverySteps(None), TypeError, r"n=None"),
        (lambda: EverySteps(np.True_), TypeError, r"n=np\.True_"),
        (lambda: EverySteps(np.float64(5)), TypeError, r"n=np\.float64"),
        (lambda: EverySteps(np.array([1, 2])), TypeError, r"n=array.*whole number"),
        (lambda: EverySteps(5, offset=-1), ValueError, r"offset=-1"),
        (lambda: AtSteps([]), ValueError, r"AtSteps"),
        (lambda: AtSteps([0]), ValueError, r"steps=0"),
        (lambda: AtSteps("12"), TypeError, r"AtSteps"),
        (lambda: AtSteps(12), TypeError, r"AtSteps"),
        (lambda: LogSpaced(0, 2), ValueError, r"first=0"),
        (lambda: LogSpaced(10, 1), ValueError, r"factor=1"),
        (lambda: LogSpaced(10, 1.0000001), ValueError, r"factor"),
        (lambda: LogSpaced(10, math.inf), ValueError, r"factor=inf"),
        (lambda: LogSpaced(10, math.nan), ValueError, r"factor=nan"),
        (lambda: LogSpaced(10, "2"), TypeError, r"factor='2'"),
        (lambda: EveryMinutes(0), ValueError, r"minutes=0"),
        (lambda: EveryMinutes("5"), TypeError, r"minutes='5'"),
        (lambda: EveryMinutes(True), TypeError, r"minutes=True"),
        (lambda: EveryMinutes(np.True_), TypeError, r"minutes=np\.True_"),
        (lambda: EveryMinutes(1j), TypeError, r"minutes=1j"),
        (lambda: EveryMinutes(-math.inf), ValueError, r"minutes=-inf"),
        (lambda: EveryMinutes(10**400), ValueError, r"minutes must be a finite number"),
        (lambda: AnyOf((EverySteps(5), 7)), TypeError, r"AnyOf: schedules\[1\] is 7"),
        (lambda: AnyOf([First]), TypeError, r"AnyOf: schedules\[0\]"),
        (lambda: AnyOf(EverySteps(5)), TypeError, r"AnyOf\(schedules=EverySteps"),
        (lambda: reasons_to_save([7], Moment(1)), TypeError, r"save\[0\] is 7"),
        (lambda: as_schedule([EverySteps(5), 7]), TypeError, r"save\[1\] is 7"),
        (lambda: as_schedule(EverySteps), TypeError, r"not a schedule"),
        (lambda: as_schedule(500), TypeError, r"EverySteps\(500\)"),
    ],
)
def test_case_33_a_bad_argument_fails_where_it_is_written(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_numpy_integers_are_welcome():
    assert EverySteps(np.int64(5)) == EverySteps(5)
    assert AtSteps(np.array([3, 1])) == AtSteps([1, 3])


def test_any_object_with_the_method_is_a_schedule():
    class AtPrimes:
        def reason_to_save(self, moment: Moment) -> str | None:
            return "prime" if moment.step in (2, 3, 5, 7) else None

    assert due(as_schedule([AtPrimes()]), list(range(1, 11))) == [2, 3, 5, 7]
