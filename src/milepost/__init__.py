"""Step-based checkpointing for PyTorch training.

Public names are loaded on first use (PEP 562), so that the command line starts without importing torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AnyOf": "milepost.policy.saving",
    "AtEpochEnd": "milepost.policy.saving",
    "AtSteps": "milepost.policy.saving",
    "Checkpoint": "milepost.records",
    "CheckpointManager": "milepost.manager",
    "EveryMinutes": "milepost.policy.saving",
    "EverySteps": "milepost.policy.saving",
    "First": "milepost.policy.saving",
    "DiskBudget": "milepost.policy.budget",
    "KeepBest": "milepost.policy.retention",
    "KeepEvery": "milepost.policy.retention",
    "KeepLast": "milepost.policy.retention",
    "Level": "milepost.records",
    "KeepLogSpaced": "milepost.policy.spread",
    "KeepRule": "milepost.policy.plan",
    "KeepWithin": "milepost.policy.spread",
    "LogSpaced": "milepost.policy.saving",
    "MilepostError": "milepost.errors",
    "Moment": "milepost.records",
    "OnRequest": "milepost.policy.asking",
    "OnSignal": "milepost.policy.asking",
    "SaveSchedule": "milepost.policy.saving",
    "load_weights": "milepost.weights",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
