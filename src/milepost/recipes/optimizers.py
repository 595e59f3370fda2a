"""Optimizers of ``torch.optim`` by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from milepost.errors import ConfigError

# Device types on which torch has fused kernels of these optimizers for every floating dtype used here.
_FUSED = {"Adam", "AdamW", "SGD"}
_FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}


def build_optimizer(name: str, settings: Mapping[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer ``torch.optim.<name>`` over the model's trainable parameters, fused where that can be.

    Raises ConfigError for values that this optimizer does not take.
    """
    kind = getattr(torch.optim, name)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # YAML has lists where torch has tuples (betas).
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    devices = {parameter.device.type for parameter in parameters}
    if name in _FUSED and devices <= _FUSED_DEVICES and "fused" not in options and not options.get("foreach"):
        options["fused"] = True
    try:
        optimizer: torch.optim.Optimizer = kind(parameters, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"optimizer: torch.optim.{name} refuses its settings ({error}).", key="optimizer", value=dict(settings)
        ) from error
    return optimizer


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What the optimizer's groups are set to, parameters aside."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def put_settings(optimizer: torch.optim.Optimizer, settings: list[dict[str, Any]]) -> None:
    """Set the groups as noted before: a resume brings back the old run's settings, and the configuration decides."""
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        group.update(values)
