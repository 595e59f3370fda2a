"""JSON as Milepost writes it: UTF-8, for people to read too."""

from __future__ import annotations

import json


def json_bytes(value: object, *, indent: int | None = None) -> bytes:
    """The value as JSON with a newline at its end. Raises ValueError for NaN and infinities, which are not JSON."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair (a file name that is not UTF-8 has them) has no UTF-8; JSON's escapes can say it.
        return (json.dumps(value, allow_nan=False, indent=indent, separators=separators) + "\n").encode()
