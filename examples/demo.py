"""The promise, tried: a run killed in training and in a save ends with the bits of a run that was never touched.

    python examples/demo.py [FOLDER]

Trains the quickstart configuration twice, once in one go and once killed twice with SIGKILL and resumed each time by
the same command; compares all weights and the whole training state bit for bit, and ends with status 1 if anything
differs. Needs no network and no GPU; takes about two minutes on two CPU cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost.policy.retention import best
from milepost.recipes.config_files import load_config
from milepost.recipes.datasets import load_tables
from milepost.recipes.proving import (
    Proof,
    Trial,
    compare_runs,
    kill_in_a_save,
    kill_in_training,
    logged,
    newest_step,
)
from milepost.storage.catalog import read_catalog

MILEPOST = [sys.executable, "-m", "milepost"]
# One thread: these tensors are too small for more, and whatever else the machine does then disturbs it less.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def main(folder: Path) -> int:
    """All acts; gives the exit status."""
    unbroken, interrupted = trial(folder / "unbroken"), trial(folder / "interrupted")
    act(f"1. The unbroken run, in {unbroken.folder}")
    started = time.monotonic()
    unbroken.finish()
    say(f"It took {time.monotonic() - started:.0f} s.")

    act(f"2. The same configuration in {interrupted.folder}, killed in the middle of training")
    tell(kill_in_training(interrupted, after_step=newest_step(unbroken.folder) // 3 + 10))
    act("3. The same command again; killed in the middle of a save")
    tell(kill_in_a_save(interrupted))
    act("4. The same command again, to the end")
    interrupted.finish()

    act("5. Are the two runs the same?")
    proof = Proof()
    compare_runs(unbroken.folder, interrupted.folder, proof)
    if proof.difference is not None or proof.comparison is None:
        say(f"NO. The first difference: {proof.difference}")
        return 1
    weights, tensors = proof.comparison.compared.values()
    say(f"Yes, bit for bit at step {proof.step}: {weights} weights, {tensors} tensors of optimizer and generators")
    say(f"({proof.comparison.size / 1e6:.1f} MB), the rest of the training state, and {proof.losses} logged losses.")
    say("Nothing is left of the save that was killed.")
    act("6. What was learned")
    show_learning(interrupted.folder)
    act(f"7. milepost ls {interrupted.folder}")
    subprocess.run([*MILEPOST, "ls", str(interrupted.folder)], check=True)
    return 0


def trial(folder: Path) -> Trial:
    """The quickstart, in a folder."""
    # Numbers go to metrics.jsonl only; what is saved and pruned is still shown.
    command = [*MILEPOST, "run", "quickstart", f"output_dir={folder}", "metric_loggers=[jsonl]"]
    return Trial(folder, command, ENVIRONMENT)


def tell(kill: str | None) -> None:
    """What a kill met."""
    if kill is None:
        raise SystemExit("the run ended by itself before it could be killed")
    say(kill)


def show_learning(folder: Path) -> None:
    """Losses, and the best checkpoint asked a question."""
    for name in ("loss", "val_loss"):
        values = logged(folder, name)
        first, last = min(values), max(values)
        say(f"{name}: {values[first]:.3f} at step {first}, {values[last]:.3f} at step {last}")
    chosen = best(read_catalog(folder).checkpoints, "val_loss", "min")
    if chosen is None:
        raise SystemExit("no checkpoint has a val_loss")
    say(f"The best by val_loss is {chosen.name} ({chosen.metrics['val_loss']:.3f}). It opens with from_pretrained:")
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(chosen.path)
    tokenizer = AutoTokenizer.from_pretrained(chosen.path)
    _, held_out = load_tables(load_config("quickstart"))
    for task in [] if held_out is None else held_out.rows[:3]:
        ask(model, tokenizer, task)


def ask(model: torch.nn.Module, tokenizer: transformers.PreTrainedTokenizerBase, task: Mapping[str, str]) -> None:
    """Print a question, the model's answer, and the right one."""
    question = f"{task['instruction']}\n\n{task['input']}".strip()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    asked = " ".join(question.split())
    say(f"{asked!r} → {tokenizer.decode(answer, skip_special_tokens=True)!r} (right is {task['output']!r})")


def free_folder(wanted: Path) -> Path:
    """A folder that does not exist yet: nothing of an earlier demo is deleted."""
    names = (wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}") for number in range(1, 10_000))
    return next(path for path in names if not path.exists())


def act(title: str) -> None:
    """A heading."""
    print(f"\n=== {title}", flush=True)


def say(text: str) -> None:
    """A line of the demo's own."""
    print(f"    {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(free_folder(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-runs/demo"))))
