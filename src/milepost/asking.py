"""What people ask of a live run: by signals, and by the requests of ``milepost save-now``."""

from __future__ import annotations

import logging
import signal
from typing import Any

from milepost.policy.asking import OnSignal, signals_that_save, takes_requests
from milepost.policy.saving import AnyOf
from milepost.signals import SignalWatcher
from milepost.storage.backend import Backend
from milepost.storage.layout import RunFolder
from milepost.storage.requests import begin_answering, pending_requests, refuse_requests, remove_requests
from milepost.writing import Job

logger = logging.getLogger("milepost")

# Looking costs tens of microseconds, and on a network disk milliseconds: too much for each of many short steps.
SECONDS_BETWEEN_LOOKS = 0.1


def with_signals(schedule: AnyOf, wanted: bool) -> AnyOf:
    """The schedule that also answers SIGUSR1, if signals are wanted."""
    return AnyOf((*schedule.schedules, OnSignal("SIGUSR1"))) if wanted else schedule


class Asked:
    """Listens from construction until ``close``; what is heard is answered by the save that it leads to."""

    def __init__(self, run: RunFolder, backend: Backend, schedule: AnyOf, *, ending: bool) -> None:
        self._run = run
        self._backend = backend
        self._taking = takes_requests(schedule)
        self._waiting: tuple[str, ...] = ()
        # Requests of which a save is under way, or done and perhaps not yet removed.
        self._answered: set[str] = set()
        self._next_look = 0.0
        self._signals = SignalWatcher(signals_that_save(schedule), ending=ending)
        try:
            begin_answering(run, backend) if self._taking else refuse_requests(run, backend)
        except OSError as error:
            self._taking = False
            logger.warning("requests to save cannot be answered: %s", error)
        self._signals.install()

    @property
    def ending(self) -> signal.Signals | None:
        """The signal that asked the run to end, if one did."""
        return self._signals.ending

    @property
    def raised(self) -> BaseException | None:
        """What a handler that was there before has raised, until ``raise_pending``."""
        return self._signals.raised

    def raise_pending(self) -> None:
        """Raise what a handler that was there before has raised, once."""
        self._signals.raise_pending()

    def send_again(self) -> None:
        """Give a signal to end, which nobody has acted on, to whom it would have gone without us."""
        self._signals.send_again()

    def at(self, seconds: float) -> tuple[str | None, tuple[str, ...]]:
        """The signal and the requests that ask for a save now, ``seconds`` being the time on the run's clock.

        Requests are looked for a few times a second at most.
        """
        if self._taking and seconds >= self._next_look:
            self._next_look = seconds + SECONDS_BETWEEN_LOOKS
            self._waiting = self._look()
        return self._signals.take_saving(), self._waiting

    def answered_by(self, job: Job[Any]) -> None:
        """Requests that are waiting are answered when this save is durable; if it fails, they wait on."""
        if not self._waiting:
            return
        requests, self._waiting = self._waiting, ()
        self._answered.update(requests)
        job.when_done(lambda: self._saved(job, requests))

    def close(self, *, saved: bool) -> None:
        """Listen no more. With ``saved`` the last step is durable, which answers whatever is still waiting."""
        self._signals.restore()
        if self._taking and saved:
            self._remove(pending_requests(self._run))

    def _look(self) -> tuple[str, ...]:
        try:
            return tuple(each for each in pending_requests(self._run) if each not in self._answered)
        except OSError as error:
            self._taking = False
            logger.warning("requests to save cannot be read, and are not answered any more: %s", error)
            return ()

    def _saved(self, job: Job[Any], requests: tuple[str, ...]) -> None:
        if job.failed:
            self._answered.difference_update(requests)
        else:
            self._remove(requests)

    def _remove(self, requests: tuple[str, ...]) -> None:
        try:
            remove_requests(self._run, self._backend, requests)
        except OSError as error:
            # They stay answered: the checkpoint names them, and the next manager removes them.
            logger.warning("answered requests to save could not be removed: %s", error)
