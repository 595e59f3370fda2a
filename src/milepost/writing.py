"""One job at a time, in the order given, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
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

    @property
    def error(self) -> BaseException | None:
        """The error of a job that has ended, for nobody that would report it."""
        return self._future.exception()

    def wait(self, timeout: float | None = None) -> bool:
        """Return when it has ended, well or not, or after ``timeout`` seconds; gives whether it has."""
        return not wait([self._future], timeout).not_done

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, at most ``timeout`` seconds (TimeoutError). Raises the job's error."""
        if self._future.exception(timeout) is not None:
            self._reported = True
        return self._future.result()

    def peek(self) -> T:
        """The result of a job that has ended well, for nobody that would report its error."""
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

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="milepost-writer")
        self.jobs: list[Job[Any]] = []

    def submit(self, work: Callable[[], T]) -> Job[T]:
        """Start work, or queue it behind what is running."""
        job = Job(self._pool.submit(work))
        self.jobs.append(job)
        return job

    def wait(self, timeout: float | None = None) -> bool:
        """Return when no job is running or queued, or one takes ``timeout`` seconds more; errors stay with them."""
        return all(job.wait(timeout) for job in list(self.jobs))

    def has_failed(self, kind: type[BaseException]) -> bool:
        """Whether a job has ended with an error of that kind."""
        return any(job.failed and isinstance(job.error, kind) for job in self.jobs)

    def take_error(self, kind: type[BaseException] = BaseException) -> BaseException | None:
        """The first error of a kind that nobody has been told of; jobs that ended well are forgotten on the way."""
        for job in list(self.jobs):
            if job.done() and (job.error is None or isinstance(job.error, kind)):
                self.jobs.remove(job)
                if (error := job.take_error()) is not None:
                    return error
        return None

    def close(self) -> None:
        """Wait for all jobs and end the thread."""
        self._pool.shutdown(wait=True)
