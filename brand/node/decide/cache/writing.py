"""Which samples wait to be written to the cache folder, and which are being written?

The queue holds a reference to each sample until it is written, so the sample's pages are not used again meanwhile. The
queue has a bound: where writes take long, samples are left out. The next epoch brings them again; those that memory
keeps are queued again when the queue is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.tasks import Write
from brand.node.memory.residents import Residents

QUEUE_SHARE: Final = 2
"""Samples that wait to be written take at most `1 / QUEUE_SHARE` of the memory, or one read.

Nothing is written before the planner has chosen what has a place; by then memory may be full. Where reads find no room,
the queue is let go of (`make_room`).
"""
WRITES: Final = 4
"""The most writes under way."""

Wanted = Callable[[NDArray[Any]], NDArray[np.bool_]]
"""Which of some samples are still to be written."""


class Writing:
    """The queue of one node. `wanted` says which samples belong into it."""

    def __init__(self, residents: Residents, wanted: Wanted) -> None:
        self._residents, self._wanted = residents, wanted
        self._most = residents.pool.allocator.count // QUEUE_SHARE
        self._queue: deque[NDArray[Any]] = deque()
        self._left_out: deque[NDArray[Any]] = deque()
        """Samples that memory keeps, so that no read brings them again; no more than memory holds."""
        self._pages = 0
        """Pages of the samples in the queue, and of those that are being written."""
        self._reserved = 0
        """Pages of samples that reads bring for the folder."""
        self._under_way: set[int] = set()
        """Numbers of writes."""
        self._last = 0

    def __repr__(self) -> str:
        return f"Writing({len(self._queue)} reads wait, {len(self._under_way)} writes under way, {self._pages} pages)"

    @property
    def room(self) -> int:
        """Pages that the queue has room for."""
        return max(0, self._most - self._pages - self._reserved)

    def reserve(self, pages: int) -> None:
        """A read brings so many pages for the folder; below 0: it has ended."""
        self._reserved += pages

    def add(self, places: NDArray[Any], *, reserved: bool = False) -> None:
        """Samples have come into memory: queue those that are wanted, if there is room, or it was reserved."""
        places = places[self._wanted(places)]
        pages = self._pages_of(places)
        if not reserved and self._pages and self._pages + self._reserved + pages > self._most:
            self._leave_out(places)
        elif len(places):
            self._residents.refer(places)
            self._pages += pages
            self._queue.append(places)

    def add_later(self, places: NDArray[Any]) -> None:
        """Queue samples that memory keeps, when the queue is empty."""
        part = np.cumsum(self._residents.pages_of[places], dtype=np.int64) // max(1, self._most)
        self._left_out += (each for each in np.split(places, np.flatnonzero(np.diff(part)) + 1) if len(each))

    def review(self) -> None:
        """What is wanted has changed: let go of samples that are not wanted any more."""
        waiting = list(self._queue)
        self._queue.clear()
        self._queue += (places for each in waiting if len(places := self._still_wanted(each)))

    def next(self) -> Iterator[Write]:
        """The writes to start now."""
        while len(self._under_way) < WRITES:
            if not self._queue and self._left_out and not self._pages:
                places = self._left_out.popleft()
                self.add(places[self._residents.present(places)])
            elif not self._queue:
                return
            elif len(places := self._still_wanted(self._queue.popleft())):  # another epoch may have queued them, too
                self._last += 1
                self._under_way.add(self._last)
                yield Write(self._last, places, *self._residents.chains(places))

    def ended(self, write: Write) -> None:
        """A write has ended."""
        self._under_way.discard(write.number)
        self._leave(write.places)

    def make_room(self) -> bool:
        """Let go of all samples that wait. Returns whether there were any."""
        found = bool(self._queue)
        while self._queue:
            self._leave_out(self._queue[0])
            self._leave(self._queue.popleft())
        return found

    def end(self) -> None:
        """Nothing more is written."""
        self.make_room()
        self._left_out.clear()

    def _still_wanted(self, places: NDArray[Any]) -> NDArray[Any]:
        """Those of the samples that are still wanted. Lets go of the others."""
        wanted = self._wanted(places)
        self._leave(places[~wanted])
        return places[wanted]

    def _leave_out(self, places: NDArray[Any]) -> None:
        """There is no room in the queue for these samples. No read brings those again that memory keeps."""
        kept = places[self._residents.to_keep(places)]
        if len(kept):
            self._left_out.append(kept)

    def _leave(self, places: NDArray[Any]) -> None:
        self._pages -= self._pages_of(places)
        self._residents.let_go(places)

    def _pages_of(self, places: NDArray[Any]) -> int:
        return int(self._residents.pages_of[places].sum(dtype=np.int64))
