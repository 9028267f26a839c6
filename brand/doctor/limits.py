"""Which memory, processors, open files, storage and folders may this process use? The functions that judge are pure."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from typing import Final

from brand.doctor.finding import CheckResult
from brand.errors import BrandError, counted, size
from brand.node.setup.groups import processors_allowed, read_limits
from brand.node.setup.memory import DEFAULT_SHARE, available_bytes, group_bytes
from brand.storage.io.files import USUAL_LIMIT
from brand.usercache import user_cache

PART: Final = "limits"
LEAST_BYTES: Final = 256 << 20
"""Free memory below which a training with PyTorch and its server hardly starts."""
LEAST_FILES: Final = 256
"""Open files below which a loader with workers may fail."""
MOST_TEMPORARY: Final = 107 - len("/pymp-xxxxxxxx/listener-xxxxxxxx")
"""Longest TMPDIR, in bytes, under which PyTorch's workers can make their sockets."""


def look() -> Iterator[CheckResult]:
    """Check the limits of this process."""
    yield judge_memory(available_bytes(), group_bytes())
    yield CheckResult(PART, "/dev/shm", "ok", "not used, so its size does not matter")
    yield judge_processors(len(os.sched_getaffinity(0)), os.cpu_count() or 1, processors_allowed())
    yield judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield judge_storage(read_limits())
    yield _cache_folder()
    yield judge_temporary(tempfile.gettempdir())


def judge_memory(free: int, group: int | None) -> CheckResult:
    """Judge the memory that this process may still take, and the limit of its control group (None: no limit)."""
    told = f"{size(free)} are free, and BrandDataset takes at most {size(int(free * DEFAULT_SHARE))} by default"
    if group is not None:
        told = f"the control group may use {size(group)}; {told}"
    if free < LEAST_BYTES:
        return CheckResult(
            PART, "memory", "problem", told, f"give this job {size(LEAST_BYTES)} more memory, or end other processes"
        )
    return CheckResult(PART, "memory", "ok", told)


def judge_processors(mine: int, machine: int, allowed: float | None) -> CheckResult:
    """Judge the processors that this process may run on, those of the machine, and the quota of its control group."""
    told = f"this process may use {mine} of {counted(machine, 'processor')}"
    if allowed is not None and allowed < mine:
        told += f", and its control group the time of {allowed:g} processors"
        return CheckResult(
            PART, "processors", "ok", told, f"BrandLoader(num_workers={max(1, int(allowed))}) fits better"
        )
    return CheckResult(PART, "processors", "ok", told)


def judge_files(soft: int, hard: int) -> CheckResult:
    """Judge the limit of open files: the one in force, and the highest that this process may set."""
    if soft == resource.RLIM_INFINITY:
        return CheckResult(PART, "open files", "ok", "no limit")
    told = f"{soft:,} for a process"
    if soft < LEAST_FILES:
        able = hard == resource.RLIM_INFINITY or hard >= USUAL_LIMIT
        cure = f"ulimit -n {USUAL_LIMIT}" if able else f"raise the hard limit of this user or container, {hard:,}"
        return CheckResult(PART, "open files", "problem", f"only {told}", cure)
    return CheckResult(PART, "open files", "ok", told)


def judge_storage(limits: list[str]) -> CheckResult:
    """Judge the read limits of the control groups."""
    if limits:
        told = f"the control group limits reads: {', '.join(limits)}"
        return CheckResult(PART, "storage", "ok", told, "`brand profile DST` measures the remaining bandwidth")
    return CheckResult(PART, "storage", "ok", "no control group limits reads")


def judge_temporary(folder: str) -> CheckResult:
    """Judge the folder of temporary files, in which workers of a DataLoader make sockets."""
    length = len(os.fsencode(folder))
    if length > MOST_TEMPORARY:
        told = f"{folder} has {length} bytes, too many for the sockets of a DataLoader with workers"
        return CheckResult(PART, "TMPDIR", "problem", told, "set TMPDIR to a shorter path, such as /tmp")
    return CheckResult(PART, "TMPDIR", "ok", f"{folder}, {size(shutil.disk_usage(folder).free)} free")


def _cache_folder() -> CheckResult:
    """Check whether profiles of storages and copies of indices can be stored."""
    try:
        folder = user_cache("storage")
    except BrandError as error:
        return CheckResult(
            PART, "cache", "missing", str(error), "set XDG_CACHE_HOME, so that storage profiles can be stored"
        )
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(there, os.W_OK):
        told = f"{there} is not writable, so storage profiles and copies of indices cannot be stored"
        return CheckResult(PART, "cache", "missing", told, "set XDG_CACHE_HOME to a folder of your own")
    return CheckResult(PART, "cache", "ok", str(folder.parent))
