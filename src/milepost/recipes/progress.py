"""What a run says while it goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_SHOWN: Mapping[str, Callable[[float], str]] = {
    "loss": lambda value: f"loss {value:.4f}",
    "val_loss": lambda value: f"val_loss {value:.4f}",
    "lr": lambda value: f"lr {value:.2e}",
    "tokens_per_second": lambda value: f"{value:,.0f} tokens/s",
}


class ProgressReport:
    """Shows where a run is. Tokens per second count from the line before to this one.

    Use it as a context; within it, what Milepost logs (saves, what was pruned or passed over) is shown too.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._total = 0
        self._console = Console(highlight=False, soft_wrap=True) if console is None else console
        self._bar = _bar(self._console) if self._console.is_terminal else None
        self._task: TaskID | None = None
        self._handler = _ConsoleHandler(self._console)
        self._since = time.perf_counter()
        self._tokens = 0

    def __enter__(self) -> Self:
        logger = logging.getLogger("milepost")
        self._level_before = logger.level
        logger.setLevel(min(logging.INFO, logger.level or logging.INFO))
        logger.addHandler(self._handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        logger = logging.getLogger("milepost")
        logger.removeHandler(self._handler)
        logger.setLevel(self._level_before)

    def say(self, text: str) -> None:
        """One plain line."""
        self._console.print(text, markup=False)

    def begin(self, step: int, total_steps: int) -> None:
        """Training of a run of ``total_steps`` begins after ``step``."""
        self._total = total_steps
        self._since = time.perf_counter()
        if self._bar is not None:
            self._task = self._bar.add_task("", total=self._total, completed=step, facts="")
            self._bar.start()

    def consumed(self, tokens: int) -> None:
        """Count the tokens of a step."""
        self._tokens += tokens

    @contextlib.contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """What happens in it is no training time."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._since += time.perf_counter() - begun

    def speed(self) -> float:
        """Tokens per second since the last time this was asked."""
        now = time.perf_counter()
        speed = self._tokens / max(now - self._since, 1e-9)
        self._since, self._tokens = now, 0
        return speed

    def show(self, step: int, numbers: Mapping[str, float], next_save: int) -> None:
        """Show the numbers of a step, and where the next save is; at the last step, there is none."""
        facts = [_SHOWN[name](value) for name, value in numbers.items() if name in _SHOWN]
        if step < self._total:
            facts.append(f"next save {next_save:,}")
        if self._bar is None or self._task is None:
            self.say(f"step {step:,}/{self._total:,}  " + "  ".join(facts))
        else:
            self._bar.update(self._task, completed=step, facts="  ".join(facts))


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._output = console

    def emit(self, record: logging.LogRecord) -> None:
        begin = "WARNING: " if record.levelno >= logging.WARNING else ""
        self._output.print(begin + record.getMessage(), markup=False)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("step {task.completed:,}/{task.total:,}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
        console=console,
    )
