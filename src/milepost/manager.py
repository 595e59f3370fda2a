"""``CheckpointManager``: decides, captures, commits, prunes and resumes; each in its own room, tied together here."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex

from milepost.asking import Asked, with_signals
from milepost.assets import collect_assets
from milepost.capturing import Capturer
from milepost.closing import finish
from milepost.errors import CheckpointExistsError, MilepostError
from milepost.keeping import Keeper, as_keep_rules
from milepost.policy.retention import KeepRule
from milepost.policy.saving import SaveSchedule, as_schedule, reasons_to_save
from milepost.preflight import Preflight
from milepost.quantities import epoch_of, one_of, own_value, parse_duration, parse_size, read_numbers, whole_number
from milepost.records import Checkpoint, Moment
from milepost.resumption import Restorer, refuse_used, resume_from
from milepost.saver import Constants, Saver
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
    goes on; without, it is written from where it is before ``step`` returns, and no copy is made. ``capture`` says
    when the copy is complete: ``"immediate"``, when ``step`` returns; ``"overlapped"``, before an optimizer's next
    step, which waits for it. ``when_busy`` says what a save does that is due while another is written: ``"wait"`` or
    ``"skip"``. ``verify`` says what a resume checks. With ``signals``, SIGTERM and SIGINT save and set
    ``should_stop``, and SIGUSR1 saves (``OnSignal`` among the schedules: others too). What is pruned can be brought
    back for ``trash_grace`` (seconds, or a text such as ``"2h"``), and takes its space as long.

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
        capture: Literal["overlapped", "immediate"] = "overlapped",
        when_busy: Literal["wait", "skip"] = "wait",
        verify: VerifyLevel = "digests",
        signals: bool = True,
        max_shard_size: int | str = "5GB",
        trash_grace: float | str = 0,
        backend: Backend | None = None,
    ) -> None:
        self._verify: VerifyLevel = one_of(verify, "verify", "digests", "sizes")
        overlapped = one_of(capture, "capture", "overlapped", "immediate") == "overlapped"
        self._skips = one_of(when_busy, "when_busy", "wait", "skip") == "skip"
        given = as_schedule(save)
        self._schedule = with_signals(given, signals)
        rules, grace = as_keep_rules(keep), parse_duration(trash_grace, "trash_grace")
        self._state, self._entries = state, check_state(state)
        most = parse_size(max_shard_size, "max_shard_size")
        constants = Constants(collect_assets(assets, config_name), config_name, most)
        self._backend = LocalBackend() if backend is None else backend
        self._run, self._lock = open_run(Path(folder), self._backend)
        self._keeper = Keeper(self._run, self._backend, rules, grace=grace)
        self._capturer = Capturer(self._entries, most, background=background, overlapped=overlapped)
        self._saver = Saver(self._run, self._backend, self._keeper, self._capturer, constants, background=background)
        self._preflight = Preflight(self._run, self._backend, rules, given, grace)
        self._asked = Asked(self._run, self._backend, self._schedule, ending=signals)
        self._pid = os.getpid()
        self._step, self._seconds, self._clock_zero = 0, 0.0, time.monotonic()
        # The step that the state on disk is known to be at, other than through a save of this process.
        self._resumed_step: int | None = None
        self._metrics: Mapping[str, Any] = {}
        self._healthy: bool | None = None
        self._raised_at: int | None = None
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

    @property
    def held_up_seconds(self) -> float:
        """How long copies of the state have kept training waiting, in ``step`` and before optimizers' steps."""
        return self._capturer.held_up

    def resume(self, source: str | SupportsIndex | Path = "auto", *, allow_missing: Iterable[str] = ()) -> int:
        """Restore the state and give the step that it belongs to: 0 for a fresh run; the next step is one more.

        ``source`` is ``"auto"`` (the newest good checkpoint, if there is any), ``"healthy"`` (the newest good one whose
        training was sound) or a step of this folder (later ones are put aside: a rewind), or the path of a checkpoint
        or another run's folder. ``allow_missing`` names entries of the state that may be in one of the two, checkpoint
        or live state, only.

        Raises CheckpointNotFoundError, CorruptCheckpointError, UnsupportedFormatError, or IncompatibleStateError (all
        live objects are then as before).
        """
        self._refuse_if_closed("resume()")
        if self._begun:
            raise CheckpointExistsError("resume() comes once, before the first step() or save()", path=self.folder)
        wanted = source if isinstance(source, str | Path) else whole_number(source, "resume: source")
        given = partial(restore, self._entries, allow_missing=tuple(allow_missing))
        origin = resume_from(self._run, self._backend, wanted, Restorer(self._verify, given))
        if origin is not None:
            self._step = origin.checkpoint.step
            self._seconds = origin.manifest.seconds
            if origin.inside:
                self._resumed_step = self._step
                self._saver.go_on_from(origin.checkpoint, rewound=wanted != "auto")
            logger.info("resumed from %s", origin.checkpoint.path)
        self._clock_zero = time.monotonic() - self._seconds
        self._begun = self._keeper.active = True
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
        is not larger than the one before, and the error of an earlier save that failed, once, after this step was
        saved if it was due.
        """
        told, self._raised_at = self._raised_at, None
        if told is not None and step == told:
            return
        number = self._checked(step)
        seconds = time.monotonic() - self._clock_zero
        moment = Moment(number, self._step, seconds, self._seconds, epoch_end, *self._asked.at(seconds))
        reasons = reasons_to_save(self._schedule, moment)
        if not reasons and not self._stepped:
            self._capturer.prepare()
        self._step, self._seconds, self._stepped, self._healthy = number, seconds, True, healthy
        self._metrics = {} if metrics is None else {name: own_value(value) for name, value in metrics.items()}
        # Read once: a signal that comes after this line is the next step's.
        ending = self._asked.ending
        if ending is not None:
            reasons = (*reasons, ending.name)
        reasons = (*reasons, *self._saver.take_again())
        wanted = ending is not None or moment.signal is not None or moment.requests
        if reasons and self._skips and not wanted and self._saver.busy:
            logger.warning("step %d is not saved: another is still being written (when_busy='skip')", number)
        elif reasons:
            self._save(reasons)
        if ending is not None:
            self._saver.wait()
            self._should_stop = True
        # Last, so that the step and its save count whatever is raised here; who catches it may tell of the step again.
        if self._saver.has_news or self._asked.raised is not None:
            self._raised_at = number
            self._saver.report()
            self._asked.raise_pending()
            self._raised_at = None

    def save(self) -> Job[Checkpoint]:
        """Save the current step now (before the first one: the resumed step, or step 0).

        Gives the job; its ``result()`` waits and gives the ``Checkpoint``. A step that is saved already is not saved
        again. Raises the error of an earlier save that failed, once.
        """
        self._refuse_if_closed("save()")
        self._saver.report()
        if not self._begun:
            self._begin()
        if (under_way := self._saver.saving(self._step)) is not None:
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
        if self._closed or os.getpid() != self._pid:
            return
        try:
            finish(self._saver)
            if self._stepped and self._saver.saving(self._step) is None:
                self._save(("the last step",))
                finish(self._saver)
        finally:
            try:
                self._release()
            finally:
                self._saver.report()
        if not self._should_stop:
            self._asked.send_again()
        self._asked.raise_pending()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif not self._closed and os.getpid() == self._pid:
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
        self._preflight.check(self._entries)
        return number

    def _begin(self) -> None:
        refuse_used(self._run)
        self._begun = self._keeper.active = True

    def _save(self, reasons: Sequence[str]) -> Job[Checkpoint]:
        self._entries.refuse_changes(self._state)
        job = self._saver.save(
            self._step,
            reasons=reasons,
            metrics=read_numbers(self._metrics),
            epoch=epoch_of(self._state.values()),
            seconds=self._seconds,
            healthy=self._healthy,
        )
        self._asked.answered_by(job)
        return job

    def _change(self, step: SupportsIndex, **fields: Any) -> None:
        self._refuse_if_closed("a change of a checkpoint")
        self._saver.change(whole_number(step, "step"), **fields)

    def _refuse_if_closed(self, what: str) -> None:
        if self._closed:
            raise MilepostError(f"{what} came after this CheckpointManager was closed; make a new one")
        if os.getpid() != self._pid:
            raise MilepostError(
                f"{what} came from process {os.getpid()}, which was forked from the run's own, process {self._pid}; "
                "only that one saves"
            )

    def _release(self) -> None:
        self._closed = True
        try:
            self._saver.close()
        finally:
            try:
                self._asked.close(saved=self._stepped and self._saver.saving(self._step) is not None)
            finally:
                self._lock.release()
