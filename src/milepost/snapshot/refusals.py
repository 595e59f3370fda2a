"""Objects whose loading runs somebody's own code, and may refuse: all of them are loaded, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from milepost.errors import IncompatibleStateError
from milepost.snapshot.flatten import Flattener, Unflattener
from milepost.snapshot.live import own_bytes
from milepost.snapshot.rng import capture_rng, restore_rng


@dataclass(frozen=True, slots=True)
class Loading:
    """How one object of the state is loaded; ``read`` gives what ``put_back`` takes to undo it, if that is possible."""

    entry: str
    load: Callable[[], object]
    read: Callable[[], Any] | None = None
    put_back: Callable[[Any], object] | None = None


def load_all_or_none(loadings: Iterable[Loading]) -> None:
    """Load objects one by one; the first that refuses is put back with all before it, and so are the generators.

    Raises IncompatibleStateError, naming the entry.
    """
    generators = capture_rng()
    undo: list[tuple[Loading, Any]] = []
    for loading in loadings:
        before = _copy_of(loading.read)
        undo.append((loading, before))
        try:
            loading.load()
        except Exception as error:
            for changed, state in reversed(undo):
                if state is not None and changed.put_back is not None:
                    # One that refuses its own state too is left as its author left it.
                    with contextlib.suppress(Exception):
                        changed.put_back(state[0])
            restore_rng(generators)
            if isinstance(error, IncompatibleStateError):
                raise
            raise IncompatibleStateError(f'state["{loading.entry}"].load_state_dict() failed: {error!r}') from error


def _copy_of(read: Callable[[], Any] | None) -> tuple[Any] | None:
    """A copy of an object's state, in a tuple; None where it has none yet, or none that could be stored."""
    flattener = Flattener()
    with contextlib.suppress(Exception):
        if read is not None:
            tree = flattener.flatten(read(), "state", "state")
            return (Unflattener(own_bytes(flattener.tensors)).unflatten(tree),)
    return None
