"""Which optimizers a recipe takes, and their settings; known without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.recipes.spelling import nearest

_ALL = ("lr", "weight_decay", "foreach", "maximize", "capturable", "differentiable")
SETTINGS: dict[str, tuple[str, ...]] = {
    "ASGD": (*_ALL, "lambd", "alpha", "t0"),
    "Adadelta": (*_ALL, "rho", "eps"),
    "Adagrad": (
        "lr", "weight_decay", "foreach", "maximize", "differentiable", "lr_decay", "initial_accumulator_value", "eps",
        "fused",
    ),
    "Adafactor": ("lr", "weight_decay", "foreach", "maximize", "beta2_decay", "eps", "d"),
    "Adam": (*_ALL, "betas", "eps", "amsgrad", "fused", "decoupled_weight_decay"),
    "AdamW": (*_ALL, "betas", "eps", "amsgrad", "fused"),
    "Adamax": (*_ALL, "betas", "eps"),
    "NAdam": (*_ALL, "betas", "eps", "momentum_decay", "decoupled_weight_decay"),
    "RAdam": (*_ALL, "betas", "eps", "decoupled_weight_decay"),
    "RMSprop": (*_ALL, "alpha", "eps", "momentum", "centered"),
    "Rprop": ("lr", "foreach", "maximize", "capturable", "differentiable", "etas", "step_sizes"),
    "SGD": (
        "lr", "weight_decay", "foreach", "maximize", "differentiable", "momentum", "dampening", "nesterov", "fused",
    ),
}  # fmt: skip
_REFUSED = {
    "LBFGS": "it needs a closure that computes the loss again and again",
    "SparseAdam": "it takes sparse gradients only, and these models' are dense",
    "Muon": "it takes matrices only, and these models have vectors too",
}


def check_optimizer(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError naming an optimizer or a setting that does not exist or cannot be used."""
    if name in _REFUSED:
        raise ValueError(f"name: {name} cannot be used here: {_REFUSED[name]}")
    if name not in SETTINGS:
        raise ValueError(f"name: torch.optim has no {name!r} that can be used here{nearest(name, SETTINGS)}")
    for key, value in settings.items():
        if key not in SETTINGS[name]:
            raise ValueError(f"{key}: torch.optim.{name} has no such setting{nearest(key, SETTINGS[name])}")
        parts = value if isinstance(value, list | tuple) else [value]
        if not all(part is None or isinstance(part, int | float) for part in parts):
            raise ValueError(f"{key}: {value!r} must be a number, true, false or a list of numbers")
