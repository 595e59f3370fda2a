"""Everything that changes a run's folder: commits, changed manifests, pruning; one after the other, in one thread."""

from __future__ import annotations

import logging
import platform
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import milepost
from milepost.errors import CheckpointNotFoundError, SaveFailedError
from milepost.keeping import Keeper
from milepost.records import Checkpoint, Snapshot
from milepost.resumption import rewind
from milepost.storage.backend import Backend
from milepost.storage.catalog import newest_serial, read_catalog
from milepost.storage.commit import Draft, commit
from milepost.storage.layout import RunFolder, new_id
from milepost.storage.sweep import superseded_serial
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
    """Commits snapshots and keeps the folder tidy. Errors wait in ``take_error`` until somebody is told."""

    def __init__(
        self, run: RunFolder, backend: Backend, keeper: Keeper, constants: Constants, *, background: bool
    ) -> None:
        self._run = run
        self._backend = backend
        self._keeper = keeper
        self._constants = constants
        self._writer = Writer(background=background)
        self._saving: tuple[int, Job[Checkpoint]] | None = None
        self.run_id = new_id() + new_id()
        self.serial = superseded_serial(run)
        self._committed: deque[Checkpoint] = deque()
        self.callbacks: list[Callable[[Checkpoint], object]] = []

    @property
    def has_news(self) -> bool:
        """Whether a job is under way, or has ended without anybody asking how."""
        return bool(self._writer.jobs or self._committed)

    def save(
        self,
        step: int,
        snapshot: Snapshot,
        *,
        reasons: Sequence[str],
        metrics: Mapping[str, float],
        epoch: int | None,
        seconds: float,
        healthy: bool | None = None,
    ) -> Job[Checkpoint]:
        """Commit a snapshot as the checkpoint of ``step``, then prune. ``seconds`` is training time so far."""
        self.serial = max(self.serial, newest_serial(read_catalog(self._run.path))) + 1
        draft = Draft(
            step=step,
            serial=self.serial,
            run_id=self.run_id,
            snapshot=snapshot,
            assets=self._constants.assets,
            epoch=epoch,
            seconds=seconds,
            metrics=metrics,
            reasons=tuple(reasons),
            config=self._constants.config,
            software=_SOFTWARE,
            healthy=healthy,
        )
        job = self._writer.submit(lambda: self._commit(draft))
        self._saving = (step, job)
        return job

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

    def wait(self) -> None:
        """Return when nothing is under way."""
        self._writer.wait()

    def take_error(self) -> BaseException | None:
        """The first error that nobody was told of."""
        return self._writer.take_error()

    def raise_failure(self) -> None:
        """Raise the first error that nobody was told of, if there is one."""
        failure = self.take_error()
        if failure is not None:
            raise failure

    def tell(self) -> None:
        """Call every callback once for each checkpoint committed since the last time."""
        while self._committed:
            checkpoint = self._committed.popleft()
            for callback in self.callbacks:
                callback(checkpoint)

    def report(self) -> None:
        """Errors first, then what was committed."""
        self.raise_failure()
        self.tell()

    def close(self) -> None:
        """Finish what is under way, and end."""
        self._writer.close()

    def _commit(self, draft: Draft) -> Checkpoint:
        try:
            checkpoint = commit(self._run, self._backend, draft, max_shard_size=self._constants.max_shard_size)
        except OSError as error:
            raise SaveFailedError(
                f"step {draft.step} could not be saved in {self._run.path}: {error}. Older checkpoints are untouched, "
                "and the next save is tried at its turn.",
                path=self._run.path,
                step=draft.step,
            ) from error
        logger.info("saved %s (%s)", checkpoint.path, ", ".join(draft.reasons))
        self._committed.append(checkpoint)
        self._keeper.committed(checkpoint)
        return checkpoint

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
