"""The data's place in the saved state, for a run whose data may have changed since."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from milepost.data import ResumableLoader
from milepost.errors import IncompatibleStateError


class DataPosition:
    """A loader's position. Where other data is allowed, going on begins a new epoch of what there is now.

    A place in the middle of an epoch means nothing in another order of other rows.
    """

    def __init__(self, loader: ResumableLoader, *, may_differ: bool, say: Callable[[str], None]) -> None:
        self._loader = loader
        self._may_differ = may_differ
        self._say = say

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._loader.epoch

    @property
    def samples(self) -> int:
        """Samples that were yielded or left out, over all epochs."""
        return self._loader.epoch * self._loader.epoch_samples + self._loader.position

    def skip(self, samples: int) -> None:
        """Leave out the next samples, beyond an epoch's end too, and say which."""
        if not samples:
            return
        place = self.samples
        epoch, position = divmod(place + samples, self._loader.epoch_samples)
        self._loader.load_state_dict({**self._loader.state_dict(), "epoch": epoch, "position": position})
        self._say(
            f"skip_samples: {samples:,} samples are left out, those from {place:,} to {place + samples - 1:,} of the "
            f"run's order; the next is number {position:,} of epoch {epoch + 1}"
        )

    def state_dict(self) -> dict[str, Any]:
        """The loader's."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of the epoch, or with the next. Raises IncompatibleStateError as the loader does."""
        try:
            self._loader.load_state_dict(state)
        except IncompatibleStateError:
            if not self._may_differ:
                raise
            epoch = state["epoch"] + (1 if state["position"] else 0)
            self._loader.load_state_dict({**self._loader.state_dict(), "epoch": epoch, "position": 0})
            self._say(f"the data is not what it was, as allow_changes permits: going on with epoch {epoch + 1} of it")
