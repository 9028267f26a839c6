"""If a value does not fit its codec, which value did the user mean to pass?

Libraries are recognised by the names of their classes, so that none is imported. Pure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

_FILES: Final = ("image", "audio")


def instead(codec: str, value: Any) -> str:
    """Return advice for a value that a field of this codec refuses, as the end of a message; may be empty."""
    said = next(_guesses(codec, value), "")
    return said and f"; {said}"


def _guesses(codec: str, value: Any) -> Iterator[str]:
    missing = value is None or (isinstance(value, float) and value != value)
    if missing and codec == "str":
        yield "for a missing text give ''"
    if missing and codec == "int":
        yield "for a missing number give a placeholder, such as -1"
    if value is None and codec == "float":
        yield "for a missing number give float('nan')"
    if codec == "str":
        yield "a 'bytes' field holds bytes" if isinstance(value, bytes) else "give str(value) if that is meant"
    if codec in _FILES and isinstance(value, str | os.PathLike):
        yield f"an {codec!r} field holds a file's contents: give Path(name).read_bytes()"
    if codec in (*_FILES, "bytes") and (_is_of("numpy", value) or _is_of("torch", value)):
        yield "an 'ndarray' field holds arrays"
    if codec == "bytes" and isinstance(value, str):
        yield "a 'str' field holds text"


def _is_of(library: str, value: Any) -> bool:
    """Return whether the class of a value, or one of its base classes, is from a library."""
    return any(kind.__module__.partition(".")[0] == library for kind in type(value).__mro__)
