"""Token ids and labels of many rows in three flat arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

IGNORED: Final = -100
"""The label of a token that is not taught: what torch's cross entropy leaves out."""


class TokenizedDataset:
    """A map-style dataset of ``{"input_ids", "labels"}``: read-only int32 arrays of one row's length.

    ``lengths`` holds the tokens of each row, ``dropped`` counts the rows of the source that are not in it, and
    ``fingerprint`` is the xxh3-128 of lengths, ids and labels in hexadecimal. Takes 8 bytes a token.
    """

    def __init__(self, ids: ArrayLike, labels: ArrayLike, lengths: ArrayLike, *, dropped: int = 0) -> None:
        """``ids`` and ``labels`` of all rows, one after the other; ``lengths`` says how many tokens each row has."""
        self.dropped = dropped
        self.lengths: NDArray[np.int64] = _frozen(lengths, np.int64)
        self._ids: NDArray[np.int32] = _frozen(ids, np.int32)
        self._labels: NDArray[np.int32] = _frozen(labels, np.int32)
        if not int(self.lengths.sum()) == len(self._ids) == len(self._labels):
            raise ValueError(
                f"TokenizedDataset: lengths add up to {int(self.lengths.sum())} tokens, and there are {len(self._ids)} "
                f"ids and {len(self._labels)} labels"
            )
        self._ends = np.cumsum(self.lengths)
        self.fingerprint = self._hash()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.int32]]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        end = int(self._ends[index])
        part = slice(end - int(self.lengths[index]), end)
        return {"input_ids": self._ids[part], "labels": self._labels[part]}

    def _hash(self) -> str:
        state = xxhash.xxh3_128()
        for array in (self.lengths, self._ids, self._labels):
            state.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return state.hexdigest()


def _frozen(numbers: ArrayLike, dtype: type[np.integer[Any]]) -> NDArray[Any]:
    # Views are handed out: a change to one would be seen by later epochs, but not by other workers.
    array = np.array(numbers, dtype=dtype)
    array.setflags(write=False)
    return array
