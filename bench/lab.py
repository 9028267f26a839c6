"""How does a command run on slower storage and with less memory? Run it in control groups of its own, which limit both.

    python -m bench.lab --profile nas --memory 2GB --cold -- COMMAND [ARGUMENT...]

1. With `--cold`, all cached files are dropped. Then the `--preload` command runs, without limits: its files (such as
   those of libraries) are cached, and are not charged to the measured command.
2. COMMAND runs in new control groups: reads from the block device of `--path` are limited in bytes and operations a
   second, and memory is limited, page cache included. The kernel charges a page of the page cache to the group that
   reads it first, so `--memory` limits the cache only for files that are not cached yet: use `--cold`.
3. When COMMAND ends, processes that it left behind are killed, the groups are removed, and the measurements are written
   as JSON: to `--json FILE`, else to standard error.

This needs root and writable control groups, of version 1 or version 2. If there are none, the command is not run, and
the exit code is 125. Otherwise the exit code is that of COMMAND, 128 + N if signal N ended it, and 124 after
`--timeout`.

Limits hold for a device, so nothing else should use it meanwhile. `--readahead-kb` and `--inode-readahead-blks` change
settings of the device and of its ext4 file system for everybody, until COMMAND has ended. The kernel counts operations
after it has merged them: a read-ahead of some hundred KB is one operation, or a few.

The JSON has `command`, `exit_code`, `timed_out`, `wall_s`, `cpu_s`, `device`, `read_bytes` and `read_ops` (as the
block layer counts them), `max_memory_bytes` (page cache included), `peak_rss_bytes` and `peak_shmem_bytes` (sampled
every 0.2 s), `memory_failcnt`, `oom_kills`, `leftover_processes`, `limits` and `control_groups` (the version).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from bench.control_groups import CannotLimitError, Group, Limits, group_here, read, write

CANNOT: Final = 125
"""Exit code if the limits cannot be set."""
TIMED_OUT: Final = 124
_EVERY_S: Final = 0.2
_GRACE_S: Final = 3.0
"""Seconds from SIGTERM to SIGKILL, for processes that are left behind."""
_UNITS: Final = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_JOIN: Final = 'for file in $0; do echo $$ > "$file" || exit 125; done; exec "$@"'
"""A script with which a shell enters the groups (the files in `$0`) and becomes the command."""
PROFILES: Final = {
    "nvme": Limits(),
    "nas": Limits(read_bps=120e6, read_iops=400),
    "hdd": Limits(read_bps=160e6, read_iops=150),
}
"""A disk without limits; a network drive behind 1 Gbit/s; a hard disk."""


def size(text: str) -> float:
    """Return the bytes of a text such as `700MB`, `2G` or `1.5GiB`. Raises `ArgumentTypeError` if it is not a size."""
    found = re.fullmatch(r"([\d.]+) *([kmg]?i?)b?", text.strip().lower())
    if found is None or found[2] not in _UNITS or found[1].count(".") > 1 or found[1] == ".":
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 1000000, 120MB or 1.5GiB")
    return float(found[1]) * _UNITS[found[2]]


def disk_of(path: Path) -> str:
    """Return `major:minor` of the whole disk that holds a path. Raises `CannotLimitError` if there is none."""
    device = path.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    entry = Path("/sys/dev/block", name)
    if not entry.exists():
        raise CannotLimitError(f"{path} is not on a block device ({name}), so its reads cannot be limited")
    entry = entry.resolve()
    return (entry.parent / "dev").read_text().strip() if (entry / "partition").exists() else name


def read_ahead_files(path: Path, disk: str) -> dict[str, Path]:
    """Return the files with the read-ahead settings of the disk and of its ext4 file system."""
    device = path.stat().st_dev
    part = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    return {
        "readahead_kb": Path(f"/sys/dev/block/{disk}/queue/read_ahead_kb"),
        "inode_readahead_blks": Path(f"/sys/fs/ext4/{part}/inode_readahead_blks"),
    }


@contextmanager
def setting(file: Path, value: int | None) -> Iterator[None]:
    """Change a setting of the kernel, and restore it at the end. Raises `CannotLimitError` if the system refuses."""
    if value is None:
        yield
        return
    before = read(file).strip()
    write(file, str(value))
    try:
        yield
    finally:
        write(file, before)


def run(command: Sequence[str], group: Group, device: str, timeout_s: float | None) -> dict[str, Any]:
    """Run a command in the groups, and return the measurements. No process is left when this returns."""
    before, started = group.usage(device), time.monotonic()
    entrances = " ".join(map(str, group.entrances()))
    process = subprocess.Popen(["/bin/sh", "-c", _JOIN, entrances, *command])
    with _signals_to(process), _Peaks(group) as peaks:
        code, timed_out = _ended(process, timeout_s)
    wall_s = time.monotonic() - started
    left = _end_all(group)
    after = group.usage(device)
    return {
        "command": list(command),
        "exit_code": TIMED_OUT if timed_out else code,
        "timed_out": timed_out,
        "wall_s": round(wall_s, 3),
        "cpu_s": round(after.cpu_s - before.cpu_s, 3),
        "device": device,
        "read_bytes": after.read_bytes - before.read_bytes,
        "read_ops": after.read_ops - before.read_ops,
        "max_memory_bytes": after.max_memory_bytes,
        "peak_rss_bytes": peaks.rss,
        "peak_shmem_bytes": peaks.shmem,
        "memory_failcnt": after.memory_failcnt,
        "oom_kills": after.oom_kills,
        "leftover_processes": left,
        "control_groups": group.version,
    }


class _Peaks:
    """The largest memory of a group, sampled by a thread while a `with` block runs."""

    def __init__(self, group: Group) -> None:
        self._group, self._over = group, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.rss = self.shmem = 0

    def __enter__(self) -> _Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(_EVERY_S):
            rss, shmem = self._group.resident()
            self.rss, self.shmem = max(self.rss, rss), max(self.shmem, shmem)


@contextmanager
def _signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGTERM and SIGINT on to a process in this block, so that the groups are removed when it has ended."""

    def passed_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, passed_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(process: subprocess.Popen[bytes], timeout_s: float | None) -> tuple[int, bool]:
    """Wait for a process, and end it after `timeout_s`. Return its exit code as in a shell, and whether it was late."""
    try:
        code, late = process.wait(timeout_s), False
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        process.kill()
        code, late = process.wait(), True
    return (128 - code if code < 0 else code), late


def _end_all(group: Group) -> int:
    """Kill the processes that are still in the groups. Return how many there were."""

    def inside() -> set[int]:
        return {int(word) for file in group.entrances() for word in read(file).split()}

    left = len(inside())
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in inside():
            with suppress(ProcessLookupError):
                os.kill(process, number)
        until = time.monotonic() + _GRACE_S
        while inside() and time.monotonic() < until:
            time.sleep(0.05)
    return left


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; `command` is everything after `--`."""
    parser = argparse.ArgumentParser(prog="python -m bench.lab", description=(__doc__ or "").partition("\n")[0])
    shown = "; ".join(f"{name}: {profile.to_json() or 'no limit'}" for name, profile in PROFILES.items())
    parser.add_argument("--profile", choices=PROFILES, default="nvme", help=f"limits of reads ({shown})")
    parser.add_argument("--read-bps", type=size, metavar="SIZE", help="bytes a second, in place of the profile's")
    parser.add_argument("--read-iops", type=float, metavar="N", help="operations a second, in place of the profile's")
    parser.add_argument("--memory", type=size, metavar="SIZE", help="memory, page cache included")
    parser.add_argument("--path", type=Path, default=Path(), help="a path on the device to limit (%(default)s)")
    parser.add_argument("--cold", action="store_true", help="drop all cached files first")
    parser.add_argument("--preload", metavar="COMMAND", help="a command to run first, without limits")
    parser.add_argument("--readahead-kb", type=int, metavar="N", help="read-ahead of the device during the command")
    parser.add_argument(
        "--inode-readahead-blks", type=int, metavar="N", help="ext4's read-ahead of inodes during the command"
    )
    parser.add_argument("--timeout", type=float, metavar="S", help="end the command after this many seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to this file")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command, after --")
    options = parser.parse_args(arguments)
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not options.command:
        parser.error("give a command, after --")
    return options


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits of a profile, replaced by those that the options name."""
    named = {"read_bps": options.read_bps, "read_iops": options.read_iops, "memory": options.memory}
    return replace(PROFILES[options.profile], **{name: value for name, value in named.items() if value is not None})


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the command of these options. Raises `CannotLimitError` before anything is run."""
    device, limits, group = disk_of(options.path), limits_of(options), group_here()
    with ExitStack() as stack:
        stack.callback(group.remove)
        group.make()
        group.limit(device, limits)
        for name, file in read_ahead_files(options.path, device).items():
            stack.enter_context(setting(file, getattr(options, name)))
        if options.cold:
            os.sync()
            write(Path("/proc/sys/vm/drop_caches"), "3")
        if options.preload:
            subprocess.run(
                shlex.split(options.preload), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            )
        return {**run(options.command, group, device, options.timeout), "limits": limits.to_json()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, write the measurements, and return the exit code."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the groups are removed
    try:
        found = measure(options)
    except CannotLimitError as error:
        sys.stderr.write(f"lab: {error}. The command was not run\n")
        return CANNOT
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    else:
        sys.stderr.write(json.dumps(found) + "\n")
    return int(found["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
