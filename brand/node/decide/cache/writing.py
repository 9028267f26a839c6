"""Which samples wait to be written to the cache folder, and which are being written?

The queue holds a reference to each sample until it is written, so that the sample's pages are not reused meanwhile. The
queue has a limit: if writes take long, samples are left out. The next epoch reads them again. Samples of the memory
cache are not read again, and are queued when the queue is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.instructions import Write
from brand.node.memory.residents import Residents

QUEUE_SHARE: Final = 2
"""Samples that wait to be written take at most `1 / QUEUE_SHARE` of the memory, or one read.

Nothing is written before the planner has chosen the samples that have a place. By then memory may be full. If reads
find no space, the queue is emptied (`make_room`).
"""
WRITES: Final = 4
"""The most writes under way."""

Wanted = Callable[[NDArray[Any]], NDArray[np.bool_]]
"""Returns a mask of the samples that are still to be written."""


class Writing:
    """The queue of one node. `wanted` returns a mask of the samples that belong into it."""

    def __init__(self, residents: Residents, wanted: Wanted) -> None:
        self._residents, self._wanted = residents, wanted
        self._most = residents.pool.allocator.count // QUEUE_SHARE
        self._queue: deque[NDArray[Any]] = deque()
        self._left_out: deque[NDArray[Any]] = deque()
        """Samples of the memory cache, which no read loads again. At most as many as memory holds."""
        self._pages = 0
        """Pages of the samples in the queue, and of those that are being written."""
        self._reserved = 0
        """Pages of samples that reads load for the folder."""
        self._under_way: set[int] = set()
        """Numbers of writes."""
        self._last = 0

    def __repr__(self) -> str:
        return f"Writing({len(self._queue)} reads wait, {len(self._under_way)} writes under way, {self._pages} pages)"

    @property
    def room(self) -> int:
        """Pages that the queue has space for."""
        return max(0, self._most - self._pages - self._reserved)

    def reserve(self, pages: int) -> None:
        """Reserve space for the pages that a read loads for the folder. Below 0 when the read has ended."""
        self._reserved += pages

    def add(self, places: NDArray[Any], *, reserved: bool = False) -> None:
        """Queue samples that are in memory and wanted, if there is space, or if it was reserved."""
        places = places[self._wanted(places)]
        pages = self._pages_of(places)
        if not reserved and self._pages and self._pages + self._reserved + pages > self._most:
            self._leave_out(places)
        elif len(places):
            self._residents.refer(places)
            self._pages += pages
            self._queue.append(places)

    def add_later(self, places: NDArray[Any]) -> None:
        """Queue samples of the memory cache when the queue is empty."""
        part = np.cumsum(self._residents.pages_of[places], dtype=np.int64) // max(1, self._most)
        self._left_out += (each for each in np.split(places, np.flatnonzero(np.diff(part)) + 1) if len(each))

    def review(self) -> None:
        """Remove samples that are not wanted any more."""
        waiting = list(self._queue)
        self._queue.clear()
        self._queue += (places for each in waiting if len(places := self._still_wanted(each)))

    def next(self) -> Iterator[Write]:
        """Yield the writes to start now."""
        while len(self._under_way) < WRITES:
            if not self._queue and self._left_out and not self._pages:
                places = self._left_out.popleft()
                self.add(places[self._residents.present(places)])
            elif not self._queue:
                return
            elif len(
                places := self._still_wanted(self._queue.popleft())
            ):  # another epoch may have queued the same samples
                self._last += 1
                self._under_way.add(self._last)
                yield Write(self._last, places, *self._residents.chains(places))

    def on_write_ended(self, write: Write) -> None:
        """Remove a write that has ended."""
        self._under_way.discard(write.number)
        self._leave(write.places)

    def make_room(self) -> bool:
        """Release all samples that wait. Return whether there were any."""
        found = bool(self._queue)
        while self._queue:
            self._leave_out(self._queue[0])
            self._leave(self._queue.popleft())
        return found

    def stop(self) -> None:
        """Write nothing more."""
        self.make_room()
        self._left_out.clear()

    def _still_wanted(self, places: NDArray[Any]) -> NDArray[Any]:
        """Return the samples that are still wanted. Releases the others."""
        wanted = self._wanted(places)
        self._leave(places[~wanted])
        return places[wanted]

    def _leave_out(self, places: NDArray[Any]) -> None:
        """Leave out samples for which the queue has no space. Stores those of the memory cache, which no read loads
        again.
        """
        kept = places[self._residents.to_keep(places)]
        if len(kept):
            self._left_out.append(kept)

    def _leave(self, places: NDArray[Any]) -> None:
        self._pages -= self._pages_of(places)
        self._residents.let_go(places)

    def _pages_of(self, places: NDArray[Any]) -> int:
        return int(self._residents.pages_of[places].sum(dtype=np.int64))
