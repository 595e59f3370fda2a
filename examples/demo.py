"""The promise, tried: a run killed in training and in a save ends with the bits of a run that was never touched.

    python examples/demo.py [FOLDER]

Trains the quickstart configuration twice, once in one go and once killed twice with SIGKILL and resumed each time by
the same command; compares all weights and the whole training state bit for bit, and ends with status 1 if anything
differs. Needs no network and no GPU; takes about two minutes on two CPU cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost.policy.retention import best
from milepost.recipes.config_files import load_config
from milepost.recipes.datasets import load_tables
from milepost.storage.catalog import read_catalog
from milepost.storage.manifest import read_manifest
from milepost.storage.reader import read_snapshot

MILEPOST = [sys.executable, "-m", "milepost"]
# One thread: these tensors are too small for more, and whatever else the machine does then disturbs it less.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def main(folder: Path) -> int:
    """All acts; gives the exit status."""
    unbroken, interrupted = folder / "unbroken", folder / "interrupted"
    act(f"1. The unbroken run, in {unbroken}")
    started = time.monotonic()
    subprocess.run(command(unbroken), check=True, env=ENVIRONMENT)
    say(f"It took {time.monotonic() - started:.0f} s.")

    act(f"2. The same configuration in {interrupted}, killed in the middle of training")
    last = newest_step(unbroken)
    kill_in_training(interrupted, after_step=last // 3 + 10)
    act("3. The same command again; killed in the middle of a save")
    kill_in_a_save(interrupted)
    act("4. The same command again, to the end")
    subprocess.run(command(interrupted), check=True, env=ENVIRONMENT)

    act("5. Are the two runs the same?")
    difference = next(differences(unbroken, interrupted), None)
    if difference is not None:
        say(f"NO. The first difference: {difference}")
        return 1
    act("6. What was learned")
    show_learning(interrupted)
    act(f"7. milepost ls {interrupted}")
    subprocess.run([*MILEPOST, "ls", str(interrupted)], check=True)
    return 0


def command(folder: Path) -> list[str]:
    """The quickstart, in a folder."""
    # Numbers go to metrics.jsonl only; what is saved and pruned is still shown.
    return [*MILEPOST, "run", "quickstart", f"output_dir={folder}", "metric_loggers=[jsonl]"]


def kill_in_training(folder: Path, after_step: int) -> None:
    """Start a run and kill it once it is past a step."""
    run = subprocess.Popen(command(folder), env=ENVIRONMENT)
    wait_until(run, lambda: logged_step(folder) >= after_step, every=0.05)
    run.kill()
    run.wait()
    say(f"Killed with SIGKILL after step {logged_step(folder)}; the newest checkpoint is step_{newest_step(folder)}.")


def kill_in_a_save(folder: Path) -> None:
    """Kill at the first sight of a folder in which a checkpoint is being put together; again, if that came too late."""
    while True:
        before = set(folder.glob("step_*.staging-*"))
        run = subprocess.Popen(command(folder), env=ENVIRONMENT)
        # What the first kill may have left is swept when the run starts; only a folder that comes later counts.
        wait_until(run, lambda: set(folder.glob("step_*.staging-*")) - before, every=0.001)  # noqa: B023
        run.kill()
        run.wait()
        left = sorted(path.name for path in set(folder.glob("step_*.staging-*")) - before)
        if left:
            say(f"Killed with SIGKILL while {left[0]} was being written; it was left behind unfinished.")
            say(f"The newest checkpoint is step_{newest_step(folder)}.")
            return
        say("That save was faster than the kill; trying again at the next one.")


def wait_until(run: subprocess.Popen[bytes], happened: Callable[[], object], every: float) -> None:
    """Return when something has happened, looking every so many seconds; the run must live until then."""
    while not happened():
        time.sleep(every)
        if run.poll() is not None:
            raise SystemExit(f"the run ended by itself, with status {run.returncode}, before it could be killed")


def differences(first: Path, second: Path) -> Iterator[str]:
    """What differs between two finished runs, in words; counts what was compared."""
    for debris in second.glob("step_*.*"):
        yield f"{debris} is still there"
    step = newest_step(first)
    if newest_step(second) != step:
        yield f"one ends with step_{step}, the other with step_{newest_step(second)}"
        return
    paths = [run / f"step_{step}" for run in (first, second)]
    mine, yours = (read_snapshot(path, read_manifest(path)) for path in paths)
    for what, ours, theirs in (("weights", mine.weights, yours.weights), ("state", mine.tensors, yours.tensors)):
        for name in sorted(ours.keys() | theirs.keys()):
            if name not in ours or name not in theirs:
                yield f"{what}: only one of them has {name}"
            elif ours[name] != theirs[name]:
                yield f"{what}: {name}"
    for name in sorted(mine.state.keys() | yours.state.keys()):
        if mine.state.get(name) != yours.state.get(name):
            yield f"training state: {name}"
    losses = [logged(run, "loss") for run in (first, second)]
    for number in sorted(losses[0].keys() | losses[1].keys()):
        if losses[0].get(number) != losses[1].get(number):
            yield f"metrics.jsonl: the loss of step {number}"
    size = sum(tensor.nbytes for tensor in (*mine.weights.values(), *mine.tensors.values()))
    say(f"Yes, bit for bit at step {step}: {len(mine.weights)} weights, {len(mine.tensors)} tensors of optimizer and")
    say(f"generators ({size / 1e6:.1f} MB), the state of {', '.join(sorted(mine.state))}, and {len(losses[0])} logged")
    say("losses. Nothing is left of the save that was killed.")


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


def logged(folder: Path, name: str) -> dict[int, float]:
    """A number by step, from the run's metrics.jsonl; a line that is being written is not there yet."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    numbers = [json.loads(line) for line in lines]
    return {line["step"]: line[name] for line in numbers if name in line}


def logged_step(folder: Path) -> int:
    """The last step of which there is a line."""
    return max(logged(folder, "loss"), default=0)


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, 0 without any."""
    newest = read_catalog(folder).newest
    return 0 if newest is None else newest.step


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
