"""The promise, tried on a recipe: a run that is killed and resumed ends with the bits of one that was never touched."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from milepost.comparing import Comparison, TensorDifference, compare
from milepost.errors import MilepostError
from milepost.series import METRICS_FILE
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import is_staging

# A run's steps are told apart by its log, whatever its own settings say of logging and going on.
SETTINGS = ("metric_loggers=[jsonl]", "log_every_n_steps=1", "resume=auto")


@dataclass(frozen=True, slots=True)
class Trial:
    """A run that can be started again and again: its folder, its command line, and how its processes are started."""

    folder: Path
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    quiet: bool = False

    def start(self) -> subprocess.Popen[bytes]:
        """The run as a process of its own."""
        output = subprocess.DEVNULL if self.quiet else None
        return subprocess.Popen(self.command, env=self.environment, stdout=output)

    def finish(self) -> None:
        """Start it and wait for its end. Raises MilepostError if it does not end well."""
        run = self.start()
        if run.wait() != 0:
            raise MilepostError(f"the run ended with status {run.returncode}: {' '.join(self.command)}")


@dataclass(slots=True)
class Proof:
    """How a trial went: the kills, in words, and what differs first, None if nothing does."""

    step: int = 0
    kills: list[str] = field(default_factory=list)
    difference: str | None = None
    comparison: Comparison | None = None
    losses: int = 0

    @property
    def holds(self) -> bool:
        """Whether the run was killed at least once, and is the same bit for bit."""
        return bool(self.kills) and self.difference is None


def recipe_trial(folder: Path, config: str, overrides: Sequence[str], *, quiet: bool) -> Trial:
    """A run of the recipe ``full`` in a folder of its own."""
    settings = [*overrides, *SETTINGS, f"output_dir={folder}"]
    command = [sys.executable, "-m", "milepost", "run", "full", "--config", config, *settings]
    return Trial(folder, command, quiet=quiet)


def prove(unbroken: Trial, interrupted: Trial, say: Callable[[str], None]) -> Proof:
    """Run both, the second one killed in training and in a save and resumed each time, and compare their ends.

    Raises MilepostError if a run fails.
    """
    say(f"1. the unbroken run, in {unbroken.folder}")
    unbroken.finish()
    proof = Proof(step=newest_step(unbroken.folder))
    say(f"2. the same in {interrupted.folder}, killed in the middle of training")
    _note(proof, kill_in_training(interrupted, after_step=max(1, proof.step // 3)), say)
    say("3. the same command again, killed in a save")
    _note(proof, kill_in_a_save(interrupted), say)
    say("4. the same command again, to the end")
    interrupted.finish()
    say("5. compared")
    compare_runs(unbroken.folder, interrupted.folder, proof)
    return proof


def _note(proof: Proof, kill: str | None, say: Callable[[str], None]) -> None:
    if kill is None:
        say("   the run ended before it could be killed")
    else:
        proof.kills.append(kill)
        say(f"   {kill}")


def kill_in_training(trial: Trial, after_step: int) -> str | None:
    """Start a run and kill it with SIGKILL once it is past a step; None if it ended first."""
    with trial.start() as run:
        if not _waited(run, lambda: logged_step(trial.folder) >= after_step, every=0.02):
            return None
        run.kill()
    return (
        f"killed with SIGKILL after step {logged_step(trial.folder)}; the newest checkpoint is "
        f"step_{newest_step(trial.folder)}"
    )


def kill_in_a_save(trial: Trial) -> str | None:
    """Kill a run at the first sight of a folder in which a checkpoint is being put together; None if it ended first.

    If the save was faster than the kill, the run is started again and its next save is tried.
    """
    while True:
        # What an earlier kill may have left is swept when the run starts; only a folder that comes later counts.
        before = _staging(trial.folder)
        with trial.start() as run:
            if not _waited(run, lambda: _staging(trial.folder) - before, every=0.001):  # noqa: B023
                return None
            run.kill()
        left = sorted(_staging(trial.folder) - before)
        if left:
            return (
                f"killed with SIGKILL while {left[0]} was being written; the newest checkpoint is "
                f"step_{newest_step(trial.folder)}"
            )


def _staging(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("step_*") if is_staging(path.name)}


def _waited(run: subprocess.Popen[bytes], happened: Callable[[], object], every: float) -> bool:
    """Look every so many seconds whether something has happened; False if the run ended well before it did."""
    while not happened():
        time.sleep(every)
        if run.poll() is not None:
            if run.returncode != 0:
                raise MilepostError(f"the run ended by itself, with status {run.returncode}, before it was killed")
            return False
    return True


def compare_runs(first: Path, second: Path, proof: Proof) -> None:
    """Compare the ends of two runs, bit for bit, and what they logged; note it in ``proof``."""
    proof.step = newest_step(first)
    proof.losses = len(logged(first, "loss"))
    proof.difference = next(_differences(first, second, proof), None)


def _differences(first: Path, second: Path, proof: Proof) -> Iterator[str]:
    for name in sorted(path.name for path in second.glob("step_*.*")):
        yield f"{name} is still there"
    if newest_step(second) != proof.step:
        yield f"one ends with step_{proof.step}, the other with step_{newest_step(second)}"
        return
    if proof.step == 0:
        yield "neither of the two has a checkpoint"
        return
    proof.comparison = compare(first / f"step_{proof.step}", second / f"step_{proof.step}")
    yield from map(tensor_sentence, proof.comparison.tensors)
    for each in proof.comparison.values:
        yield f"training state: {each.path} is {each.values[0]} and {each.values[1]}"
    for name in proof.comparison.generators:
        yield f"random number generators: {name}"
    losses = [logged(run, "loss") for run in (first, second)]
    for number in sorted(losses[0].keys() | losses[1].keys()):
        pair = [each.get(number) for each in losses]
        if pair[0] != pair[1]:
            yield f"{METRICS_FILE}: the loss of step {number} is {pair[0]} and {pair[1]}"


def tensor_sentence(each: TensorDifference) -> str:
    """Which tensor differs, where first, and what is there."""
    if each.index is None:
        return f"{each.part}: {each.name}: {each.fault}"
    place = f"{each.name}[{', '.join(map(str, each.index))}]"
    found = "differs" if each.values is None else f"is {each.values[0]!r} and {each.values[1]!r}"
    return f"{each.part}: {place} {found} ({each.changed:,} of {each.items:,} elements differ)"


def logged(folder: Path, name: str) -> dict[int, float | str]:
    """A number by step, from the run's log; a line that is being written is not there yet."""
    try:
        lines = (folder / METRICS_FILE).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    numbers = [json.loads(line) for line in lines if line.endswith("\n")]
    return {line["step"]: line[name] for line in numbers if name in line}


def logged_step(folder: Path) -> int:
    """The last step of which there is a line."""
    return max(logged(folder, "loss"), default=0)


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, 0 without any."""
    newest = read_catalog(folder).newest
    return 0 if newest is None else newest.step
