"""The random number generators of Python, NumPy, torch and every visible device."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

logger = logging.getLogger("milepost")


def capture_rng() -> dict[str, Any]:
    """The state of every global generator; reading it draws nothing."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    accelerator = _accelerator()
    # A device that nothing has used yet has drawn nothing; reading its generator would start it for every process.
    if accelerator is not None and getattr(accelerator[1], "is_initialized", _always)():
        kind, module = accelerator
        state[kind] = [module.get_rng_state(index) for index in range(module.device_count())]
    return state


def find_rng_faults(state: Any) -> list[str]:
    """One sentence for each way in which saved states are none that the generators here could take."""
    if not isinstance(state, dict) or not {"python", "numpy", "torch"} <= state.keys():
        return ["what is stored are no generators' states"]
    kind = type(np.random.get_bit_generator())  # type: ignore[attr-defined]
    trials: dict[str, Any] = {
        "python": lambda: random.Random(0).setstate(state["python"]),
        # Of the kind of the global one, which may be another than NumPy's usual.
        "numpy": lambda: np.random.RandomState(kind(0)).set_state(state["numpy"]),
        "torch": lambda: torch.Generator().set_state(state["torch"]),
    }
    faults = []
    for name, trial in trials.items():
        try:
            trial()
        except Exception as error:
            faults.append(f"what is stored is no state of {name}'s generator here ({error})")
    return faults


def restore_rng(state: Mapping[str, Any]) -> None:
    """Put every generator back; do it last, since restoring other parts may draw.

    Another number of devices than before is said in a warning, and those that are there are restored.
    """
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    kind, module = _accelerator() or ("", None)
    saved = {name: states for name, states in state.items() if name not in ("python", "numpy", "torch")}
    for name, states in saved.items():
        present = module.device_count() if module is not None and name == kind else 0
        if present != len(states):
            logger.warning(
                "the checkpoint has random number generators of %d %s device(s), and %d are here: the run goes on, "
                "but not bit for bit",
                len(states),
                name,
                present,
            )
        if module is not None:
            for index in range(min(present, len(states))):
                module.set_rng_state(states[index], index)


def _accelerator() -> tuple[str, Any] | None:
    if not torch.accelerator.is_available():
        return None
    kind = torch.accelerator.current_accelerator()
    if kind is None:
        return None
    return (kind.type, _Mps if kind.type == "mps" else torch.get_device_module(kind.type))


def _always() -> bool:
    return True


class _Mps:
    """MPS has one device and functions without an index."""

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def get_rng_state(index: int) -> torch.Tensor:
        return torch.mps.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, index: int) -> None:
        torch.mps.set_rng_state(state)
