"""How much memory may the samples take? The user's limit, or a quarter of what this process may still allocate."""

from __future__ import annotations

import re
from typing import Final

from brand.available import available_bytes
from brand.errors import UsageError

Memory = str | int | float | None
"""`"2GB"`, a fraction of the data as a float, bytes, or None: `DEFAULT_SHARE` of the available memory.

Bytes that a user gives are at least `LEAST_NUMBER` (`check_memory`).
"""

DEFAULT_SHARE: Final = 0.25
REMOTE_SHARE: Final = 0.1
"""Fraction of the memory that samples of other nodes may fill, unless the user gives another one."""

LEAST_NUMBER: Final = 1 << 20
"""A smaller number without a unit is refused, because `memory=1` looks like all of the data and is one byte."""
SIZE: Final = "give a size such as '8GB'"
SIZE_OR_SHARE: Final = f"{SIZE}, or a share such as 0.25 (1.0 is all)"
_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_MOST: Final = 1 << 60


def memory_bytes(memory: Memory, all_bytes: int, name: str = "memory", whole: str = "the data") -> int:
    """Return the limit in bytes, at most `all_bytes`: the size of `whole`. Raises `UsageError`, which names `name`."""
    if memory is None:
        return max(1, min(all_bytes, int(available_bytes() * DEFAULT_SHARE)))
    if isinstance(memory, bool) or not isinstance(memory, str | int | float):
        raise UsageError(f"{name}={memory!r}: give bytes, a string such as '2GB', or a fraction of {whole} such as 0.1")
    if isinstance(memory, float):
        if not 0 < memory <= 1:
            raise UsageError(f"{name}={memory}: a float is a fraction of {whole}, above 0 and at most 1.0")
        return max(1, int(all_bytes * memory))
    size = parse_size(memory, f", or a fraction of {whole} as 0.25") if isinstance(memory, str) else memory
    if share := _fraction(memory):
        raise UsageError(f"{name}={memory!r} is less than two bytes; for a fraction of {whole} give {name}={share}")
    if size < 1:
        raise UsageError(f"{name}={memory!r}: at least one byte is needed")
    return min(size, all_bytes)


def check_memory(memory: Memory, name: str = "memory", whole: str = "the data") -> None:
    """Raise `UsageError` if a user's parameter `name` could not be the memory for any data set; see `memory_bytes`."""
    if memory is not None:
        check_unit(memory, f"{name}={memory!r}")
        memory_bytes(memory, _MOST, name, whole)


def check_unit(size: object, named: str, forms: str = SIZE_OR_SHARE) -> None:
    """Raise `UsageError` if a user's size is a whole number that is too small to be bytes.

    `named` is the parameter or option with its value, `forms` says what to give instead.
    """
    try:
        number = int(size) if isinstance(size, str) else size
    except ValueError:
        return
    if type(number) is int and number < LEAST_NUMBER:
        raise UsageError(f"{named} has no unit: {forms}")


def remote_bytes(remote: Memory, memory: int) -> int:
    """Return the bytes of a node's `memory` that samples of other nodes may fill, at most half. Raises `UsageError`."""
    share = REMOTE_SHARE if remote is None else remote
    return min(memory_bytes(share, memory, "peer_memory", "the memory"), memory // 2)


def parse_size(text: str, otherwise: str = "") -> int:
    """Return the bytes of a text such as `2GB`, `500 MB`, `1.5GiB`. Raises `UsageError`.

    `otherwise` is added to the error: the other forms that the parameter may have.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        if match is not None and match[2].lower() in ("k", "m", "g", "t", "ki", "mi", "gi", "ti"):
            begun = f"{match[1]}{match[2][0].upper()}"
            raise UsageError(f"{text!r} is not a size; write {begun}B (powers of 1,000) or {begun}iB (powers of 1,024)")
        raise UsageError(f"{text!r} is not a size; write it like 2GB, 500MB or 1.5GiB{otherwise}")
    size = float(match[1]) * unit
    if size > _MOST:
        raise UsageError(f"{text!r} is more memory than any machine has")
    return int(size)


def _fraction(memory: str | int) -> float:
    """Return the fraction of the data that the user wrote as a text by mistake; else 0."""
    if not isinstance(memory, str) or "." not in memory:
        return 0.0
    try:
        share = float(memory)
    except ValueError:
        return 0.0
    return share if 0 < share <= 1 else 0.0
