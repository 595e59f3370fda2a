"""One job at a time, in the order given: in a thread of its own, or in the caller's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Job(Generic[T]):
    """A piece of work under way, and later its result or error; an error is reported to one place only."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future
        self._reported = False

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    @property
    def failed(self) -> bool:
        """Whether it has ended badly."""
        return self._future.done() and self._future.exception() is not None

    def wait(self) -> None:
        """Return when it has ended, well or not."""
        self._future.exception()

    def when_done(self, action: Callable[[], object]) -> None:
        """Call ``action`` once it has ended, in the thread that ends it (now, if it has)."""
        self._future.add_done_callback(lambda _: action())

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, at most ``timeout`` seconds (TimeoutError). Raises the job's error."""
        if self._future.exception(timeout) is not None:
            self._reported = True
        return self._future.result()

    def take_error(self) -> BaseException | None:
        """The error of a job that has ended badly, unless somebody has been told of it."""
        if self._reported or not self._future.done():
            return None
        self._reported = True
        return self._future.exception()


def finished(result: T) -> Job[T]:
    """A job that has ended well already."""
    future: Future[T] = Future()
    future.set_result(result)
    return Job(future)


class Writer:
    """Runs jobs one after the other; the interpreter waits for a running job before it exits.

    ``jobs`` are those whose end nobody has asked about yet, the oldest first.
    """

    def __init__(self, *, background: bool) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="milepost-writer") if background else None
        self.jobs: list[Job[Any]] = []

    def submit(self, work: Callable[[], T]) -> Job[T]:
        """Start work, or queue it behind what is running; in the foreground, do it now."""
        future: Future[T]
        if self._pool is None:
            future = Future()
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        else:
            future = self._pool.submit(work)
        job = Job(future)
        self.jobs.append(job)
        return job

    def wait(self) -> None:
        """Return when no job is running or queued; errors stay with their jobs."""
        for job in list(self.jobs):
            job.wait()

    def take_error(self) -> BaseException | None:
        """The first error that nobody has been told of; jobs that have ended are forgotten on the way."""
        while self.jobs and self.jobs[0].done():
            error = self.jobs.pop(0).take_error()
            if error is not None:
                return error
        return None

    def close(self) -> None:
        """Wait for all jobs and end the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
