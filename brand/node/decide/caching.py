"""What does the cache folder hold, which reads go there, and what is written to it next?

A large read goes to the folder where the folder holds all samples that the read is for; else it goes to the storage as
a whole. What comes from the storage and has a place in the folder is written behind: the queue holds a reference to
the samples until they are written, so their pages are not used again meanwhile. Where the queue is full, samples are
left out; the next epoch brings them again.

The planner chooses the places (`Choice`). Until it has, what comes waits in the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.counters import CacheCounters
from brand.node.decide.tasks import Forget, Shelf, Write
from brand.node.memory.residents import Residents
from brand.protocol.placement import cached_unit

QUEUE_BYTES: Final = 64 << 20
"""The most memory of samples that wait to be written."""
QUEUE_SHARE: Final = 32
"""They also take at most `1 / QUEUE_SHARE` of the memory, or one read."""
WRITES: Final = 4
"""The most writes under way."""


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
        self._held = np.zeros(len(residents.pages_of) if start is None else 0, np.bool_)
        self._stopped = "off"
        if start is not None:
            self._held, self._stopped = start.held.copy(), start.stopped
        self._placed: NDArray[np.bool_] | None = None
        """Which samples have a place in the folder; None: the planner has not chosen."""
        self._queue: deque[NDArray[Any]] = deque()
        self._queued_pages = 0
        """Pages of the samples in the queue, and of those that are being written."""
        self._under_way: set[int] = set()
        """Numbers of writes."""
        self._lost: deque[int] = deque()
        """Chunks whose parts cannot be read, and are to be forgotten."""
        self._last = 0

    def __repr__(self) -> str:
        state = f"{np.count_nonzero(self._held)} held, {len(self._queue)} queued, {len(self._under_way)} being written"
        return f"Caching({self._stopped or state})"

    @property
    def start(self) -> CacheStart | None:
        """What the server has started with."""
        return self._start

    def holds(self, places: NDArray[Any]) -> bool:
        """Whether a read for the samples of these places goes to the folder."""
        return self._start is not None and bool(self._held[places].all())

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
        waiting = list(self._queue)
        self._queue.clear()
        for places in waiting:
            stays = self._wanted(places)
            self._leave(places[~stays])
            if stays.any():
                self._queue.append(places[stays])

    def take(self, places: NDArray[Any]) -> None:
        """Samples have come from the storage into memory: queue those that are to be written, if there is room."""
        if self._stopped or self._start is None:
            return
        wanted = places[self._wanted(places)]
        allocator, pages = self._residents.pool.allocator, self._pages(wanted)
        most = min(QUEUE_BYTES // allocator.page, allocator.count // QUEUE_SHARE)
        if len(wanted) and (not self._queued_pages or self._queued_pages + pages <= most):
            self._residents.refer(wanted)
            self._queued_pages += pages
            self._queue.append(wanted)

    def instructions(self) -> Iterator[Write | Forget]:
        """What the thread that writes does next."""
        while self._lost:
            yield Forget(self._lost.popleft())
        while self._queue and self._placed is not None and len(self._under_way) < WRITES:
            places = self._queue.popleft()
            twice = ~self._wanted(places)  # another epoch has queued them, too
            self._leave(places[twice])
            places = places[~twice]
            if len(places):
                self._last += 1
                self._under_way.add(self._last)
                yield Write(self._last, places, *self._residents.chains(places))

    def written(self, write: Write, held: NDArray[np.bool_], stopped: str) -> None:
        """A write has ended; `held`: which of its samples the folder holds now. `stopped`: why no other one follows."""
        self._under_way.discard(write.number)
        new = write.places[held & self._wanted(write.places)]
        self._held[new] = True
        self._counters.wrote(self._bytes(new))
        self._leave(write.places)
        if stopped and not self._stopped:
            self._stopped = stopped
            self.make_room()

    def lose(self, places: NDArray[Any]) -> None:
        """A read of the folder has failed: the chunks of these samples are not read there any more, nor written."""
        for number in np.unique(places // self._chunk_size).tolist():
            which = slice(number * self._chunk_size, (number + 1) * self._chunk_size)
            self._counters.lost(int(self._held[which].sum()))
            self._held[which] = False
            if self._placed is None:
                self._placed = np.zeros(len(self._held), np.bool_)
            self._placed[which] = False
            self._lost.append(number)

    def make_room(self) -> bool:
        """Let go of all samples in the queue. Returns whether there were any."""
        found = bool(self._queue)
        while self._queue:
            self._leave(self._queue.popleft())
        return found

    def facts(self) -> dict[str, Any] | None:
        """What the folder holds and what was done, as plain values; None where there is no folder."""
        start = self._start
        if start is None:
            return None
        full = self._placed is not None and not (self._placed & ~self._held).any()
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
        wanted: NDArray[np.bool_] = ~self._held[places]
        return wanted if self._placed is None else wanted & self._placed[places]

    def _leave(self, places: NDArray[Any]) -> None:
        """Let go of samples that were in the queue."""
        self._queued_pages -= self._pages(places)
        self._residents.let_go(places)

    def _pages(self, places: NDArray[Any]) -> int:
        return int(self._residents.pages_of[places].sum(dtype=np.int64))

    def _bytes(self, places: NDArray[Any]) -> int:
        return 0 if self._start is None else int(self._start.sizes[places].sum(dtype=np.int64))
