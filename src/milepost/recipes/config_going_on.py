"""Sections on how a run goes on: from which checkpoint, and when it had better not."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from milepost.policy.health import LossBand
from milepost.recipes.config_section import Positive, Section, Whole

_BAND = LossBand()


class ResumeConfig(Section):
    """Where to go on from, and which changed settings are meant."""

    from_: str | Annotated[int, Field(ge=0)] = Field(
        "auto", alias="from", description="auto, never, healthy, a step, or a path"
    )
    skip_samples: Annotated[int, Field(ge=0)] = Field(0, description="samples after the checkpoint to leave out")
    allow_changes: list[str] = Field(default_factory=list, description="guarded keys that may differ")

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _skips_from_somewhere(self) -> ResumeConfig:
        if self.skip_samples and self.from_ in ("auto", "never", "healthy"):
            raise ValueError(
                f"skip_samples needs from: a step or a path; after from: {self.from_} it would leave samples out again "
                "each time the run goes on"
            )
        return self


class DivergenceConfig(Section):
    """A guard over the loss, the settings of its band being those of ``LossBand``."""

    action: Literal["stop"] = Field("stop", description="stop: end with exit status 3, saving nothing more")
    window: Annotated[int, Field(ge=2)] = Field(_BAND.window, description="sound losses that make the band")
    width: Positive = Field(_BAND.width, description="robust standard deviations above their median")
    least: Annotated[int, Field(ge=2)] = Field(_BAND.least, description="sound losses before a high one is unsound")
    patience: Whole = Field(
        3, description="high losses in a row that end the run; one that is no number ends it at once"
    )

    @model_validator(mode="after")
    def _band(self) -> DivergenceConfig:
        self.band()
        return self

    def band(self) -> LossBand:
        """The rule that judges a loss."""
        return LossBand(self.window, self.width, self.least)
