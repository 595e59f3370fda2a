"""The training loop that every method is measured beside: Llama-like blocks, AdamW, a step of about a second."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from benchmarks.methods import Method

LAYERS = 21
VOCABULARY = 8192
HEAD = 32
TOKENS = (2, 64)
MOST_STEPS = 200


class Block(nn.Module):
    """Attention and a gated feed-forward part, nine parameters, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = width * 8 // 3
        self.input_norm, self.post_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states (batch, length, width) to the same."""
        y = self.input_norm(x)
        q, k, v = (part(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        y = self.post_norm(x)
        out: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return out


def model_of(parameters: int) -> nn.Sequential:
    """A language model of about so many parameters."""
    # 12 layers' width² from the blocks, 2 vocabularies' width from embedding and head.
    a, b = 12 * LAYERS, 2 * VOCABULARY
    width = (-b + math.sqrt(b * b + 4 * a * parameters)) / (2 * a)
    width = max(HEAD, round(width / HEAD) * HEAD)
    blocks = (Block(width) for _ in range(LAYERS))
    return nn.Sequential(
        nn.Embedding(VOCABULARY, width), *blocks, nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)
    )


class HookClock:
    """Measures from outside how long other hooks hold up ``optimizer.step``: one hook before them, one after."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.seconds = 0.0
        self._optimizer = optimizer
        self._begin = 0.0
        optimizer.register_step_pre_hook(self._start)
        self._last = optimizer.register_step_pre_hook(self._stop)

    def come_last(self) -> None:
        """Be called after every hook that has been registered by now."""
        self._last.remove()
        self._last = self._optimizer.register_step_pre_hook(self._stop)

    def _start(self, *_: Any) -> None:
        self._begin = time.perf_counter()

    def _stop(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._begin


class Training:
    """A model, its optimizer with its state made, and steps of it."""

    def __init__(self, state_bytes: int) -> None:
        torch.manual_seed(0)
        # Weights and two moments of four bytes each.
        self.model = model_of(state_bytes // 12)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.hooks = HookClock(self.optimizer)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step / 1000))
        self.tokens = torch.randint(0, VOCABULARY, TOKENS)
        self.steps = 0

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor of the state: weights, then what the optimizer has."""
        moments = (value for state in self.optimizer.state.values() for value in state.values())
        return [*self.model.parameters(), *(value for value in moments if isinstance(value, Tensor))]

    @property
    def state_bytes(self) -> int:
        """Bytes of the whole state."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def step(self, method: Method | None = None) -> tuple[float, float]:
        """One step. Gives the seconds that the method made the update wait (its own lock), and those of the update."""
        scores = self.model(self.tokens)
        loss: Any = functional.cross_entropy(scores.flatten(0, 1), self.tokens.flatten())
        loss.backward()
        begin = time.perf_counter()
        with method.updating() if method is not None else contextlib.nullcontext():
            waited = time.perf_counter() - begin
            self.optimizer.step()
            updated = time.perf_counter() - begin - waited
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return waited, updated


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of training: wall-clock seconds, steps, and where a save held it up.

    ``call`` is the time in the save call and its like, ``hook`` in the hooks before updates, ``lock`` in waiting for
    the method's own lock or future; ``update`` the mean update; ``engine`` what the method itself says of all that.
    """

    seconds: float
    steps: int
    call: float = 0.0
    hook: float = 0.0
    lock: float = 0.0
    update: float = 0.0
    first_update: float = 0.0
    engine: float | None = None

    @property
    def held(self) -> float:
        """Seconds that training stood still for the save, measured from outside."""
        return self.call + self.hook + self.lock


def window(training: Training, method: Method | None, least: int) -> Window:
    """Train for ``least`` steps or more; with a method, save first and go on until that save is durable."""
    call = lock = 0.0
    updates: list[float] = []
    engine = method.held_up_seconds() if method is not None else None
    begin = time.perf_counter()
    if method is not None:
        method.save()
        call = time.perf_counter() - begin
    training.hooks.come_last()
    training.hooks.seconds = 0.0
    while len(updates) < least or (method is not None and not method.done()):
        waited, updated = training.step(method)
        lock += waited
        updates.append(updated)
        if method is not None:
            before = time.perf_counter()
            method.stepped()
            call += time.perf_counter() - before
        if len(updates) > MOST_STEPS:
            raise TimeoutError(f"the save was not durable after {MOST_STEPS} steps")
    seconds = time.perf_counter() - begin
    if method is not None and engine is not None:
        engine = (method.held_up_seconds() or 0.0) - engine
    mean = sum(updates) / len(updates)
    return Window(seconds, len(updates), call, training.hooks.seconds, lock, mean, updates[0], engine)
