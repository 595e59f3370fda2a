"""Loading a checkpoint's weights alone: for evaluation, serving, or the start of another run."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from milepost.snapshot.restore import LoadResult, restore_model
from milepost.storage.catalog import find_checkpoint
from milepost.storage.levels import stored_weights
from milepost.storage.pointers import follow


def load_weights(path: str | Path, model: nn.Module, strict: bool = True) -> LoadResult:
    """Load a checkpoint folder's weights into ``model``, in place; gives ``.missing`` and ``.unexpected``.

    Digests are checked first. Raises CheckpointNotFoundError, CorruptCheckpointError, UnsupportedFormatError, and
    IncompatibleStateError for tensors of another shape or, if ``strict``, for missing and unexpected ones; the model
    is untouched by any error.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"load_weights: model is a {type(model).__name__}, not a torch.nn.Module")
    # A link that somebody names is followed; links inside a checkpoint are not.
    folder = follow(Path(path))
    _, manifest = find_checkpoint(folder)
    return restore_model(model, stored_weights(folder, manifest), strict=strict)
