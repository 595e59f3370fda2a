"""Learning rates by step, and what becomes of them when a run's length changes."""

from __future__ import annotations

import pytest
import torch

from milepost.errors import ConfigError
from milepost.recipes.schedules import PlannedRates, RatePlan


def optimizer(lr: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def series(rates: PlannedRates, steps: int) -> list[float]:
    taken = []
    for _ in range(steps):
        taken.append(rates.rate)
        rates.step()
    return taken


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (RatePlan("constant", 4, 0), [1, 1, 1, 1]),
        (RatePlan("constant", 4, 2), [0.5, 1, 1, 1]),
        (RatePlan("linear", 4, 0), [1, 0.75, 0.5, 0.25]),
        (RatePlan("linear", 6, 2), [0.5, 1, 1, 0.75, 0.5, 0.25]),
        (RatePlan("linear", 4, 0, 0.2), [1, 0.8, 0.6, 0.4]),
        (RatePlan("linear", 4, 0.5), [0.5, 1, 1, 0.5]),
        (RatePlan("cosine", 2, 0), [1, 0.5]),
        (RatePlan("cosine", 4, 4), [0.25, 0.5, 0.75, 1]),
    ],
)
def test_rates_rise_over_the_warm_up_and_fall_as_named(plan, expected):
    assert [plan.factor(step) for step in range(1, plan.total_steps + 1)] == pytest.approx(expected)
    assert series(PlannedRates(optimizer(), plan), plan.total_steps) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_case_21_resumed_rates_equal_the_unbroken_series_from_the_first_step_on(name):
    plan = RatePlan(name, 10, 3)
    unbroken = series(PlannedRates(optimizer(0.3), plan), 10)
    first = PlannedRates(optimizer(0.3), plan)
    begun = series(first, 5)
    second = PlannedRates(optimizer(0.3), plan)
    second.load_state_dict(first.state_dict())
    assert begun + series(second, 5) == unbroken


def stopped_at_5(name: str) -> PlannedRates:
    first = PlannedRates(optimizer(), RatePlan(name, 10))
    series(first, 5)
    return first


@pytest.mark.parametrize("budget", [20, 8])
def test_case_22_a_changed_length_of_a_decaying_schedule_is_refused(budget):
    first = stopped_at_5("cosine")
    rates = PlannedRates(optimizer(), RatePlan("cosine", budget))
    rates.load_state_dict(first.state_dict())
    with pytest.raises(ConfigError, match=rf"10 steps.*{budget}.*on_budget_change: replan.*keep"):
        rates.settle(budget, "refuse", print)


@pytest.mark.parametrize("budget", [20, 8])
def test_case_22_a_changed_length_is_planned_anew_openly(budget):
    said = []
    rates = PlannedRates(optimizer(), RatePlan("cosine", budget))
    rates.load_state_dict(stopped_at_5("cosine").state_dict())
    rates.settle(budget, "replan", said.append)
    assert series(rates, budget - 5) == [RatePlan("cosine", budget).factor(step) for step in range(6, budget + 1)]
    assert len(said) == 1 and "replan" in said[0]


@pytest.mark.parametrize("budget", [20, 8])
def test_case_22_an_old_plan_that_is_kept_never_rises(budget):
    said = []
    rates = PlannedRates(optimizer(), RatePlan("cosine", budget))
    rates.load_state_dict(stopped_at_5("cosine").state_dict())
    rates.settle(budget, "keep", said.append)
    state = rates.state_dict()
    taken = series(rates, budget - 5)
    assert taken == [RatePlan("cosine", 10).factor(step) for step in range(6, budget + 1)]
    assert taken == sorted(taken, reverse=True)
    assert len(said) == 1 and "keep" in said[0]

    again = PlannedRates(optimizer(), RatePlan("cosine", budget))
    again.load_state_dict(state)
    again.settle(budget, "refuse", said.append)
    assert again.plan.total_steps == 10, "once answered, the same configuration goes on without asking"


def test_case_22_a_constant_rate_does_not_care_for_the_length():
    said = []
    rates = PlannedRates(optimizer(), RatePlan("constant", 20, 2))
    rates.load_state_dict(stopped_at_5("constant").state_dict())
    rates.settle(20, "refuse", said.append)
    assert series(rates, 2) == [1, 1]
    assert said == []
