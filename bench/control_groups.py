"""How is a command limited on this machine? By control groups of version 1 or 2, which have the same methods here."""

from __future__ import annotations

import math
import os
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


class CannotLimitError(Exception):
    """The limits cannot be set on this machine; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the control groups; infinite if there is none."""

    read_bps: float = math.inf
    """Bytes read per second."""
    read_iops: float = math.inf
    """Read operations per second."""
    memory: float = math.inf
    """Bytes of memory, page cache included."""

    def to_json(self) -> dict[str, int]:
        """Return the limits that are set."""
        every = {"read_bps": self.read_bps, "read_iops": self.read_iops, "memory": self.memory}
        return {name: int(value) for name, value in every.items() if value < math.inf}


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that the processes of a control group have used."""

    read_bytes: int
    read_ops: int
    max_memory_bytes: int
    memory_failcnt: int
    oom_kills: int
    cpu_s: float


class Group(Protocol):
    """The control groups of one run."""

    version: int

    def make(self) -> None:
        """Make the groups. Raises `CannotLimitError` if the system refuses."""

    def limit(self, device: str, limits: Limits) -> None:
        """Set the limits, for reads from `device` (`major:minor`). Raises `CannotLimitError` if the system refuses."""

    def entrances(self) -> list[Path]:
        """Return the files that take the number of a process which enters the groups."""

    def resident(self) -> tuple[int, int]:
        """Return the bytes of private and of shared memory that the processes hold now."""

    def usage(self, device: str) -> Usage:
        """Return the resources that the processes have used since the groups were made."""

    def remove(self) -> None:
        """Remove the groups, which are empty."""


def own_groups(text: str) -> dict[str, str]:
    """Return the group of this process by controller, from /proc/self/cgroup; the key of version 2 is empty."""
    lines = [line.split(":", 2) for line in text.splitlines()]
    return {name: path for _, names, path in lines for name in names.split(",")}


def stat(text: str) -> dict[str, int]:
    """Return the numbers of a file with a name and a number in each line."""
    return {name: int(value) for name, value in (line.split() for line in text.splitlines())}


def counted_v1(text: str, device: str) -> int:
    """Return the reads of a device in a `blkio.throttle` file of version 1."""
    fields = [line.split() for line in text.splitlines()]
    return sum(int(words[2]) for words in fields if words[:2] == [device, "Read"])


def counted_v2(text: str, device: str) -> tuple[int, int]:
    """Return bytes and operations read from a device, from `io.stat` of version 2."""
    for words in (line.split() for line in text.splitlines()):
        if words[0] == device:
            found = dict(word.split("=") for word in words[1:])
            return int(found.get("rbytes", 0)), int(found.get("rios", 0))
    return 0, 0


class GroupV1:
    """Control groups of version 1: one in each hierarchy, below the group that this process is in."""

    version = 1

    def __init__(self, root: Path, own: Mapping[str, str], name: str) -> None:
        self._parents = {kind: root / kind / own.get(kind, "/").lstrip("/") for kind in ("blkio", "memory", "cpuacct")}
        self._folders = {kind: parent / name for kind, parent in self._parents.items()}

    def make(self) -> None:
        """See `Group`."""
        for folder in self._folders.values():
            _make(folder)

    def limit(self, device: str, limits: Limits) -> None:
        """See `Group`."""
        blkio = self._folders["blkio"]
        for kind in ("read_bps", "read_iops"):
            # The kernel does not apply these limits to groups inside, so a lab in a lab computes the smaller one.
            around = read(self._parents["blkio"] / f"blkio.throttle.{kind}_device")
            outer = [float(value) for key, value in (line.split() for line in around.splitlines()) if key == device]
            least = min([getattr(limits, kind), *outer])
            if least < math.inf:
                write(blkio / f"blkio.throttle.{kind}_device", f"{device} {least:.0f}")
        if limits.memory < math.inf:
            write(self._folders["memory"] / "memory.limit_in_bytes", f"{limits.memory:.0f}")

    def entrances(self) -> list[Path]:
        """See `Group`."""
        return [folder / "cgroup.procs" for folder in self._folders.values()]

    def resident(self) -> tuple[int, int]:
        """See `Group`."""
        found = stat(read(self._folders["memory"] / "memory.stat"))
        return found.get("total_rss", 0), found.get("total_shmem", 0)

    def usage(self, device: str) -> Usage:
        """See `Group`."""
        blkio, memory = self._folders["blkio"], self._folders["memory"]
        moved, ops = (
            counted_v1(read(blkio / f"blkio.throttle.{name}_recursive"), device)
            for name in ("io_service_bytes", "io_serviced")
        )
        killed = stat(read(memory / "memory.oom_control")).get("oom_kill", 0)
        most, failed = (int(read(memory / f"memory.{name}") or 0) for name in ("max_usage_in_bytes", "failcnt"))
        spent_ns = int(read(self._folders["cpuacct"] / "cpuacct.usage") or 0)
        return Usage(moved, ops, most, failed, killed, spent_ns / 1e9)

    def remove(self) -> None:
        """See `Group`."""
        with suppress(OSError):
            (self._folders["memory"] / "memory.force_empty").write_text("0")  # otherwise the group's page cache stays
        for folder in self._folders.values():
            _remove(folder)


class GroupV2:
    """A control group of version 2, below the root.

    It is below the root because no group that holds processes can have limited groups inside.
    """

    version = 2

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._folder = root, root / name

    def make(self) -> None:
        """See `Group`."""
        write(self._root / "cgroup.subtree_control", "+io +memory")
        _make(self._folder)

    def limit(self, device: str, limits: Limits) -> None:
        """See `Group`."""
        each = {"rbps": limits.read_bps, "riops": limits.read_iops}
        shown = [f"{name}={value:.0f}" for name, value in each.items() if value < math.inf]
        if shown:
            write(self._folder / "io.max", " ".join([device, *shown]))
        if limits.memory < math.inf:
            write(self._folder / "memory.max", f"{limits.memory:.0f}")

    def entrances(self) -> list[Path]:
        """See `Group`."""
        return [self._folder / "cgroup.procs"]

    def resident(self) -> tuple[int, int]:
        """See `Group`."""
        found = stat(read(self._folder / "memory.stat"))
        return found.get("anon", 0), found.get("shmem", 0)

    def usage(self, device: str) -> Usage:
        """See `Group`."""
        moved, ops = counted_v2(read(self._folder / "io.stat"), device)
        events = stat(read(self._folder / "memory.events"))
        spent_us = stat(read(self._folder / "cpu.stat")).get("usage_usec", 0)
        most = int(read(self._folder / "memory.peak") or 0)
        return Usage(moved, ops, most, events.get("max", 0), events.get("oom_kill", 0), spent_us / 1e6)

    def remove(self) -> None:
        """See `Group`."""
        _remove(self._folder)


def group_here(root: Path = CONTROL_GROUPS, own: str | None = None) -> Group:
    """Return the kind of control groups that this machine has, not made yet.

    Raises `CannotLimitError` if it has none.
    """
    name = f"brand-lab-{os.getpid()}-{secrets.token_hex(3)}"
    if (root / "blkio").is_dir() and (root / "memory").is_dir():
        return GroupV1(root, own_groups(own if own is not None else Path("/proc/self/cgroup").read_text()), name)
    if {"io", "memory"} <= set(read(root / "cgroup.controllers").split()):
        return GroupV2(root, name)
    raise CannotLimitError(f"{root} has no control groups for reads and memory (blkio or io, and memory)")


def _make(folder: Path) -> None:
    try:
        folder.mkdir()
    except OSError as error:
        raise CannotLimitError(
            f"{folder} cannot be made: {error.strerror}. Run as root on a system with writable control groups"
        ) from error


def _remove(folder: Path) -> None:
    for _ in range(100):  # the kernel frees a group some time after its last process has ended
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    sys.stderr.write(f"lab: {folder} could not be removed\n")


def read(file: Path) -> str:
    """Return the text of a file; nothing if there is no such file."""
    try:
        return file.read_text()
    except OSError:
        return ""


def write(file: Path, text: str) -> None:
    """Write a setting of the system. Raises `CannotLimitError` if the system refuses."""
    try:
        file.write_text(text)
    except OSError as error:
        raise CannotLimitError(f"{text!r} cannot be written to {file}: {error.strerror}") from error
