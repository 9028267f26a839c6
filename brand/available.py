"""How much memory may this process still allocate, by the machine and by its control groups?"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from brand.groups import GROUPS, PROC, group_folders

_GUESS: Final = 4 << 30
_FILES: Final = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
"""Files of a memory control group by its version: the limit, and the usage."""
_UNLIMITED: Final = 1 << 62
"""Version 1 writes a number near 2^63 if there is no limit."""


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
