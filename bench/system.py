"""Which facts of the system do the benchmarks need? Caches, flushing, sizes of folders, memory of processes.

Linux only. Memory is from /proc/PID/smaps_rollup. Private memory (USS) is Private_Clean + Private_Dirty, which is freed
when this one process ends. Proportional memory (PSS) adds the process's portion of pages that several processes map.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Final

_DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one process, now."""

    private_bytes: int
    dirty_bytes: int
    """Private memory without pages of files."""
    proportional_bytes: int
    resident_bytes: int


def memory_of(pid: int | str = "self") -> Memory | None:
    """Return the memory of a process; None if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    kib = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    if "Rss" not in kib:
        return None
    private = kib["Private_Clean"] + kib["Private_Dirty"]
    return Memory(private * 1024, kib["Private_Dirty"] * 1024, kib["Pss"] * 1024, kib["Rss"] * 1024)


def peak_resident_bytes(pid: int) -> int:
    """Return the highest resident size that the kernel has seen (VmHWM); 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def process_tree(root: int) -> list[int]:
    """Return `root` and all its living descendants."""
    found = [root]
    for pid in found:
        try:
            children = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children")]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [int(child) for line in children for child in line]
    return found


def cpu_s() -> float:
    """Return the user and system seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def busy_cpu_s() -> tuple[float, float]:
    """Return the processor seconds since the machine started: working, and runnable without a core from the host."""
    user, nice, kernel, _, _, irq, softirq, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return (user + nice + kernel + irq + softirq) * tick_s, stolen * tick_s


def cpu_s_of(processes: Iterable[int]) -> float:
    """Return the processor seconds of those of these processes that live, and of their children that have ended."""
    ticks = 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Disturbance:
    """The cores that other processes take from now on. The kernel's threads count as other processes."""

    def __init__(self) -> None:
        self._at, (self._busy_s, self._stolen_s) = time.perf_counter(), busy_cpu_s()
        self._own_s = cpu_s_of(process_tree(os.getpid()))

    def cores(self, servers: Iterable[int] = ()) -> dict[str, float]:
        """Return the mean cores until now.

        `other_cores` were used neither by this process, nor by its descendants, nor by `servers` (started since).
        `stolen_cores` were given to other machines by the host while work was waiting here.
        """
        own = {*process_tree(os.getpid()), *(pid for server in servers for pid in process_tree(server))}
        spent_s = cpu_s_of(own) - self._own_s
        (busy_s, stolen_s), passed_s = busy_cpu_s(), time.perf_counter() - self._at
        others_s = busy_s - self._busy_s - spent_s
        return {"other_cores": others_s / passed_s, "stolen_cores": (stolen_s - self._stolen_s) / passed_s}


def can_drop_caches() -> bool:
    """Return whether cold measurements are possible here."""
    return os.access(_DROP_CACHES, os.W_OK)


def drop_caches(modules: Iterable[str]) -> None:
    """Drop all cached files, then read the interpreter and `modules` again: only the data are to be cold."""
    subprocess.run(["sync"], check=True)
    _DROP_CACHES.write_text("3")
    subprocess.run([sys.executable, "-c", "".join(f"import {name}\n" for name in modules)], check=True)


def flush(folder: Path) -> None:
    """Write all pending data of the file system of `folder` to its disk."""
    subprocess.run(["sync", "-f", str(folder)], check=True)


def warm(folder: Path) -> None:
    """Read every file once."""
    for file in folder.rglob("*") if folder.is_dir() else [folder]:
        if file.is_file():
            with file.open("rb", buffering=0) as stream:
                while stream.read(_BLOCK):
                    pass


def disk_usage(folder: Path) -> tuple[int, int]:
    """Return (bytes in the files, bytes that files and folders occupy on the disk)."""
    stats = [entry.lstat() for entry in folder.rglob("*")]
    return sum(s.st_size for s in stats if S_ISREG(s.st_mode)), sum(s.st_blocks * 512 for s in stats)
