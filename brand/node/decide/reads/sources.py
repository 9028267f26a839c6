"""Is a read of samples that a cache folder holds faster from that folder, or from the storage?

The performance model is that of the paper HDMLP (section 4; section 5.1 applies it to each fetch). A source that reads
`rate` bytes a second for all its readers together, `loads` bytes of which are under way, takes `(loads + size) / rate`
seconds for one more read. The paper writes `s / (r(p) / p)`, with `p` readers that read as much each. Its parameters
are in a file of the system; here they are measured.

A folder costs no other node anything, and the storage may be shared. So the storage has to be clearly faster
(`MARGIN`), the folder slow enough for a training to notice (`LEAST_S`), and draws have to wait.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.counters import CacheCounters
from brand.node.decide.state.instructions import Read
from brand.reprs import Reprs

MARGIN: Final = 2.0
"""A read leaves its folder only if the storage is expected to take less than `1 / MARGIN` of the folder's time."""
LEAST_S: Final = 0.05
"""A folder that is expected to read within this time is used, however fast the storage is."""
RECENT: Final = 16
"""Number of reads after which a measured read counts `1 / e` as much as a new one."""
FEWEST: Final = 4
"""A source has a rate once that many reads of it have been measured."""
WAITED_S: Final = 1.0
"""If no draw has waited for this long, the folders are fast enough."""
RETRY_S: Final = 10.0
"""A folder that was not measured for this long is tried again: its disk may be idle by now."""

Sources = NDArray[np.int8]
"""A source for each of some reads: the number of a cache folder, 0 for the storage."""


def fastest(sizes: NDArray[np.int64], held: Sources, loads: NDArray[np.float64], rates: NDArray[np.float64]) -> Sources:
    """Return the source of each of some reads that start together, in order, shape (reads,). Pure.

    `sizes`: bytes of each read. `held`: the folder that holds its samples, 0 if none does. `loads` and `rates`: bytes
    under way and bytes per second of each source, shape (sources,). A storage with rate 0 is never chosen.
    """
    totals = loads + np.bincount(held, sizes, len(loads))
    if not rates[0] or (totals[1:] <= LEAST_S * rates[1:]).all():
        return held
    chosen, under_way, rate = held.copy(), loads.tolist(), rates.tolist()
    for number, (size, folder) in enumerate(zip(sizes.tolist(), held.tolist(), strict=True)):
        here, there = (under_way[folder] + size) / rate[folder], (under_way[0] + size) / rate[0]
        if folder and here > LEAST_S and here > MARGIN * there:
            chosen[number] = 0
        under_way[chosen[number]] += size
    return chosen


class MeasuredSources(Reprs, shows="_loads rates"):
    """The storage and the cache folders of a node, as far as reads have measured them.

    `counters` has those of each folder.
    """

    def __init__(self, counters: list[CacheCounters]) -> None:
        self._counters = counters
        sources = 1 + len(counters)
        self._loads = np.zeros(sources)
        """Bytes under way from each source."""
        self._bytes, self._seconds, self._reads = np.zeros(sources), np.zeros(sources), np.zeros(sources)
        """For each source, sums over its measured reads: bytes that were under way when it began, with its own;
        seconds that it took; and reads. Older reads count less."""
        self._measured_s = np.zeros(sources)
        """Time of the last measurement of each source."""
        self._waited_s = -np.inf
        """Time at which a draw waited last."""
        self._started: dict[int, tuple[NDArray[np.float64], Sources, NDArray[np.float64]]] = {}
        """For each read under way, by number: bytes that were under way when each piece began, with its own; the folder
        that it has left, 0 if none; and the seconds that this folder was expected to take."""

    @property
    def rates(self) -> NDArray[np.float64]:
        """Bytes per second of each source for all its readers. Unknown: 0 for the storage, inf for a folder."""
        unknown = np.full(len(self._loads), np.inf)
        unknown[0] = 0.0
        known = (self._reads >= FEWEST) & (self._seconds > 0)
        unknown[known] = self._bytes[known] / self._seconds[known]
        return unknown

    def on_draw_waits(self, now_s: float) -> None:
        self._waited_s = now_s

    def choose(self, sizes: NDArray[np.int64], held: Sources, now_s: float) -> Sources:
        """Return the source of each piece of a read that starts. `held`: the folder that holds it, 0 if none does."""
        if now_s - self._waited_s > WAITED_S or not held.any():
            return held
        rates = self.rates
        rates[1:][(now_s - self._measured_s[1:] > RETRY_S) & (self._loads[1:] == 0)] = np.inf
        return fastest(sizes, held, self._loads, rates)

    def on_started(self, read: Read, held: Sources) -> None:
        """Note that a read begins. `held`: the folder that holds the samples of each piece, 0 if none does."""
        sources, sizes, rates = read.pieces["folder"], read.pieces["size"].astype(np.float64), self.rates
        before, left = np.empty(len(sizes)), np.where(sources == 0, held, np.int8(0))
        for source in np.unique(sources).tolist():
            mine = sources == source
            before[mine] = self._loads[source] + np.cumsum(sizes[mine])
            self._loads[source] += sizes[mine].sum()
        self._started[read.number] = before, left, (self._loads[left] + sizes) / rates[left] if left.any() else sizes
        for folder in left[left > 0].tolist():
            self._counters[folder - 1].add_bypassed()

    def on_ended(self, read: Read, seconds: tuple[float, ...], failed: tuple[int, ...], now_s: float) -> None:
        """Note that a read has ended. `seconds` of each piece, 0 if it was not measured; empty if none was.

        A storage that fails is not chosen until reads of samples that no folder holds have measured it again.
        """
        before, left, expected = self._started.pop(read.number)
        sources, sizes = read.pieces["folder"], read.pieces["size"]
        np.subtract.at(self._loads, sources, sizes)
        took = np.array(seconds or np.zeros(len(sizes)))
        for source in np.unique(sources[took > 0]).tolist():
            mine = (sources == source) & (took > 0)
            keep = np.exp(-int(mine.sum()) / RECENT)
            for total, found in (
                (self._bytes, before[mine].sum()),
                (self._seconds, took[mine].sum()),
                (self._reads, mine.sum()),
            ):
                total[source] = total[source] * keep + found
            self._measured_s[source] = now_s
        failing = np.isin(np.arange(len(sizes)), failed)
        if (failing & (sources == 0)).any():
            self._reads[0] = self._seconds[0] = self._bytes[0] = 0.0
        for folder in left[(left > 0) & (failing | (took > expected))].tolist():
            self._counters[folder - 1].add_misjudged()
