"""Judging losses and checkpoints by health: tables, and what holds for any history."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.policy.health import LossBand, healthy_first, protected_by_health
from milepost.policy.resuming import resume_candidates
from milepost.policy.retention import Facts, KeepLast, plan_retention
from milepost.records import Checkpoint, Level

NOISY = [2.0, 2.2, 1.9, 2.1, 2.05, 1.95] * 5


def history(*healths: bool | None) -> list[Checkpoint]:
    return [
        Checkpoint(step, Path(f"step_{step}"), step, "run", str(step), 0.0, 1, healthy=health)
        for step, health in enumerate(healths, start=1)
    ]


def steps(checkpoints: tuple[Checkpoint, ...]) -> list[int]:
    return [each.step for each in checkpoints]


@pytest.mark.parametrize(
    ("recent", "loss", "fault"),
    [
        ([], math.nan, "the loss is nan"),
        ([], math.inf, "the loss is inf"),
        ([], -math.inf, "the loss is -inf"),
        ([], 1e9, None),
        (NOISY[:19], 1e9, None),
        (NOISY, 2.6, None),
        (NOISY, 50.0, "above"),
        (NOISY, -50.0, None),
        ([2.0] * 50, 2.4, None),
        ([2.0] * 50, 2.6, "above"),
        ([0.0] * 50, 1e-9, "above"),
        # Outliers do not widen the band, since it goes by medians.
        ([*NOISY, 1e6, 1e6, 1e6], 50.0, "above"),
        # Only the window counts: losses were ten times higher once.
        ([20.0] * 500 + [2.0] * 100, 15.0, "above"),
        ([2.0] * 500 + [20.0] * 100, 21.0, None),
    ],
)
def test_a_loss_is_judged_by_those_before_it(recent, loss, fault):
    found = LossBand().fault(recent, loss)
    assert found is None if fault is None else found is not None and fault in found


@given(st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=60), st.floats(0.01, 100))
def test_the_unit_of_a_loss_does_not_matter(losses, scale):
    band = LossBand()
    top = max(losses) + 1
    assert (band.fault(losses, top) is None) == (band.fault([each * 4 for each in losses], top * 4) is None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_what_was_seen_already_is_never_too_low(losses):
    assert LossBand().fault(losses, min(losses)) is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"window": 1}, "window"),
        ({"width": 0}, "width"),
        ({"width": math.nan}, "width"),
        ({"least": 1}, "least"),
        ({"least": 200}, "least must be at most window"),
    ],
)
def test_a_band_that_cannot_work_is_refused(settings, text):
    with pytest.raises((TypeError, ValueError), match=text):
        LossBand(**settings)


@pytest.mark.parametrize(
    ("healths", "protected"),
    [
        ([None, None], []),
        ([True, True, True], []),
        ([True, True, True, False], [2, 3]),
        ([True, False, False, None], [1]),
        ([True, False, True], []),
        ([False, False], []),
        ([None, False], []),
    ],
)
def test_the_last_healthy_ones_are_protected_while_a_later_one_is_not(healths, protected):
    checkpoints = history(*healths)
    assert steps(protected_by_health(checkpoints)) == protected
    plan = plan_retention(checkpoints, [KeepLast(1)], Facts(run_id="run"))
    assert steps(plan.keep) == sorted({*protected, len(healths)})


@pytest.mark.parametrize(
    ("healths", "order"),
    [
        ([None, None], [2, 1]),
        ([None, True, True], [3, 2, 1]),
        ([None, True, False, None], [2, 1]),
        ([None, False, None], [1]),
        ([False], []),
        ([False, True], [2]),
    ],
)
def test_the_newest_healthy_one_is_gone_on_from(healths, order):
    assert steps(healthy_first(history(*healths)[::-1])) == order
    assert steps(resume_candidates(history(*healths), "healthy")) == order


def test_weights_alone_are_healthy_and_cannot_be_gone_on_from():
    weights = Checkpoint(1, Path("step_1"), 1, "run", "1", 0.0, 1, level=Level.WEIGHTS, healthy=True)
    assert resume_candidates([weights], "healthy") == ()


def test_a_checkpoint_of_weights_alone_takes_no_place_of_the_healthy_ones():
    def made(serial, healthy, level=Level.FULL):
        path = Path(f"step_{serial}")
        return Checkpoint(serial, path, serial, "run", str(serial), 0.0, 1, level=level, healthy=healthy)

    checkpoints = [made(1, True), made(2, True), made(3, True, Level.WEIGHTS), made(4, False)]
    assert [each.serial for each in protected_by_health(checkpoints)] == [1, 2]
