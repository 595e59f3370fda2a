"""Saving when somebody asks: by a signal, or by a request from the command line."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from milepost.policy.saving import SaveSchedule, as_schedule
from milepost.records import Checkpoint, Moment

_ENDING = ("SIGTERM", "SIGINT")
_NEVER_CAUGHT = ("SIGKILL", "SIGSTOP")
_ANSWER = re.compile(r"save-now \(([0-9a-f]{8}(?:, [0-9a-f]{8})*)\)")


@dataclass(frozen=True, slots=True)
class OnRequest:
    """When ``milepost save-now`` asks for it."""

    def reason_to_save(self, moment: Moment) -> str | None:
        """Names the requests, so that a checkpoint says for ever which ones it answers."""
        # Most moments have none.
        return f"save-now ({', '.join(moment.requests)})" if moment.requests else None


@dataclass(frozen=True, slots=True)
class OnSignal:
    """When one of these signals was sent to the process: ``OnSignal("SIGUSR2")``; training goes on after the save.

    SIGTERM and SIGINT are no choice: they save and end a run, whatever its schedule says.
    """

    signals: tuple[str, ...]

    def __init__(self, *signals: str | signal.Signals) -> None:
        if not signals:
            raise ValueError("OnSignal(): name at least one signal, such as 'SIGUSR2'")
        object.__setattr__(self, "signals", tuple(dict.fromkeys(map(_signal_name, signals))))

    def reason_to_save(self, moment: Moment) -> str | None:
        """The signal's name."""
        return moment.signal if moment.signal in self.signals else None


def takes_requests(schedule: SaveSchedule | None) -> bool:
    """Whether a schedule answers requests."""
    return any(isinstance(part, OnRequest) for part in as_schedule(schedule).schedules)


def signals_that_save(schedule: SaveSchedule | None) -> tuple[str, ...]:
    """Names of the signals that a schedule answers."""
    parts = (part.signals for part in as_schedule(schedule).schedules if isinstance(part, OnSignal))
    return tuple(dict.fromkeys(name for names in parts for name in names))


def answered_requests(checkpoint: Checkpoint) -> frozenset[str]:
    """Ids of the requests that a checkpoint was saved for."""
    found = (_ANSWER.fullmatch(reason) for reason in checkpoint.reasons)
    return frozenset(each for match in found if match is not None for each in match[1].split(", "))


def answer_to(request: str, checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """The checkpoint that was saved for a request, if there is one."""
    return next((each for each in checkpoints if request in answered_requests(each)), None)


def _signal_name(value: Any) -> str:
    name = getattr(value, "name", value)
    if not isinstance(name, str):
        raise TypeError(f"OnSignal({value!r}): a signal is named, such as 'SIGUSR2'")
    if name in _ENDING:
        raise ValueError(f"OnSignal({name!r}): {name} saves and ends a run anyway; choose another, such as 'SIGUSR2'")
    if name in _NEVER_CAUGHT or name not in signal.Signals.__members__:
        raise ValueError(f"OnSignal({name!r}): there is no such signal that a process could answer")
    return name
