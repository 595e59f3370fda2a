"""What a loader's workers do about signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial


def calm(worker_init_fn: Callable[[int], None] | None) -> Callable[[int], None]:
    """A ``worker_init_fn`` that makes workers outlast signals meant for the training process, and calls the user's."""
    return partial(_start, worker_init_fn)


def _start(worker_init_fn: Callable[[int], None] | None, worker: int) -> None:
    # Ctrl-C and many schedulers signal the whole group. The training process saves after its step, for which it may
    # still need batches; a worker that died at once would turn the signal into an error and lose the save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_when_told, args=(os.getppid(),), daemon=True).start()
    if worker_init_fn is not None:
        worker_init_fn(worker)


def _end_when_told(parent: int) -> None:
    """End on SIGTERM from the training process, which ends its workers so; that of anybody else is not for a worker."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
