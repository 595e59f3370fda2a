"""The nearest known word to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'lr'?`` to end a sentence with, or the words there are if none is near."""
    words = sorted(known)
    by_lower_case = {known_word.lower(): known_word for known_word in words}
    near = difflib.get_close_matches(word.lower(), by_lower_case, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {by_lower_case[near[0]]!r}?"
    return f"; there are {', '.join(words)}" if words else "; it takes none"
