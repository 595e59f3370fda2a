"""A training loop of one's own with CheckpointManager: a tiny Llama learns to sort digits.

    python examples/train_loop.py runs/sorting

Stop it with Ctrl-C, or kill it; the same command goes on from the newest checkpoint, bit for bit. Every checkpoint
opens with transformers: AutoModelForCausalLM.from_pretrained("runs/sorting/step_300").
"""

from __future__ import annotations

import random
import sys

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from milepost import CheckpointManager, EverySteps, KeepBest, KeepLast
from milepost.data import ResumableLoader

TOTAL_STEPS = 300
DIGITS, SEPARATOR = 10, 10


def example(number: int) -> torch.Tensor:
    """Eight digits, a separator, and the same digits in order: 17 token ids."""
    draw = random.Random(number)
    digits = [draw.randrange(DIGITS) for _ in range(8)]
    return torch.tensor([*digits, SEPARATOR, *sorted(digits)])


def loss_of(model: LlamaForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the sorted half."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits[:, 8:]
    return functional.cross_entropy(logits.flatten(0, 1), rows[:, 9:].flatten())


def main(folder: str) -> None:
    """Train, or go on training, in ``folder``."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=DIGITS + 1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        attention_dropout=0.1,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL_STEPS)
    loader = ResumableLoader([example(number) for number in range(4000)], batch_size=32, seed=0, drop_last=True)
    validation = torch.stack([example(number) for number in range(4000, 4200)])
    counters = {"digits_sorted": 0}

    state = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler, "data": loader, "counters": counters}
    with CheckpointManager(
        folder,
        state,
        save=EverySteps(50),
        keep=[KeepLast(2), KeepBest(1, "val_loss", mode="min")],
        assets=[model],
    ) as checkpoints:
        step = checkpoints.resume()  # 0 for a fresh run
        print(f"going on after step {step}" if step else "a fresh run")
        while step < TOTAL_STEPS and not checkpoints.should_stop:
            for rows in loader:  # the rest of the current epoch
                loss = loss_of(model, rows)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                counters["digits_sorted"] += rows.shape[0] * 8
                step += 1

                metrics = {"loss": loss}
                if step % 50 == 0:
                    model.eval()
                    with torch.no_grad():
                        metrics["val_loss"] = loss_of(model, validation)
                    model.train()
                    print(f"step {step}: loss {loss.item():.3f}, on unseen rows {metrics['val_loss'].item():.3f}")
                checkpoints.step(step, metrics=metrics)  # decides, copies, writes in the background, prunes
                if checkpoints.should_stop or step == TOTAL_STEPS:  # a signal came: the save is done
                    break
        checkpoints.wait()  # the last save may still be on its way to the disk
        best = checkpoints.best("val_loss")
    if best is not None:
        print(f"best: {best.path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/sorting")
