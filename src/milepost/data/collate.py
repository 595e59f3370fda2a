"""Rows of different lengths become one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from milepost.data.tokenized import IGNORED
from milepost.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PaddingCollator:
    """Pads rows on the right to the longest (rounded up to ``pad_to_multiple_of``).

    Gives int64 tensors of shape (batch, length): ``input_ids``, padded with ``pad_token_id``; ``attention_mask``, 1 for
    tokens and 0 for padding; ``labels``, padded with -100.
    """

    pad_token_id: int
    pad_to_multiple_of: int | None = None

    def __post_init__(self) -> None:
        if self.pad_to_multiple_of is not None and self.pad_to_multiple_of < 1:
            raise ValueError(f"PaddingCollator(pad_to_multiple_of={self.pad_to_multiple_of}): must be at least 1")

    @classmethod
    def for_tokenizer(cls, tokenizer: Any, *, pad_to_multiple_of: int | None = None) -> PaddingCollator:
        """Pads with the tokenizer's padding token, or its end token if it has none. Raises ConfigError without both."""
        for name in ("pad_token_id", "eos_token_id"):
            token = getattr(tokenizer, name, None)
            if token is not None:
                return cls(int(token), pad_to_multiple_of)
        raise ConfigError("the tokenizer has neither a padding token nor an end token", key="tokenizer")

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of ``rows``, each with ``input_ids`` and ``labels`` of one length."""
        lengths = [len(row["input_ids"]) for row in rows]
        multiple = self.pad_to_multiple_of or 1
        shape = len(rows), -(-max(lengths) // multiple) * multiple
        ids = np.full(shape, self.pad_token_id, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        labels = np.full(shape, IGNORED, dtype=np.int64)
        for line, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            ids[line, :length] = row["input_ids"]
            mask[line, :length] = 1
            labels[line, :length] = row["labels"]
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "labels": torch.from_numpy(labels),
        }
