"""Capture: the arena, its layout, and the copy of the state on its way into it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from milepost.copying import Copying
from milepost.memory import Arena
from milepost.records import Storable
from milepost.snapshot.capture import survey
from milepost.snapshot.devices import CudaStreams
from milepost.snapshot.late import LateSurvey, NoLateSurveyError
from milepost.snapshot.sizes import state_sizes
from milepost.snapshot.stateful import Entries
from milepost.snapshot.ties import dropped_names
from milepost.snapshot.updates import Updates
from milepost.storage.image import Image, LayoutKey, layout_key, plan_image
from milepost.workers import Workers

_TOUCHED_AT_ONCE = 64 * 1024 * 1024
# Headers, generators and the like, which are not known yet when the arena is made.
_SPARE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Parts:
    """A state at one moment: its layout, and its bytes on their way; without those two it is the live state."""

    state: Storable
    image: Image | None = None
    content: Copying | None = None


class Captured:
    """What was captured, maybe not yet described; ``make`` gives its parts, and is called by whoever comes first."""

    def __init__(self, make: Callable[[], Parts]) -> None:
        self._make: Callable[[], Parts] | None = make
        self._made = threading.Event()
        self._taken = threading.Lock()
        self._parts: Parts | None = None
        self._error: BaseException | None = None

    def describe(self) -> None:
        """Make the parts, unless somebody has begun to; an error is kept for who asks for them."""
        with self._taken:
            make, self._make = self._make, None
        if make is None:
            return
        try:
            self._parts = make()
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._made.set()

    def parts(self) -> Parts:
        """The parts, once they are made. Raises the error of making them."""
        self.describe()
        self._made.wait()
        if self._parts is None:
            assert self._error is not None
            raise self._error
        return self._parts

    @property
    def pending(self) -> bool:
        """Whether something is still to be done before an optimizer's step."""
        if not self._made.is_set():
            return True
        # Read once: the writer's thread lets go of it when the checkpoint is durable.
        parts = self._parts
        return parts is not None and parts.content is not None and parts.content.pending

    def finish(self) -> None:
        """Do, or wait for, all that must come before an optimizer's step."""
        self.describe()
        self._made.wait()
        parts = self._parts
        if parts is not None and parts.content is not None:
            parts.content.finish()

    def close(self) -> None:
        """Let go of the live state once no copy is under way; who asks for the parts now gets them no more."""
        self.describe()
        self._made.wait()
        parts, self._parts = self._parts, None
        if parts is not None and parts.content is not None:
            parts.content.close()


class Capturer:
    """Copies a state into memory that is kept from one save to the next.

    ``overlapped`` lets training go on meanwhile, until an optimizer's next step. ``background`` false makes no copy
    at all: what is captured is the live state. ``held_up`` is how long training waited, in seconds.
    """

    def __init__(self, entries: Entries, max_shard_size: int, *, background: bool, overlapped: bool) -> None:
        self._entries = entries
        self._most = max_shard_size
        self._background = background
        self._updates = Updates(entries, self.finish) if background and overlapped else None
        self._workers = Workers()
        self._streams = CudaStreams()
        self._arena: Arena | None = None
        self._layout: tuple[LayoutKey, Image] | None = None
        self._current: Captured | None = None
        self._incomplete: Copying | None = None
        model = None if entries.model is None else entries.values[entries.model]
        self._dropped = [] if model is None else dropped_names(model)
        self._prepared = not background
        self._pid = os.getpid()
        self.held_up = 0.0

    def prepare(self) -> None:
        """Make the arena ahead of the first save, as large as the state is now; its pages come in the background.

        Call it after the first step: before, there is no optimizer state.
        """
        if self._prepared:
            return
        self._prepared = True
        size = sum(state_sizes(self._entries))
        self._arena = Arena(size + _SPARE + size // 50)
        starts = range(0, size, _TOUCHED_AT_ONCE)
        touch = self._arena.touch
        self._workers.submit([partial(touch, start, min(start + _TOUCHED_AT_ONCE, size)) for start in starts])

    def capture(self) -> Captured:
        """The state as it is now, ``complete`` coming next; what was captured before must be of no use any more.

        Raises what ``survey`` does.
        """
        begin = time.perf_counter()
        self._let_go()
        self._prepared = True
        captured = self._capture()
        if self._background:
            self._current = captured
        self.held_up += time.perf_counter() - begin
        return captured

    def complete(self) -> None:
        """Copy what was captured before training may go on; the writer may begin with it meanwhile."""
        incomplete, self._incomplete = self._incomplete, None
        if incomplete is not None:
            begin = time.perf_counter()
            incomplete.begin(overlapped=False)
            self.held_up += time.perf_counter() - begin

    def finish(self) -> None:
        """Complete the copy under way, as an optimizer's step does that comes next."""
        current = self._current
        # A forked process has the hooks, but neither the threads nor a save.
        if current is not None and current.pending and os.getpid() == self._pid:
            begin = time.perf_counter()
            current.finish()
            self.held_up += time.perf_counter() - begin

    def give_up_overlapping(self) -> None:
        """Copy everything at once from now on."""
        if self._updates is not None:
            self._updates.remove()
            self._updates = None

    def close(self) -> None:
        """Finish what is under way, and give memory, threads and hooks back."""
        self.give_up_overlapping()
        self._let_go()
        self._workers.close()
        self._replace_arena(0)

    def _let_go(self) -> None:
        self.complete()
        if self._current is not None:
            self._current.close()
            self._current = None

    def _capture(self) -> Captured:
        if self._updates is not None:
            try:
                late = LateSurvey(self._entries, self._updates, self._dropped)
            except NoLateSurveyError:
                pass
            else:
                captured = Captured(lambda: self._laid_out(late.describe(), begin=True))
                self._workers.submit([captured.describe])
                return captured
        state = survey(self._entries, self._updates.memory() if self._updates is not None else ())
        if not self._background:
            captured = Captured(lambda: Parts(state))
        else:
            overlapped = self._updates is not None
            captured = Captured(lambda: self._laid_out(state, begin=overlapped))
            content = captured.parts().content
            # Held here: a writer that fails at once lets go of what was captured.
            self._incomplete = None if overlapped else content
        return captured

    def _laid_out(self, state: Storable, *, begin: bool) -> Parts:
        key = layout_key(state, self._most)
        if self._layout is None or self._layout[0] != key:
            self._layout = key, plan_image(state, self._most)
        image = self._layout[1]
        if self._arena is None or self._arena.size < image.size:
            self._replace_arena(image.size)
        assert self._arena is not None
        copying = Copying(image, self._arena, image.sources(state), self._workers, self._streams)
        if begin:
            copying.begin(overlapped=True)
        return Parts(state, image, copying)

    def _replace_arena(self, size: int) -> None:
        if self._arena is not None:
            self._streams.unpin(self._arena.address)
        self._arena = Arena(size) if size else None
