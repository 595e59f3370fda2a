"""Threads that copy and digest: jobs that training waits for come first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

Action = Callable[[], None]


class Workers:
    """Threads that do jobs, urgent ones first; they begin with the first job, and ``close`` ends them."""

    def __init__(self, count: int = 2) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._urgent: deque[Action] = deque()
        self._unhurried: deque[Action] = deque()
        self._wake = threading.Condition()
        self._closed = False

    def submit(self, jobs: Iterable[Action], *, urgent: bool = True) -> None:
        """Queue jobs; they must not raise."""
        with self._wake:
            (self._urgent if urgent else self._unhurried).extend(jobs)
            while len(self._threads) < self._count and not self._closed:
                # Daemons: at the interpreter's end the writer's thread is waited for, and it waits for what these do.
                thread = threading.Thread(target=self._work, name="milepost-copy", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._wake.notify_all()

    def help(self) -> bool:
        """Do one urgent job on the caller's thread; False if there is none."""
        try:
            job = self._urgent.popleft()
        except IndexError:
            return False
        job()
        return True

    def close(self) -> None:
        """End the threads once nothing is queued."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()
            # A job holds the state that it copied.
            del job

    def _next(self) -> Action | None:
        with self._wake:
            while True:
                for queue in (self._urgent, self._unhurried):
                    # Not asked whether it is empty first: ``help`` takes from it without the lock.
                    try:
                        return queue.popleft()
                    except IndexError:
                        continue
                if self._closed:
                    return None
                self._wake.wait()
