"""What the sections of a configuration have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Whole = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Unknown keys are errors, and a text is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
