"""Learning rates by step: warm-up, then constant, linear or cosine; and what a run of another length makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch.optim import Optimizer

from milepost.errors import ConfigError

ScheduleName = Literal["constant", "linear", "cosine"]
OnBudgetChange = Literal["refuse", "replan", "keep"]


@dataclass(frozen=True, slots=True)
class RatePlan:
    """Learning rates of a run of ``total_steps`` updates, as factors of the configured one.

    The factor rises to 1 over the warm-up; the update after it still has 1, and from there it falls towards
    ``min_factor``, which it has after the last update. The warm-up is a number of updates, or a share of all.
    """

    name: ScheduleName = "constant"
    total_steps: int = 1
    warmup: int | float = 0
    min_factor: float = 0.0

    @property
    def warmup_steps(self) -> int:
        """Updates of warm-up."""
        return self.warmup if isinstance(self.warmup, int) else int(self.warmup * self.total_steps)

    @property
    def depends_on_length(self) -> bool:
        """Whether another number of steps means other learning rates; of a share of warm-up, the first plan counts."""
        return self.name != "constant"

    def factor(self, step: int) -> float:
        """The factor of update number ``step`` (from 1); after ``total_steps`` it stays at its end."""
        warmup = self.warmup_steps
        if step <= warmup:
            return step / warmup
        if self.name == "constant":
            return 1.0
        progress = min(1.0, (step - 1 - warmup) / max(1, self.total_steps - warmup))
        remaining = 1.0 - progress if self.name == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.min_factor + (1.0 - self.min_factor) * remaining


class PlannedRates:
    """Sets an optimizer's learning rates from a plan; ``step`` comes after each update.

    Its state is the number of updates taken, the length that the rates were planned for, and the run's length.
    """

    def __init__(self, optimizer: Optimizer, plan: RatePlan) -> None:
        self._optimizer = optimizer
        self._bases = [float(group["lr"]) for group in optimizer.param_groups]
        self.plan = plan
        self.budget = plan.total_steps
        self.taken = 0
        self._apply()

    @property
    def rate(self) -> float:
        """The learning rate of the next update (of the first parameter group)."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self) -> None:
        """Go on to the next update's rate."""
        self.taken += 1
        self._apply()

    def state_dict(self) -> dict[str, int]:
        """Three whole numbers."""
        return {"taken": self.taken, "planned_for": self.plan.total_steps, "budget": self.budget}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the updates taken so far. A run of another length keeps its saved plan until ``settle``."""
        self.taken = state["taken"]
        self.plan = replace(self.plan, total_steps=state["planned_for"])
        self.budget = state["budget"]
        self._apply()

    def settle(self, total_steps: int, answer: OnBudgetChange, say: Callable[[str], None]) -> None:
        """Take note of the run's length now, as the configuration gives it, and set the rate that comes next.

        Raises as ``check_budget`` does.
        """
        self._apply()
        if total_steps == self.budget:
            return
        check_budget(self.plan, self.budget, total_steps, answer)
        before, rate = self.budget, self.rate
        self.budget = total_steps
        # A share of warm-up is over; it must not come again because the run is longer.
        follows = answer == "replan" if self.plan.depends_on_length else isinstance(self.plan.warmup, int)
        if follows:
            self.plan = replace(self.plan, total_steps=total_steps)
        self._apply()
        if self.plan.depends_on_length:
            say(
                f"the run's length is now {total_steps:,} steps instead of {before:,}; on_budget_change: {answer}, so "
                f"the learning rate of step {self.taken + 1:,} is {self.rate:.3g} (it would have been {rate:.3g}) and "
                f"the last step's is {self._bases[0] * self.plan.factor(total_steps):.3g}"
            )

    def _apply(self) -> None:
        factor = self.plan.factor(self.taken + 1)
        for group, base in zip(self._optimizer.param_groups, self._bases, strict=True):
            group["lr"] = base * factor


def check_budget(plan: RatePlan, before: int, now: int, answer: OnBudgetChange) -> None:
    """Raise ConfigError if a run with a decaying rate has another length than before and nothing says what to do."""
    if now != before and plan.depends_on_length and answer == "refuse":
        raise ConfigError(
            f"this run was planned for {before:,} steps and is now to have {now:,}, but its {plan.name} learning rate "
            "schedule depends on that length. Say what should become of it: lr_scheduler.on_budget_change: replan "
            "(the schedule of the new length, from here on; the rate may jump) or keep (the old one; after its end "
            "the rate stays at its last value).",
            key="lr_scheduler.on_budget_change",
            value=answer,
        )
