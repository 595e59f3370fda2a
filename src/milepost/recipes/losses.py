"""The loss of a language model, summed over label tokens: sums add up over micro-batches, means do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

Batch = Mapping[str, torch.Tensor]
IGNORED = -100


def all_tokens(batch: Batch) -> int:
    """How many tokens of a batch the model reads, padding aside."""
    return int(batch["attention_mask"].sum())


def label_tokens(batch: Batch) -> int:
    """How many tokens of a batch count in its loss: labels of a row's first token predict nothing."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def summed_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross-entropy of the next token, summed over a batch's label tokens; float32, a scalar."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )


def accumulate_gradients(model: nn.Module, window: Sequence[Batch], device: torch.device) -> tuple[torch.Tensor, int]:
    """Add the gradients of a window's mean loss; gives the summed loss (on the device) and its number of tokens.

    The mean is over all label tokens of the window, so the split into micro-batches does not change it.
    """
    tokens = sum(label_tokens(batch) for batch in window)
    total = torch.zeros((), device=device)
    for batch in window:
        loss = summed_loss(model, on_device(batch, device))
        (loss / max(tokens, 1)).backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total, tokens


@torch.no_grad()
def validation_loss(model: nn.Module, batches: Iterable[Batch], device: torch.device) -> float:
    """Mean loss over all label tokens of the batches. Dropout is off, so no generator is drawn from."""
    total, tokens = 0.0, 0
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            total += summed_loss(model, on_device(batch, device)).item()
            tokens += label_tokens(batch)
    finally:
        model.train(was_training)
    return total / max(tokens, 1)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch's tensors on the device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


class LossSinceSave:
    """Mean loss over the tokens since the last save. It belongs to the saved state, and being saved ends its interval.

    So a resumed run goes on counting where the unbroken one does: at nothing. It stays on the device until read.
    """

    def __init__(self, device: torch.device) -> None:
        self._sum = torch.zeros((), device=device)
        self._tokens = 0

    def add(self, summed: torch.Tensor, tokens: int) -> None:
        """Count one step."""
        self._sum = self._sum + summed
        self._tokens += tokens

    @property
    def mean(self) -> torch.Tensor:
        """Sum by number of tokens, as a scalar on the device."""
        return self._sum / max(self._tokens, 1)

    def state_dict(self) -> dict[str, int]:
        """Nothing is left to store: what was counted is in the metrics of the step that is being saved."""
        self._sum = torch.zeros_like(self._sum)
        self._tokens = 0
        return {"tokens": 0}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Begin anew."""
        self._sum = torch.zeros_like(self._sum)
        self._tokens = state["tokens"]
