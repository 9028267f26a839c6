"""What does the cache folder hold, and which reads go there?

A large read goes to the folder where the folder holds all samples that the read is for; else it goes to the storage as
a whole. What comes from the storage and has a place in the folder is written behind (`Writing`). The planner chooses
the places (`Choice`). Until it has, what comes waits to be written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.counters import CacheCounters
from brand.node.decide.tasks import Forget, Shelf, Write
from brand.node.decide.writing import Writing
from brand.node.memory.residents import Residents
from brand.protocol.placement import cached_unit


@dataclass(frozen=True, slots=True, eq=False)
class CacheStart:
    """What a server knows of its cache folder when it starts."""

    folder: str
    sizes: NDArray[np.uint32]
    """Stored size of each place's sample in bytes, shape (samples,)."""
    held: NDArray[np.bool_]
    """Which samples the folder holds, shape (samples,)."""
    limit: int
    """Bytes that they may take."""
    stopped: str = ""
    """Why nothing is written; empty where it is."""


class Caching:
    """The cache folder of one node; `start` is None where there is none.

    `largest`: pages of the largest sample that comes into memory, and so can be written.
    """

    def __init__(
        self,
        residents: Residents,
        chunk_size: int,
        largest: int,
        counters: CacheCounters,
        start: CacheStart | None = None,
    ) -> None:
        self._residents, self._chunk_size, self._largest, self._counters = residents, chunk_size, largest, counters
        self._start = start
        self._held, self._stopped = np.zeros(0, np.bool_), "off"
        if start is not None:
            self._held, self._stopped = start.held.copy(), start.stopped
        self._placed: NDArray[np.bool_] | None = None
        """Which samples have a place in the folder; None: the planner has not chosen."""
        self._spoilt = np.zeros(len(self._held), np.bool_)
        """Samples of chunks whose parts could not be read: they are not written again."""
        self._lost: deque[Forget] = deque()
        """What the folder still has to forget."""
        self.writing = Writing(residents, self._wanted)

    def __repr__(self) -> str:
        return f"Caching({self._stopped or f'{np.count_nonzero(self._held)} held, {self.writing!r}'})"

    @property
    def start(self) -> CacheStart | None:
        """What the server has started with."""
        return self._start

    def holds(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether the folder holds each of these places, shape (places,)."""
        return np.zeros(len(places), np.bool_) if self._start is None else self._held[places]

    def shelf(self, kept_unit: int | None, chunk_size: int) -> Shelf | None:
        """What the planner needs to choose the samples that are written; None: nothing is written."""
        start = self._start
        if start is None or self._stopped:
            return None
        unit = cached_unit(kept_unit, chunk_size, float(start.sizes.mean()))
        able = self._residents.pages_of <= self._largest
        return Shelf(start.sizes, self._held.copy(), able, start.limit - self._bytes(self._held), unit)

    def chosen(self, placed: NDArray[np.bool_]) -> None:
        """The planner has chosen which samples have a place."""
        self._placed = placed
        self.writing.review()
        self.writing.add_later(np.flatnonzero(placed & ~self._held & self._residents.kept()))

    def take(self, places: NDArray[Any]) -> None:
        """A read has brought samples into memory: those that have a place and are not held are to be written."""
        if not self._stopped:
            self.writing.add(places)

    def instructions(self) -> Iterator[Write | Forget]:
        """What the thread that writes does next."""
        while self._lost:
            yield self._lost.popleft()
        if self._placed is not None and not self._stopped:
            yield from self.writing.next()

    def written(self, write: Write, held: NDArray[np.bool_], stopped: str) -> None:
        """A write has ended; `held`: which of its samples the folder holds now. `stopped`: why no other one follows."""
        new = write.places[held & self._wanted(write.places)]
        self._held[new] = True
        self._counters.wrote(self._bytes(new))
        self.writing.ended(write)
        if stopped and not self._stopped:
            self._stopped = stopped
            self.writing.end()

    def lose(self, places: NDArray[Any]) -> None:
        """A read of the folder has failed: the chunks of these samples are not read there any more, nor written."""
        for number in np.unique(places // self._chunk_size).tolist():
            which = slice(number * self._chunk_size, (number + 1) * self._chunk_size)
            self._counters.lost(int(self._held[which].sum()))
            self._held[which] = False
            self._spoilt[which] = True
        self._lost.append(Forget(places, parts=True))

    def distrust(self, places: NDArray[Any]) -> None:
        """Samples had wrong checksums: those that the folder holds are read from the storage, and written again."""
        places = places[self._held[places]] if self._start is not None else places[:0]
        if len(places):
            self._counters.lost(len(places))
            self._held[places] = False
            self._lost.append(Forget(places, parts=False))

    def facts(self) -> dict[str, Any] | None:
        """What the folder holds and what was done, as plain values; None where there is no folder."""
        start = self._start
        if start is None:
            return None
        full = self._placed is not None and not (self._placed & ~self._held & ~self._spoilt).any()
        return {
            "folder": start.folder,
            "limit": start.limit,
            "used": self._bytes(self._held),
            "held_samples": int(np.count_nonzero(self._held)),
            **self._counters.to_json(),
            "state": self._stopped or ("full" if full else "filling"),
        }

    def _wanted(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of these samples have a place, as far as it is chosen, and are not held."""
        wanted: NDArray[np.bool_] = ~self._held[places] & ~self._spoilt[places]
        return wanted if self._placed is None else wanted & self._placed[places]

    def _bytes(self, places: NDArray[Any]) -> int:
        return 0 if self._start is None else int(self._start.sizes[places].sum(dtype=np.int64))
