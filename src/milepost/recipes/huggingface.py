"""Hugging Face's libraries, kept quiet and off the network where everything is local."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import datasets
import transformers


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """While it lasts: no progress bars, no warnings (the recipe says what matters), no counting of downloads."""
    bars = transformers.utils.logging.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()
    levels = transformers.logging.get_verbosity(), datasets.logging.get_verbosity()
    counted = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity(logging.CRITICAL)
    datasets.logging.set_verbosity(logging.CRITICAL)
    # Otherwise each reading of a local file asks a server to count it.
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    try:
        yield
    finally:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = counted
        transformers.logging.set_verbosity(levels[0])
        datasets.logging.set_verbosity(levels[1])
        if bars[0]:
            transformers.utils.logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        if not bars[1]:
            datasets.enable_progress_bars()


def first_line(error: BaseException) -> str:
    """What a library says, in one line without its full stop; its kind if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.rstrip().endswith(":")]
    return lines[0].rstrip(".:") if lines else type(error).__name__
