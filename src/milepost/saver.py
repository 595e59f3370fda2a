"""Everything that changes a run's folder: commits, changed manifests, pruning; one after the other, in one thread."""

from __future__ import annotations

import logging
import platform
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

import milepost
from milepost.capturing import Captured, Capturer
from milepost.copying import SpoiledCopyError
from milepost.errors import CheckpointNotFoundError, MilepostError, SaveFailedError
from milepost.keeping import Keeper
from milepost.records import Checkpoint
from milepost.resumption import rewind
from milepost.storage.backend import Backend
from milepost.storage.catalog import newest_serial, read_catalog
from milepost.storage.commit import Draft, commit
from milepost.storage.layout import RunFolder, new_id
from milepost.storage.sweep import superseded_serial
from milepost.storage.usage import size_on_disk
from milepost.writing import Job, Writer

logger = logging.getLogger("milepost")

_SOFTWARE = {"milepost": milepost.__version__, "torch": torch.__version__, "python": platform.python_version()}


@dataclass(frozen=True, slots=True)
class Constants:
    """What is the same in every checkpoint of a run: the small files beside the weights, and how weights are split."""

    assets: Mapping[str, bytes]
    config: str | None
    max_shard_size: int


class Saver:
    """Captures and commits, and keeps the folder tidy. Errors wait in ``take_error`` until somebody is told.

    Without ``background`` a save returns when it is durable.
    """

    def __init__(
        self,
        run: RunFolder,
        backend: Backend,
        keeper: Keeper,
        capturer: Capturer,
        constants: Constants,
        *,
        background: bool,
    ) -> None:
        self._capturer = capturer
        self._background = background
        self._run = run
        self._backend = backend
        self._keeper = keeper
        self._constants = constants
        self._writer = Writer()
        self._saving: tuple[int, Job[Checkpoint]] | None = None
        self.run_id = new_id() + new_id()
        self.serial = superseded_serial(run)
        # Of the save under way: bytes of tensors written, and in all.
        self.progress = (0, 0)
        self._committed: deque[Checkpoint] = deque()
        self.callbacks: list[Callable[[Checkpoint], object]] = []

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being written, or waits for that."""
        return self._saving is not None and not self._saving[1].done()

    @property
    def has_news(self) -> bool:
        """Whether a job is under way, or has ended without anybody asking how."""
        return bool(self._writer.jobs or self._committed)

    def save(
        self,
        step: int,
        *,
        reasons: Sequence[str],
        metrics: Mapping[str, float],
        epoch: int | None,
        seconds: float,
        healthy: bool | None = None,
    ) -> Job[Checkpoint]:
        """Capture the state and commit it as the checkpoint of ``step``, then prune; ``seconds`` is training time.

        One save is in flight at a time, so it waits for the one before. Raises what a capture raises, and without
        ``background`` what the commit does.
        """
        # The copy that is being written must be of no use any more before the next one is made.
        self._capturer.finish()
        self.wait_for_commit()
        captured = self._capturer.capture()
        draft = partial(
            Draft,
            step=step,
            run_id=self.run_id,
            assets=self._constants.assets,
            epoch=epoch,
            seconds=seconds,
            metrics=metrics,
            reasons=tuple(reasons),
            config=self._constants.config,
            software=_SOFTWARE,
            healthy=healthy,
            on_bytes=self._advance,
        )
        self.progress = (0, 0)
        try:
            job = self._writer.submit(lambda: self._commit(draft, captured))
            self._saving = (step, job)
            # A job of its own: the checkpoint is durable before, and pruning large files takes time.
            self._writer.submit(lambda: self._keep(job))
        finally:
            # Also if a signal's exception comes in between: the writer waits for it.
            self._capturer.complete()
        if not self._background:
            job.wait()
            self.raise_failure()
        return job

    def wait_for_commit(self) -> None:
        """Return when no snapshot is being written; pruning may still be under way."""
        if self._saving is not None:
            self._saving[1].wait()

    @property
    def last_step(self) -> int | None:
        """The step that was saved last, or is being saved."""
        return None if self._saving is None else self._saving[0]

    def saving(self, step: int) -> Job[Checkpoint] | None:
        """The save of this very step, if it is under way or was the last one and ended well."""
        if self._saving is None or self._saving[0] != step or self._saving[1].failed:
            return None
        return self._saving[1]

    def change(self, step: int, **fields: Any) -> None:
        """Rewrite fields of a checkpoint's manifest after all that was asked before.

        Raises CheckpointNotFoundError if ``step`` neither has a checkpoint nor is being saved.
        """
        if read_catalog(self._run.path).at(step) is None and self.saving(step) is None:
            raise CheckpointNotFoundError(f"{self._run.path} has no checkpoint of step {step}", step=step)
        self._writer.submit(lambda: self._change(step, fields))
        if not self._background:
            self.wait()
            self.raise_failure()

    def go_on_from(self, checkpoint: Checkpoint, *, rewound: bool) -> None:
        """The run goes on from a checkpoint of its own; ``rewound`` puts those committed after it aside."""
        self.run_id = checkpoint.run_id
        self._keeper.resumed_from = checkpoint.id
        if rewound:
            self.serial = rewind(self._run, self._backend, checkpoint)
        else:
            self.tidy()

    def tidy(self) -> None:
        """Ask the rules again, for what a run that was killed between a commit and its pruning left."""
        self._writer.submit(lambda: self._keeper.tidy(self.run_id))

    def wait(self, timeout: float | None = None) -> bool:
        """Return when nothing is under way, or after about ``timeout`` seconds; gives whether nothing is."""
        return self._writer.wait(timeout)

    def take_error(self) -> BaseException | None:
        """The first error that nobody was told of; a spoiled copy that a later save made good is none."""
        if self._saving is not None and self._saving[1].done() and not self._saving[1].failed:
            while (spoiled := self._writer.take_error(SpoiledCopyError)) is not None:
                logger.warning("%s It was saved again.", spoiled)
        return self._writer.take_error()

    def raise_failure(self) -> None:
        """Raise the first error that nobody was told of, if there is one."""
        failure = self.take_error()
        if failure is not None:
            raise failure

    def take_again(self) -> tuple[str, ...]:
        """The reason to save now what an earlier save could not: a copy that was spoiled. It is given once."""
        if not self._writer.has_failed(SpoiledCopyError):
            return ()
        while (error := self._writer.take_error(SpoiledCopyError)) is not None:
            logger.warning("%s It is saved again now, and copies are made at once from now on.", error)
        self._capturer.give_up_overlapping()
        return ("an earlier copy was spoiled",)

    def tell(self) -> None:
        """Call every callback once for each checkpoint committed since the last time."""
        while self._committed:
            checkpoint = self._committed.popleft()
            for callback in self.callbacks:
                callback(checkpoint)

    def report(self) -> None:
        """Tell what was committed, and raise errors as ``raise_failure`` does."""
        try:
            self.tell()
        finally:
            self.raise_failure()

    def close(self) -> None:
        """Finish what is under way, and end."""
        self._writer.close()
        self._capturer.close()

    def _commit(self, make_draft: Callable[..., Draft], captured: Captured) -> Checkpoint:
        parts = captured.parts()
        draft = make_draft(serial=0, state=parts.state, image=parts.image, content=parts.content)
        self.progress = (0, draft.tensor_bytes)
        try:
            # Here and not at the save, since reading many manifests takes time that training need not wait for.
            self.serial = max(self.serial, newest_serial(read_catalog(self._run.path))) + 1
            draft = replace(draft, serial=self.serial)
            self._make_way(draft)
            checkpoint = commit(self._run, self._backend, draft, max_shard_size=self._constants.max_shard_size)
        except OSError as error:
            raise SaveFailedError(
                f"step {draft.step} could not be saved in {self._run.path}: {error}. Older checkpoints are untouched, "
                "and the next save is tried at its turn.",
                path=self._run.path,
                step=draft.step,
            ) from error
        finally:
            captured.close()
        logger.info("saved %s (%s)", checkpoint.path, ", ".join(draft.reasons))
        self._committed.append(checkpoint)
        return checkpoint

    def _keep(self, job: Job[Checkpoint]) -> None:
        if job.failed:
            return
        checkpoint = job.peek()
        try:
            self._keeper.committed(checkpoint)
        except Exception as error:
            raise MilepostError(
                f"{checkpoint.path} is saved, and nothing was pruned after it: a rule failed with {error!r}. Mend the "
                "rule; it is asked again after the next save."
            ) from error

    def _advance(self, count: int) -> None:
        self.progress = (self.progress[0] + count, self.progress[1])

    def _make_way(self, draft: Draft) -> None:
        if not self._keeper.limited:
            return
        tensors, constants = (draft.state.weights, draft.state.tensors), self._constants
        needed = size_on_disk(tensors, draft.state.state, draft.assets, constants.max_shard_size)
        self._keeper.make_way(draft.run_id, needed)

    def _change(self, step: int, fields: Mapping[str, Any]) -> None:
        checkpoint = read_catalog(self._run.path).at(step)
        if checkpoint is None:
            logger.warning("step %d has no checkpoint any more; %s is not recorded", step, ", ".join(fields))
            return
        try:
            self._keeper.change(checkpoint, fields)
        except OSError as error:
            raise SaveFailedError(
                f"the manifest of {checkpoint.path} could not be changed: {error}", path=checkpoint.path, step=step
            ) from error
