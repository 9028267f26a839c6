"""Which control groups is this process in, and which limits do they set?

A container, a Slurm job or a pod limits its processes by control groups. A process is in one group for each controller
(version 1) or in one for all (version 2), and the limits of the groups above apply, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
GROUPS: Final = Path("/sys/fs/cgroup")


def group_folders(controller: str, proc: Path = PROC, groups: Path = GROUPS) -> list[tuple[Path, int]]:
    """Return the folder of this process's group and of each group above it, and the version of control groups, 1 or 2.

    Version 1 has a hierarchy for each `controller`: `memory`, `cpu`.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, version = groups, 2
        elif controller in controllers.split(","):
            root, version = groups / controller, 1
        else:
            continue
        folder = root / path.lstrip("/")
        while folder.is_relative_to(root):
            found.append((folder, version))
            folder = folder.parent
    return found


def processors_allowed(proc: Path = PROC, groups: Path = GROUPS) -> float | None:
    """Return the number of processors that the control groups allow; None if they do not limit it."""
    limits = []
    for folder, version in group_folders("cpu", proc, groups):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        numbers = " ".join(_text(folder / name) for name in names).split()
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers) and int(numbers[1]):
            limits.append(int(numbers[0]) / int(numbers[1]))
    return min(limits, default=None)


def tasks_allowed(proc: Path = PROC, groups: Path = GROUPS) -> tuple[int | None, int]:
    """Return how many processes and threads the tightest control group allows, and how many it has.

    None if there is no limit.
    """
    found = []
    for folder, _ in group_folders("pids", proc, groups):
        limit, there = _text(folder / "pids.max").strip(), _text(folder / "pids.current").strip()
        if limit.isdecimal() and there.isdecimal():
            found.append((int(limit), int(there)))
    return min(found, key=lambda pair: pair[0] - pair[1], default=(None, 0))


def read_limits(proc: Path = PROC, groups: Path = GROUPS) -> list[str]:
    """Return the read limits of control groups of version 2, as the kernel prints them: `8:0 rbps=1000000`."""
    found = []
    for folder, version in group_folders("io", proc, groups):
        for line in _text(folder / "io.max").splitlines() if version == 2 else ():
            device, *words = line.split()
            reads = [word for word in words if word.startswith(("rbps=", "riops=")) and not word.endswith("=max")]
            found += [f"{device} {' '.join(reads)}"] if reads else []
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
