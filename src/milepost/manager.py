"""``CheckpointManager``: decides, captures, commits, prunes and resumes; each in its own room, tied together here."""

from __future__ import annotations

import logging
import operator
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

from milepost.asking import Asked, with_signals
from milepost.assets import collect_assets
from milepost.errors import CheckpointExistsError, MilepostError
from milepost.keeping import Keeper, as_keep_rules
from milepost.policy.retention import KeepRule
from milepost.policy.saving import SaveSchedule, as_schedule, reasons_to_save
from milepost.quantities import epoch_of, own_value, parse_size, read_numbers, whole_number
from milepost.records import Checkpoint, Moment
from milepost.resumption import find_origin, refuse_used
from milepost.saver import Constants, Saver
from milepost.snapshot.capture import capture
from milepost.snapshot.restore import restore
from milepost.snapshot.stateful import check_state
from milepost.storage.backend import Backend, LocalBackend
from milepost.storage.catalog import Catalog, read_catalog
from milepost.storage.run import open_run
from milepost.storage.verify import VerifyLevel
from milepost.writing import Job, finished

logger = logging.getLogger("milepost")


class CheckpointManager:
    """Saves a training run by step, keeps what the rules ask for, and resumes it bit for bit.

    ``folder`` is the run's folder (made if absent; a relative one is resolved here, once). ``state`` maps names to
    what must come back: modules, optimizers, anything with ``state_dict``/``load_state_dict``, dicts and lists; the
    random number generators are always part of it. ``save`` is a schedule or a list of them, ``keep`` a rule or a
    list (empty keeps all), ``assets`` what is written beside the weights, ``config_name`` the name of the one among
    them that is the run's configuration. With ``background`` the state is copied at a save and written while training
    goes on; without, it is written from where it is before ``step`` returns. ``verify`` says what a resume checks.
    With ``signals``, SIGTERM and SIGINT save and set ``should_stop``, and SIGUSR1 saves (``OnSignal`` among the
    schedules: others too).

    Raises RunLockedError if another live manager has the folder, SaveFailedError if it cannot be written to,
    UnsupportedStateError for a state that cannot be stored, ValueError or TypeError for bad arguments.
    """

    def __init__(
        self,
        folder: str | Path,
        state: Mapping[str, Any],
        *,
        save: SaveSchedule | Sequence[SaveSchedule] | None = None,
        keep: KeepRule | Sequence[KeepRule] | None = (),
        assets: Iterable[Any] = (),
        config_name: str | None = None,
        background: bool = True,
        verify: VerifyLevel = "digests",
        signals: bool = True,
        max_shard_size: int | str = "5GB",
        backend: Backend | None = None,
    ) -> None:
        if verify not in ("digests", "sizes"):
            raise ValueError(f"verify={verify!r} must be 'digests' or 'sizes'")
        self._verify: VerifyLevel = verify
        self._schedule = with_signals(as_schedule(save), signals)
        rules = as_keep_rules(keep)
        self._state = state
        self._entries = check_state(state)
        constants = Constants(collect_assets(assets), config_name, parse_size(max_shard_size, "max_shard_size"))
        self._background = background
        self._backend = LocalBackend() if backend is None else backend
        self._run, self._lock = open_run(Path(folder), self._backend)
        self._keeper = Keeper(self._run, self._backend, rules)
        self._saver = Saver(self._run, self._backend, self._keeper, constants, background=background)
        self._asked = Asked(self._run, self._backend, self._schedule, ending=signals)
        self._step, self._seconds = 0, 0.0
        # The step that the state on disk is known to be at, other than through a save of this process.
        self._resumed_step: int | None = None
        self._metrics: Mapping[str, Any] = {}
        self._healthy: bool | None = None
        self._clock_zero = time.monotonic()
        self._begun = self._stepped = self._closed = self._should_stop = False

    @property
    def folder(self) -> Path:
        """The run's folder, absolute."""
        return self._run.path

    @property
    def run_id(self) -> str:
        """The run's name in its manifests; a resumed run keeps it."""
        return self._saver.run_id

    @property
    def should_stop(self) -> bool:
        """Whether a signal asked the run to end; the save of the current step is durable by then."""
        return self._should_stop

    @property
    def stop_signal(self) -> signal.Signals | None:
        """The signal that asked the run to end, if one did."""
        return self._asked.ending

    def resume(self, source: str | SupportsIndex | Path = "auto", *, allow_missing: Iterable[str] = ()) -> int:
        """Restore the state and give the step that it belongs to: 0 for a fresh run; the next step is one more.

        ``source`` is ``"auto"`` (the newest good checkpoint, if there is any), ``"healthy"`` (the newest good one whose
        training was sound) or a step of this folder (later ones are put aside: a rewind), or the path of a checkpoint
        or another run's folder. ``allow_missing`` names entries of
        the state that may be in one of the two, checkpoint or live state, only.

        Raises CheckpointNotFoundError, CorruptCheckpointError, UnsupportedFormatError, or IncompatibleStateError (all
        live objects are then as before).
        """
        self._refuse_if_closed("resume()")
        if self._begun:
            raise CheckpointExistsError("resume() comes once, before the first step() or save()", path=self.folder)
        wanted = source if isinstance(source, str | Path) else operator.index(source)
        origin = find_origin(self._run, self._backend, wanted, self._verify)
        if origin is not None:
            restore(self._entries, origin.snapshot, allow_missing=tuple(allow_missing))
            self._step = origin.checkpoint.step
            self._seconds = origin.manifest.seconds
            if origin.inside:
                self._resumed_step = self._step
                self._saver.go_on_from(origin.checkpoint, rewound=wanted != "auto")
            logger.info("resumed from %s", origin.checkpoint.path)
        self._clock_zero = time.monotonic() - self._seconds
        self._begun = True
        return self._step

    def step(
        self,
        step: SupportsIndex,
        metrics: Mapping[str, Any] | None = None,
        *,
        epoch_end: bool = False,
        healthy: bool | None = None,
    ) -> None:
        """Tell of the end of step number ``step`` (1 is the first): saves if a schedule or somebody asks for it.

        ``metrics`` maps names to numbers or one-element tensors; they are read only if this step is saved.
        ``healthy`` says whether training is sound, where that is judged; it is stored. Raises ValueError if ``step``
        is not larger than the one before, and the error of an earlier save that failed, once.
        """
        if self._saver.has_news:
            self._saver.report()
        number = self._checked(step)
        seconds = time.monotonic() - self._clock_zero
        moment = Moment(number, self._step, seconds, self._seconds, epoch_end, *self._asked.at(seconds))
        reasons = reasons_to_save(self._schedule, moment)
        self._step, self._seconds, self._stepped, self._healthy = number, seconds, True, healthy
        self._metrics = {} if metrics is None else {name: own_value(value) for name, value in metrics.items()}
        # Read once: a signal that comes after this line is the next step's.
        ending = self._asked.ending
        if ending is not None:
            reasons = (*reasons, ending.name)
        if reasons:
            self._save(reasons)
        if ending is not None:
            self.wait()
            self._should_stop = True

    def save(self) -> Job[Checkpoint]:
        """Save the current step now (before the first one: the resumed step, or step 0).

        Gives the job; its ``result()`` waits and gives the ``Checkpoint``. A step that is saved already is not saved
        again. Raises the error of an earlier save that failed, once.
        """
        self._refuse_if_closed("save()")
        self._saver.report()
        if not self._begun:
            self._begin()
        under_way = self._saver.saving(self._step)
        if under_way is not None:
            return under_way
        if self._resumed_step == self._step and (saved := self.catalog().at(self._step)) is not None:
            return finished(saved)
        return self._save(("save() was called",))

    def record_metrics(self, step: SupportsIndex, metrics: Mapping[str, Any]) -> None:
        """Attach scores that come late to the checkpoint of ``step``; the rules are asked again.

        Works while that checkpoint is being written. Raises CheckpointNotFoundError for a step without a checkpoint.
        """
        self._change(step, metrics=read_numbers(metrics))

    def pin(self, step: SupportsIndex) -> None:
        """Exempt the checkpoint of ``step`` from retention. Raises CheckpointNotFoundError."""
        self._change(step, pinned=True)

    def unpin(self, step: SupportsIndex) -> None:
        """Let the rules decide again about the checkpoint of ``step``. Raises CheckpointNotFoundError."""
        self._change(step, pinned=False)

    def on_save(self, callback: Callable[[Checkpoint], object]) -> None:
        """Call ``callback`` once for each committed checkpoint, on the training thread, at the next step or close."""
        self._saver.callbacks.append(callback)

    def catalog(self) -> Catalog:
        """The run's committed checkpoints, the newest last, and its damaged folders; ``wait()`` for one on its way."""
        return read_catalog(self.folder)

    def latest(self) -> Checkpoint | None:
        """The checkpoint committed last."""
        return self.catalog().newest

    def best(self, metric: str, mode: str | None = None) -> Checkpoint | None:
        """The checkpoint with the best score, ``mode`` (``"min"``, ``"max"``) being that of its KeepBest rule."""
        return self._keeper.best(metric, mode)

    def wait(self) -> None:
        """Return when everything asked for is durable. Raises the error of a save that failed, once."""
        self._saver.wait()
        self._saver.raise_failure()

    def close(self) -> None:
        """End the run well: save the last step if it is not saved, wait, give back the lock and the handlers.

        Raises the error of a save that failed, once; the lock and the handlers are given back all the same.
        """
        if self._closed:
            return
        try:
            self._saver.wait()
            if self._stepped and self._saver.saving(self._step) is None:
                self._save(("the last step",))
            self._saver.wait()
            self._saver.tell()
        finally:
            self._release()
        self._saver.raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            # The state may be half updated, so nothing new is saved.
            self._release()
            while (failure := self._saver.take_error()) is not None:
                logger.error("a save had failed before the run ended: %s", failure)

    def _checked(self, step: SupportsIndex) -> int:
        self._refuse_if_closed("step()")
        number = step if type(step) is int else whole_number(step, "step")
        if number <= self._step:
            at = f"was resumed from step {self._step}" if not self._stepped else f"is at step {self._step}"
            raise ValueError(
                f"step({number}): steps count from 1 and increase, and this run {at}; the next one is {self._step + 1}"
            )
        if not self._begun:
            self._begin()
        return number

    def _begin(self) -> None:
        refuse_used(self._run)
        self._begun = True

    def _save(self, reasons: Sequence[str]) -> Job[Checkpoint]:
        metrics = read_numbers(self._metrics)
        # One save in flight: its copy of the state must be gone before the next one is made.
        self._saver.wait()
        job = self._saver.save(
            self._step,
            capture(self._entries, copy=self._background),
            reasons=reasons,
            metrics=metrics,
            epoch=epoch_of(self._state.values()),
            seconds=self._seconds,
            healthy=self._healthy,
        )
        self._asked.answered_by(job)
        if not self._background:
            self._saver.raise_failure()
        return job

    def _change(self, step: SupportsIndex, **fields: Any) -> None:
        self._refuse_if_closed("a change of a checkpoint")
        self._saver.change(whole_number(step, "step"), **fields)
        if not self._background:
            self._saver.raise_failure()

    def _refuse_if_closed(self, what: str) -> None:
        if self._closed:
            raise MilepostError(f"{what} came after this CheckpointManager was closed; make a new one")

    def _release(self) -> None:
        self._closed = True
        self._saver.close()
        self._asked.close(saved=self._stepped and self._saver.saving(self._step) is not None)
        self._lock.release()
