"""Is the storage at its limit, and how much memory do the server and its clients take?

`Gauges` measures every few seconds, and stores ten minutes for charts. `storage_use` compares the reads with the
profile of the storage, if there is one (`brand profile`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from brand.available import memory_left
from brand.errors import size
from brand.groups import PROC
from brand.node.decide.state.counters import ReadCounters
from brand.node.serve.lifetime import processes_known
from brand.node.serve.loops import CELL_S, LOOK_S, MOST_CELLS
from brand.reprs import Reprs
from brand.storage.profile.profile import Profile, bandwidth, is_assumed

AT_LIMIT: Final = 0.85
"""Fraction of the measured bandwidth from which a storage counts as being at its limit."""
FRESH_S: Final = 1.0
"""Seconds for which the memory of processes is not measured again."""
ABOVE: Final = 1.15
"""Above this multiple of the measured bandwidth, bytes cannot come from the storage itself."""


class Gauge(NamedTuple):
    """The state of a server at one moment."""

    at_s: float
    reads: int
    read_bytes: int
    used: int
    """Bytes of the memory for samples that are in use."""


class Gauges(Reprs, shows="_points _processes"):
    """Gauges of one server. `clients` returns the processes of its clients, `profile` is that of the storage."""

    def __init__(self, profile: Profile | None, clients: Callable[[], Iterable[int]]) -> None:
        self._profile = None if profile is None or is_assumed(profile) else profile
        self._clients = clients
        self._points: deque[Gauge] = deque(maxlen=MOST_CELLS + 1)
        self._processes: tuple[float, dict[str, int]] = float("-inf"), {}
        """The time of the last look at the memory of processes, and its result."""

    def tend(self, now_s: float, look: Callable[[], tuple[ReadCounters, int]]) -> None:
        """Measure every `CELL_S` seconds. `look` returns the reads and the bytes of memory in use."""
        if self._points and now_s // CELL_S == self._points[-1].at_s // CELL_S:
            return
        reads, used = look()
        self._points.append(Gauge(now_s, reads.reads, reads.read_bytes, used))

    def facts(self, reads: ReadCounters, now_s: float) -> dict[str, Any]:
        """Return `storage` and `processes`, as plain values."""
        if now_s - self._processes[0] > FRESH_S:
            self._processes = now_s, processes(self._clients())
        now = Gauge(now_s, reads.reads, reads.read_bytes, 0)
        before = [point for point in self._points if point.at_s <= now_s - LOOK_S][-1:] or list(self._points)[:1]
        return {
            "storage": storage_use(self._profile, before[0] if before else now, now),
            "processes": self._processes[1],
        }

    def points(self) -> list[dict[str, Any]]:
        """Return a point for each cell of time: bytes read per second, and bytes of memory in use."""
        points = list(self._points)
        return [
            {
                "number": int(before.at_s // CELL_S),
                "read_bytes_per_s": round((after.read_bytes - before.read_bytes) / (after.at_s - before.at_s)),
                "used": after.used,
            }
            for before, after in pairwise(points)
        ]


def storage_use(profile: Profile | None, before: Gauge, now: Gauge) -> dict[str, Any]:
    """Return how fast the storage was read between two moments, and how fast it can be, as plain values with a `text`.

    The limit is the bandwidth that was measured with reads of the mean size of these reads.
    """
    seconds, count = now.at_s - before.at_s, now.reads - before.reads
    speed = (now.read_bytes - before.read_bytes) / seconds if seconds > 0 else 0.0
    mean = (now.read_bytes - before.read_bytes) / count if count else None
    limit = None
    if profile is not None:
        limit = profile.sequential if mean is None else float(bandwidth(profile, np.array([mean]))[0])
    return {
        "read_bytes_per_s": round(speed),
        "mean_read_bytes": None if mean is None else round(mean),
        "limit_bytes_per_s": None if limit is None else round(limit),
        "device": None if profile is None else profile.device,
        "at_limit": None if limit is None else AT_LIMIT <= speed / limit <= ABOVE,
        "text": _storage_text(speed, mean, limit),
    }


def _storage_text(speed: float, mean: float | None, limit: float | None) -> str:
    if mean is None:
        return f"no reads in the last {LOOK_S:.0f} s"
    reads = f"{size(speed)}/s in reads of {size(mean)}"
    if limit is None:
        return f"{reads}; `brand profile` measures how much the storage can deliver"
    if speed > ABOVE * limit:
        return f"{reads}, more than the {size(limit)}/s that `brand profile` measured: a cache holds the files"
    share = f"{100 * speed / limit:.2g} % of the {size(limit)}/s that `brand profile` measured"
    return f"{reads}, {share}: {'at its limit' if speed >= AT_LIMIT * limit else 'not at its limit'}"


def processes(clients: Iterable[int], proc: Path = PROC) -> dict[str, int]:
    """Return the bytes of memory of this process and of its clients, and those that the machine or group allows.

    `server` and `clients` are memory of their own, without the memory for samples, which they share (`arena`). `limit`
    and `available` are those of the control group with the least memory left, or of the machine.
    """
    known = clients if processes_known() else ()
    mine, found = _status(proc / "self"), [_status(proc / str(process)) for process in set(known)]
    limit, available = memory_left()
    return {
        "server": mine.get("RssAnon", 0),
        "arena": mine.get("RssShmem", 0),
        "clients": sum(each.get("RssAnon", 0) for each in found),
        "client_processes": sum(bool(each) for each in found),
        "limit": limit,
        "available": available,
    }


def _status(folder: Path) -> Mapping[str, int]:
    """Return the kinds of resident memory of a process, in bytes; empty if the process has ended."""
    try:
        text = (folder / "status").read_text()
    except OSError:
        return {}
    return {name: int(value) * 1024 for name, value in re.findall(r"^(Rss\w+):\s+(\d+) kB", text, re.MULTILINE)}
