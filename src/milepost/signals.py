"""SIGTERM and SIGINT ask a run to save and end, SIGUSR1 asks it to save; a second request to end ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGINT)
SAVING = (signal.SIGUSR1,)
_Handler = Callable[[int, FrameType | None], Any]


class SignalWatcher:
    """Notes signals for the training loop to read at its next step, and passes them on to handlers set before.

    Handlers can only be set in the main thread; elsewhere nothing is watched. Python's own handler of SIGINT is not
    passed on to, since it raises KeyboardInterrupt in the middle of a step; what another handler raises waits in
    ``raised`` until the save is done.
    """

    def __init__(self) -> None:
        self.ending: signal.Signals | None = None
        self.saving: signal.Signals | None = None
        self.raised: BaseException | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._passed_on: set[signal.Signals] = set()
        self._pid = os.getpid()
        self._watching = False

    def install(self) -> None:
        """Take over the signals, remembering the handlers in place."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._watching = True
        for number in (*ENDING, *SAVING):
            # A signal that is ignored (SIGINT in a background job, say) stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)

    def restore(self) -> None:
        """Put the earlier handlers back, each only where ours is still the one in place; elsewhere it steps aside."""
        self._watching = False
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            # Equality, not identity: a bound method is a new object each time it is looked up.
            if signal.getsignal(number) == self._note:
                signal.signal(number, before if before is not None else signal.SIG_DFL)

    def raise_pending(self) -> None:
        """Raise what a handler that was there before has raised, once."""
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised

    def send_again(self) -> None:
        """Give a signal to end, which nobody has acted on, to whom it would have gone without us."""
        if self.ending is not None and self.ending not in self._passed_on:
            os.kill(os.getpid(), self.ending)

    def take_saving(self) -> str:
        """The name of the signal that asked to save and go on; it is answered with this."""
        asked, self.saving = self.saving, None
        return asked.name if asked is not None else ""

    def _note(self, number: int, frame: FrameType | None) -> None:
        asked = signal.Signals(number)
        before = self._before.get(asked)
        # A forked worker inherits the handler, but has no step at which it could act, and a closed one has none left
        # (somebody's later handler may still call it): they behave as without it.
        if not self._watching or os.getpid() != self._pid:
            if callable(before):
                before(number, frame)
            elif before is not signal.SIG_IGN:
                self._end_now(asked)
            return
        if asked in SAVING:
            self.saving = asked
        elif self.ending is not None:
            self._end_now(asked)
        else:
            self.ending = asked
        if callable(before) and before is not signal.default_int_handler:
            self._passed_on.add(asked)
            try:
                before(number, frame)
            except BaseException as error:
                self.raised = error

    def _end_now(self, number: signal.Signals) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
