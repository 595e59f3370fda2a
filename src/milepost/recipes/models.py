"""Causal language models of transformers: pretrained ones, and fresh ones from a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from milepost.errors import ConfigError
from milepost.recipes.huggingface import first_line
from milepost.recipes.seeding import seed_everything

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def find_source(name: str, key: str, needed_file: str) -> str:
    """What ``from_pretrained`` is to be given: an existing folder's path, or a Hub name as it is.

    Raises ConfigError for a path that does not exist, or a folder without the file that is needed from it.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / needed_file).is_file():
            raise ConfigError(
                f"{key}: the folder {path} has no {needed_file}, so nothing can be loaded from it. Name a folder that "
                "save_pretrained wrote, or a step_N folder of a run.",
                key=key,
                value=name,
            )
        return str(path)
    if path.exists() or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ConfigError(
            f"{key}: there is no folder {path}. Name a folder that save_pretrained wrote, or a model of the Hub such "
            "as meta-llama/Llama-3.2-1B.",
            key=key,
            value=name,
        )
    return name


def pretrained_model(source: str, dtype: torch.dtype, attention: str | None = None) -> PreTrainedModel:
    """The model of a folder or of the Hub, in the given dtype, on the CPU. Raises ConfigError if it cannot be had."""
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation=attention, local_files_only=Path(source).is_dir()
        )
    except Exception as error:
        raise ConfigError(
            f"model.path: no causal language model could be loaded from {source} ({first_line(error)}).",
            key="model.path",
            value=source,
        ) from error
    return model


def fresh_model(
    fields: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    *,
    seed: int,
    attention: str | None = None,
) -> PreTrainedModel:
    """A model with random weights, a function of its configuration and the seed.

    ``fields`` are those of the transformers configuration, ``model_type`` among them. The vocabulary's size and the
    ids of its special tokens are the tokenizer's, where ``fields`` do not say them. Raises ConfigError.
    """
    fields = {**_from_tokenizer(tokenizer), **fields}
    kind = str(fields.pop("model_type"))
    try:
        config = AutoConfig.for_model(kind, **fields)
        seed_everything(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation=attention
        )
    except Exception as error:
        # Whatever transformers makes of somebody's fields: its errors have no common base.
        raise ConfigError(
            f"model.config: transformers makes no causal language model of it ({first_line(error)}).",
            key="model.config",
            value=dict(fields),
        ) from error
    # What save_pretrained of a model writes, so that its folder says what is in it.
    model.config.architectures = [type(model).__name__]
    return model


def recompute_activations(model: PreTrainedModel) -> None:
    """Activation checkpointing: less memory for more computing."""
    # transformers renamed it within its fifth version, and warns of the old name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError if the tokenizer has ids that the model has no embedding for."""
    rows = int(model.get_input_embeddings().weight.size(0))  # type: ignore[operator]
    if len(tokenizer) > rows:
        raise ConfigError(
            f"the tokenizer has {len(tokenizer):,} tokens and the model's embedding only {rows:,} rows. Use the "
            "tokenizer that belongs to the model, or for a fresh model leave model.config.vocab_size out.",
            key="tokenizer",
        )


def _from_tokenizer(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
