"""The rounds: in each, every limit and every method once, in an order that changes from round to round."""

from __future__ import annotations

import contextlib
import gc
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import limits
from benchmarks.catalog import BY_NAME, CAPTURE, METHODS
from benchmarks.engine import CaptureAlone, Milepost
from benchmarks.figures import Samples
from benchmarks.loops import Training, Window, window
from benchmarks.methods import Method
from benchmarks.processes import quiet_stderr, run_alone
from benchmarks.step_cost import microseconds_a_step

OVERLAPPED = "milepost-overlapped"
# What is measured beside the methods, by the names that --only takes.
OTHERS = (CAPTURE, "first-saves", "memory", "resume", "step-cost")
COPIES = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, how large and how often.

    Of the ``pairs`` rounds, peers take part in ``peer_pairs`` and their first saves in ``first_peer_pairs``;
    processes of their own are started in ``alone_pairs``. ``least`` is the steps of a window, ``pause`` the seconds
    of rest after a deletion.
    """

    folder: Path
    state_bytes: int
    pairs: int
    peer_pairs: int
    first_peer_pairs: int
    alone_pairs: int
    least: int
    pause: float
    names: frozenset[str]

    def takes(self, round_: int, count: int) -> bool:
        """Whether the round is one of ``count``, spread evenly over all."""
        count = min(count, self.pairs)
        return any(round_ == at * self.pairs // count for at in range(count))


class Bench:
    """Everything that stays from round to round: the training, the methods with their kept memory, the samples."""

    def __init__(self, plan: Plan, say: Callable[[str], None], samples: Samples) -> None:
        self.plan, self.samples = plan, samples
        self.spent: dict[str, float] = {}
        self._show, self._now, self._since = say, "", time.monotonic()
        self.methods: dict[str, Method] = {}
        self.direct = True

    def say(self, what: str) -> None:
        """Tell what is being done, and note what the thing before it took."""
        now = time.monotonic()
        if self._now:
            self.spent[self._now] = self.spent.get(self._now, 0.0) + now - self._since
        self._now, self._since = what, now
        self._show(what)

    def open(self) -> None:
        """Make the training and every method, and let each save once, untimed."""
        self.say("making the model")
        self.training = Training(self.plan.state_bytes)
        for _ in range(3):
            self.training.step()
        self.sources = limits.bytes_of(self.training.tensors)
        self.buffer = limits.aligned_buffer(self.training.state_bytes)
        if "resume" in self.plan.names:
            with self.attempt("resume"):
                self._make_checkpoint()
        for entry in METHODS:
            if entry.name not in self.plan.names or not entry.installed:
                continue
            self.say(f"making ready: {entry.label}")
            with self.attempt(entry.name), quiet_stderr():
                self.methods[entry.name] = entry.make(self.training, self.plan.folder / entry.name)
                self._durable(self.methods[entry.name])
        overlapped = self.methods.get(OVERLAPPED)
        if isinstance(overlapped, Milepost) and CAPTURE in self.plan.names:
            self.methods[CAPTURE] = CaptureAlone(overlapped)

    def close(self) -> None:
        """End every method."""
        self.say("closing")
        for name, method in self.methods.items():
            with self.attempt(name, drop=False), quiet_stderr():
                method.close()
        self.methods.clear()

    @contextlib.contextmanager
    def attempt(self, name: str, *, drop: bool = True) -> Iterator[None]:
        """Whatever goes wrong is noted, and the method takes no further part."""
        try:
            yield
        except Exception as error:
            self.samples.failures.setdefault(name, f"{type(error).__name__}: {error}")
            if drop:
                self.methods.pop(name, None)

    def round(self, at: int) -> None:
        """One round of everything."""
        before = self._limits()
        names = [name for name in self.methods if self._takes_part(name, at)]
        names = names[at % len(names) :] + names[: at % len(names)] if names else []
        if at % 2:
            names.reverse()
        for name in names:
            if name != CAPTURE:
                self._until_durable(name, at)
        # Both before and after what is divided by them first, lest a drift be taken for a difference.
        for name, first, second in zip(("limit.copy", "limit.disk"), before, self._limits(), strict=True):
            self.samples.add(name, at, (first + second) / 2)
        self._windows([name for name in names if name == CAPTURE or BY_NAME[name].background], at)
        if self.plan.takes(at, self.plan.alone_pairs):
            self._alone(at)
        if "step-cost" in self.plan.names:
            self.say("step() not due")
            with self.attempt("step-cost"):
                self.samples.add("step-cost", at, microseconds_a_step(with_metrics=False))

    def _takes_part(self, name: str, at: int) -> bool:
        return name == CAPTURE or BY_NAME[name].ours or self.plan.takes(at, self.plan.peer_pairs)

    def _limits(self) -> tuple[float, float]:
        self.say("limits")
        copies = [limits.copy_seconds(self.sources, self.buffer) for _ in range(COPIES)]
        path = self.plan.folder / "limit"
        begin = time.perf_counter()
        self.direct &= limits.write_direct(path, self.buffer)
        written = time.perf_counter() - begin
        path.unlink()
        self._settle()
        return statistics.median(copies), written

    def _until_durable(self, name: str, at: int) -> None:
        self.say(f"until durable: {self._label(name)}")
        with self.attempt(name):
            call, durable = self._durable(self.methods[name])
            self.samples.add(f"call.{name}", at, call)
            self.samples.add(f"durable.{name}", at, durable)

    def _durable(self, method: Method) -> tuple[float, float]:
        method.stepped()
        begin = time.perf_counter()
        method.save()
        call = time.perf_counter() - begin
        method.wait()
        durable = time.perf_counter() - begin
        method.tidy()
        self._settle()
        return call, durable

    def _windows(self, names: list[str], at: int) -> None:
        """Training alone, with the first method, alone, with the second, …: each against both its neighbours."""
        if not names:
            return
        before = self._alone_window()
        for name in names:
            self.say(f"beside training: {self._label(name)}")
            found: Window | None = None
            with self.attempt(name):
                found = window(self.training, self.methods[name], self.plan.least)
                self.methods[name].wait()
                self.methods[name].tidy()
            self._settle()
            after = self._alone_window()
            if found is not None:
                self._note(name, at, found, before, after)
            before = after

    def _note(self, name: str, at: int, found: Window, before: Window, after: Window) -> None:
        step = (before.seconds / before.steps + after.seconds / after.steps) / 2
        update = (before.update + after.update) / 2
        numbers = {
            "lost": found.seconds - found.steps * step,
            "held": found.held,
            "held-engine": found.engine,
            "held-call": found.call,
            "held-hook": found.hook,
            "held-lock": found.lock,
            "first-update-excess": found.first_update - update,
            "window": found.seconds,
            "window-steps": found.steps,
            "step-alone": step,
        }
        for what, value in numbers.items():
            if value is not None:
                self.samples.add(f"{what}.{name}", at, value)

    def _alone_window(self) -> Window:
        self.say("training alone")
        # Steps right after a deletion or another method's window are not like the others.
        self.training.step()
        return window(self.training, None, self.plan.least)

    def _alone(self, at: int) -> None:
        plan, common = self.plan, {"state_bytes": self.plan.state_bytes}
        for name in self._first_savers(at):
            if f"first-saves of {name}" in self.samples.failures:
                continue
            self.say(f"first save: {self._label(name)}")
            with self.attempt(f"first-saves of {name}"), self._scratch() as folder:
                found = run_alone("first", common | {"name": name, "folder": folder, "least": plan.least})
                for what in ("first_held", "first_durable", "later_held", "later_durable", "made"):
                    self.samples.add(f"{what.replace('_', '-')}.{name}", at, found[what])
                self.samples.add(f"memory.{name}", at, found["memory_last"])
                growth = (1 + found["memory_last"]) / (1 + found["memory_first"])
                self.samples.add(f"memory-growth.{name}", at, growth)
        if "memory" in plan.names - self.samples.failures.keys():
            self.say("memory of a blocking save")
            with self.attempt("memory"), self._scratch() as folder:
                found = run_alone("memory", common | {"name": "milepost-blocking", "folder": folder})
                self.samples.add("memory.milepost-blocking", at, found["extra_mb"])
        for kind in ("cold", "warm"):
            if "resume" in plan.names - self.samples.failures.keys():
                self._resume(at, kind)

    def _first_savers(self, at: int) -> list[str]:
        if "first-saves" not in self.plan.names:
            return []
        peers = [name for name in self.methods if name != CAPTURE and BY_NAME[name].background]
        with_peers = self.plan.takes(at, self.plan.first_peer_pairs)
        return [name for name in peers if name == OVERLAPPED or (with_peers and name != "bare-writer")]

    def _resume(self, at: int, kind: str) -> None:
        self.say(f"resume, {kind}")
        with self.attempt("resume"):
            asked = {"folder": str(self.checkpoint), "cold": kind == "cold", "raw_first": at % 2 == 0}
            found = run_alone("resume", asked | {"state_bytes": self.plan.state_bytes})
            share = max(found["in_cache"]) if kind == "cold" else 1 - min(found["in_cache"])
            if share > 0.02:
                raise RuntimeError(f"{share:.0%} of the files were not {kind}")
            self.samples.add(f"limit.read-{kind}", at, found["raw"])
            self.samples.add(f"resume.{kind}", at, found["resume"])
            more = max(found["extra_mb"], self.samples.values.get("memory.resume", {}).get(at, 0.0))
            self.samples.add("memory.resume", at, more)

    def _make_checkpoint(self) -> None:
        made = BY_NAME["milepost-blocking"].make(self.training, self.plan.folder / "kept")
        made.save()
        made.wait()
        made.close()
        self.checkpoint = self.plan.folder / "kept" / "run"

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[str]:
        folder = self.plan.folder / "alone"
        folder.mkdir()
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder)
            self._settle()

    def _settle(self) -> None:
        """Let deletions reach the disk before the next thing is timed."""
        limits.sync_folder(self.plan.folder)
        gc.collect()
        time.sleep(self.plan.pause)

    @staticmethod
    def _label(name: str) -> str:
        return "Milepost, capture alone" if name == CAPTURE else BY_NAME[name].label
