"""How many steps a run has: from rows, batch, accumulation, epochs and limits."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.errors import ConfigError
from milepost.recipes.config import RecipeConfig


@dataclass(frozen=True, slots=True)
class RunLength:
    """``epoch_samples`` rows make ``steps_per_epoch`` steps; after ``total_steps`` the run has ended."""

    rows: int
    batch_size: int
    accumulation: int
    epoch_samples: int
    steps_per_epoch: int
    total_steps: int

    def ended(self, step: int) -> str:
        """What is said of a run that is at its end already."""
        return (
            f"this run is finished: it is at step {step:,} of {self.total_steps:,}. Raise epochs or max_steps to go "
            "on, or choose another output_dir for a new run."
        )

    def sentence(self) -> str:
        """What an epoch is made of, and what it leaves out."""
        told = (
            f"{self.rows:,} rows at {self.batch_size} × {self.accumulation} make "  # noqa: RUF001
            f"{self.steps_per_epoch:,} steps an epoch"
        )
        left_out = self.rows - self.epoch_samples
        return told + (f"; {left_out:,} row{'s' if left_out > 1 else ''} left out each epoch" if left_out else "")


def run_length(config: RecipeConfig, rows: int) -> RunLength:
    """The length of a run over so many rows. Raises ConfigError if they do not make a single step."""
    window = config.batch_size * config.gradient_accumulation_steps
    steps = rows // window if config.drop_incomplete_window else -(-rows // window)
    if not steps:
        raise ConfigError(
            f"dataset: {rows} rows are fewer than the {config.batch_size} × "  # noqa: RUF001
            f"{config.gradient_accumulation_steps} of one step, so there would be no step at all. Lower batch_size or "
            "gradient_accumulation_steps, or set drop_incomplete_window: false.",
            key="batch_size",
            value=config.batch_size,
        )
    steps = min(steps, config.max_steps_per_epoch or steps)
    limits = [config.max_steps]
    if config.number_of_epochs is not None:
        limits.append(config.number_of_epochs * steps)
    return RunLength(
        rows=rows,
        batch_size=config.batch_size,
        accumulation=config.gradient_accumulation_steps,
        epoch_samples=min(rows, steps * window),
        steps_per_epoch=steps,
        total_steps=min(limit for limit in limits if limit is not None),
    )
