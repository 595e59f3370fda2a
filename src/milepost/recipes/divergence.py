"""The guard over a run's loss: says of each step whether training is sound, and when a run had better end."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from milepost.errors import DivergedError
from milepost.policy.resuming import resume_candidates
from milepost.recipes.config_going_on import DivergenceConfig
from milepost.records import Checkpoint
from milepost.storage.layout import STATE_TREE
from milepost.storage.manifest import read_manifest
from milepost.storage.reader import read_text


class DivergenceGuard:
    """Judges each step by its loss and its gradients. What it judges by belongs to the saved state.

    ``healthy`` is its last judgement, None where it is off; ``fault`` says why the run should end, None as long as it
    should not.
    """

    def __init__(self, settings: DivergenceConfig | None) -> None:
        self._settings = settings
        self._band = None if settings is None else settings.band()
        self._recent: deque[float] = deque(maxlen=None if self._band is None else self._band.window)
        self._in_a_row = 0
        self.healthy: bool | None = None
        self.fault: str | None = None

    def judge(self, loss: torch.Tensor, model: nn.Module) -> None:
        """Read a step's mean loss and the norm of its gradients, and say what they mean."""
        if self._settings is None or self._band is None:
            return
        value = float(loss)
        unsound = self._band.fault(tuple(self._recent), value)
        # Finite losses with such gradients are followed by weights that are no numbers.
        norm = _gradient_norm(model.parameters()) if unsound is None else 0.0
        if not math.isfinite(norm):
            unsound = f"the gradients have the norm {norm}"
        self.healthy = unsound is None
        if unsound is None:
            self._recent.append(value)
            self._in_a_row = 0
            return
        self._in_a_row += 1
        hopeless = not math.isfinite(value) or not math.isfinite(norm)
        if hopeless or self._in_a_row >= self._settings.patience:
            times = "" if self._in_a_row == 1 else f", and {self._in_a_row} such steps came in a row"
            self.fault = unsound + times

    def state_dict(self) -> dict[str, Any]:
        """The losses that the next one is judged by."""
        return {"recent": list(self._recent), "in_a_row": self._in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Judge on as the saved run would have; more losses than the window has room for are forgotten."""
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._in_a_row = state["in_a_row"]


def diverged(
    fault: str, step: int, checkpoints: Sequence[Checkpoint], position: int, epoch_samples: int
) -> DivergedError:
    """The error that ends a run at ``step``, with what to do next; ``position`` counts its samples over all epochs."""
    said = f"training diverged at step {step:,}: {fault}. Nothing is saved of this step."
    chosen = next((each for each in resume_candidates(checkpoints, "healthy") if each.healthy), None)
    if chosen is None:
        return DivergedError(
            f"{said} No checkpoint is known to be healthy; begin again in another output_dir, with a lower learning "
            "rate or longer warm-up, or clip_grad_norm.",
            step=step,
        )
    skip = position - _position(chosen, epoch_samples)
    return DivergedError(
        f"{said} The newest healthy checkpoint is {chosen.path}. To go on from it without the batches that led here: "
        f"resume: {{from: {chosen.step}, skip_samples: {skip}}}.",
        step=step,
        checkpoint=chosen.path,
        skip_samples=skip,
    )


def _position(checkpoint: Checkpoint, epoch_samples: int) -> int:
    state = json.loads(read_text(checkpoint.path, STATE_TREE, read_manifest(checkpoint.path)))["data"]["state"]
    return int(state["epoch"]) * epoch_samples + int(state["position"])


def _gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    gradients = [each.grad for each in parameters if each.grad is not None]
    return float(nn.utils.get_total_norm(gradients))
