"""A process with one thread and torch imported, from which jobs are forked: starting Python anew would take seconds.

Reads one JSON request a line from its input and answers each with one line: the child's exit code, negative for a
signal. ``{"folder": …, "kill_after": seconds, …}`` kills the child with SIGKILL after that time; other fields go to
``run_job``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path

# torch.optim imports this at the first step: once here, instead of a second in each child.
import torch._dynamo  # noqa: F401

from tests.crash.job import run_job


def serve() -> None:
    """Answer requests until the input ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for line in sys.stdin:
        request = json.loads(line)
        kill_after = request.pop("kill_after", None)
        child = os.fork()
        if child == 0:
            _be_the_job(request)
        if kill_after is not None and signal.sigtimedwait({signal.SIGCHLD}, kill_after) is None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        while signal.sigtimedwait({signal.SIGCHLD}, 0) is not None:
            pass
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def _be_the_job(request: dict[str, object]) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    try:
        run_job(Path(str(request.pop("folder"))), **request)  # type: ignore[arg-type]
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    serve()
