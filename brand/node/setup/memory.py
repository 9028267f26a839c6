"""How much memory may the samples take? The user's limit, or a quarter of what this process may still allocate."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from brand.errors import UsageError
from brand.node.setup.groups import GROUPS, PROC, group_folders

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
_GUESS: Final = 4 << 30
_FILES: Final = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
"""Files of a memory control group by its version: the limit, and the usage."""
_UNLIMITED: Final = 1 << 62
"""Version 1 writes a number near 2^63 if there is no limit."""


def memory_bytes(memory: Memory, all_bytes: int) -> int:
    """Return the limit in bytes. All samples together would take `all_bytes`. Raises `UsageError`."""
    if memory is None:
        return max(1, min(all_bytes, int(available_bytes() * DEFAULT_SHARE)))
    if isinstance(memory, bool) or not isinstance(memory, str | int | float):
        raise UsageError(
            f"memory={memory!r}: give bytes, a string such as '2GB', or a fraction of the data such as 0.1"
        )
    if isinstance(memory, float):
        if not 0 < memory <= 1:
            raise UsageError(f"memory={memory}: a float is a fraction of the data, above 0 and at most 1.0")
        return max(1, int(all_bytes * memory))
    size = parse_size(memory, ", or a fraction of the data as 0.25") if isinstance(memory, str) else memory
    if share := _fraction(memory):
        raise UsageError(f"memory={memory!r} is less than two bytes; for a fraction of the data give memory={share}")
    if size < 1:
        raise UsageError(f"memory={memory!r}: at least one byte is needed")
    return min(size, all_bytes)


def check_memory(memory: Memory, name: str = "memory") -> None:
    """Raise `UsageError` if a user's parameter could not be the memory for any data set."""
    if memory is not None:
        check_unit(memory, f"{name}={memory!r}")
        memory_bytes(memory, _MOST)


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
    return min(memory_bytes(REMOTE_SHARE if remote is None else remote, memory), memory // 2)


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


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the bytes that this process may still allocate, by the system's available memory and control groups."""
    return memory_left(proc, groups)[1]


def memory_left(proc: Path = PROC, groups: Path = GROUPS) -> tuple[int, int]:
    """Return the limit and the available bytes of the control group with the least memory left, or of the machine."""
    limits = [_meminfo(proc)]
    for folder, version in group_folders("memory", proc, groups):
        limit, usage = _FILES[version]
        top, used = _number(folder / limit), _number(folder / usage)
        if top is not None and used is not None:
            limits.append((top, max(0, top - used + _reclaimable(folder))))
    return min(limits, key=lambda pair: pair[1])


def group_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """Return the bytes that the control groups allow to all their processes together; None if they set no limit."""
    found = (_number(folder / _FILES[version][0]) for folder, version in group_folders("memory", proc, groups))
    return min((top for top in found if top is not None and top < _UNLIMITED), default=None)


def _meminfo(proc: Path) -> tuple[int, int]:
    """Return the total and the available memory of the machine in bytes."""
    try:
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE))
    except OSError:
        found = {}
    if "MemAvailable" not in found:
        return _memory_without_proc()
    available = int(found["MemAvailable"])
    return int(found.get("MemTotal", available)) * 1024, available * 1024


def _memory_without_proc() -> tuple[int, int]:
    """Return the machine's memory, and what is free, at most 4 GiB: limits of control groups are not known either."""
    try:
        page, *pages = (os.sysconf(name) for name in ("SC_PAGE_SIZE", "SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (OSError, ValueError):  # no such number on this system
        return _GUESS, _GUESS
    return page * pages[0], min(_GUESS, page * pages[1])


def _reclaimable(folder: Path) -> int:
    """Return the bytes of page cache that count as a group's usage, and that the group would free on demand."""
    try:
        found = dict(re.findall(r"^(\w+) (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE))
    except OSError:
        return 0
    return int(found.get("total_inactive_file") or found.get("inactive_file") or 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or its text is "max"
        return None
