"""Which samples does the cache folder hold, and which reads use it?

A large read uses the folder if the folder holds all samples that the read is for. Otherwise it reads all of them from
the storage. Samples that are read from the storage and have a place in the folder are written to it later (`Writing`).
The planner chooses the places (`ChooseCached`). Until it has, samples wait to be written. If the choice changes with
each epoch, samples without a place are evicted from the folder once they are read for this epoch (`Evictions`).

The queue of writes holds a reference to each sample until it is written, so that the sample's pages are not reused
meanwhile. The queue has a limit: if writes take long, samples are left out. The next epoch reads them again. Samples of
the memory cache are not read again, and are queued when the queue is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.choosing import CacheContents, Placement
from brand.node.decide.state.counters import CacheCounters
from brand.node.decide.state.epoch_table import EpochTable
from brand.node.decide.state.instructions import Forget, Write
from brand.node.memory.residents import Residents
from brand.orders.base.dtypes import Mask
from brand.orders.base.placement import cached_unit
from brand.reprs import Reprs

QUEUE_SHARE: Final = 2
"""Samples that wait to be written take at most `1 / QUEUE_SHARE` of the memory, or one read.

Nothing is written before the planner has chosen the samples that have a place. By then memory may be full. If reads
find no space, the queue is emptied (`make_room`).
"""
WRITES: Final = 4
"""The most writes under way."""


class Writing(Reprs, shows="_queue _under_way _pages"):
    """The queue of one node. `wanted` returns a mask of the samples that belong into it."""

    def __init__(self, residents: Residents, wanted: Callable[[NDArray[Any]], Mask]) -> None:
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
            # Another epoch may have queued the same samples.
            elif len(places := self._still_wanted(self._queue.popleft())):
                self._last += 1
                self._under_way.add(self._last)
                yield Write(self._last, places, *self._residents.chains(places))

    def on_write_ended(self, write: Write) -> None:
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
        """Leave out samples for which the queue has no space. Store those of the memory cache, which no read loads."""
        kept = places[self._residents.to_keep(places)]
        if len(kept):
            self._left_out.append(kept)

    def _leave(self, places: NDArray[Any]) -> None:
        self._pages -= self._pages_of(places)
        self._residents.let_go(places)

    def _pages_of(self, places: NDArray[Any]) -> int:
        return int(self._residents.pages_of[places].sum(dtype=np.int64))


class Evictions(Reprs, shows="moves"):
    """The samples to evict from one folder.

    The choice for an epoch is made while the epoch before it is still read. It takes effect with the first read of its
    epoch: until then, the folder holds the samples that the epoch before still reads from it.
    """

    def __init__(self, samples: int) -> None:
        self._coming: tuple[int, Mask] | None = None
        """The choice that is not in effect yet: number of its first epoch, and a mask of the samples with a place."""
        self._going = np.zeros(samples, np.bool_)
        """Whether each sample is evicted when it is read."""
        self.moves = False
        """Whether samples are evicted at all."""

    @property
    def next_placed(self) -> Mask | None:
        """Mask of the samples with a place by the choice that is not in effect yet. None if there is no such choice."""
        return None if self._coming is None else self._coming[1]

    def stop(self) -> None:
        """Evict nothing from now on."""
        self._coming, self.moves = None, False
        self._going[:] = False

    def store_choice(self, since: int, placed: Mask) -> None:
        """Store a choice. It takes effect with the first read of epoch number `since`, or of a later one."""
        self._coming, self.moves = (since, placed), True

    def is_due(self, number: int) -> bool:
        """Return whether the stored choice takes effect with this read, for epoch number `number`."""
        return self._coming is not None and number >= self._coming[0]

    def apply(self, held: Mask, to_read: Mask) -> tuple[Mask, NDArray[np.intp]]:
        """Put the stored choice into effect. Return the mask of samples with a place, and the places to evict at once.

        `held` is a mask of the folder's samples, `to_read` of the samples that epochs still have to read.
        """
        assert self._coming is not None
        (_, placed), self._coming = self._coming, None
        self._going = held & ~placed
        now = np.flatnonzero(self._going & ~to_read)
        self._going[now] = False
        return placed, now

    def on_read(self, places: NDArray[Any]) -> NDArray[Any]:
        """Note that these samples are in memory. Return those of them to evict now."""
        going: NDArray[Any] = places[self._going[places]]
        self._going[going] = False
        return going


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The samples that have a place in the folder."""

    mask: Mask
    """Whether each sample has a place, shape (samples,)."""
    whole_unit: int = 1
    """Samples of a unit that a miss reads as a whole."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheStart:
    """The facts that a server knows of its cache folder when it starts."""

    folder: str
    sizes: NDArray[np.uint32]
    """Stored size of each place's sample in bytes, shape (samples,)."""
    held: Mask
    """Whether the folder holds each sample, shape (samples,)."""
    limit: int
    """Bytes that the folder's samples may take."""
    stopped: str = ""
    """Why nothing is written. Empty if it is."""
    placement: Placement = "auto"
    epochs: int | None = None
    """Number of epochs of a run. None if the user has not given it."""
    whole_unit: int = 1
    """Samples that the storage reads faster at once than one by one. 1 if there are none."""

    @property
    def mean_bytes(self) -> float:
        return float(self.sizes.mean())

    @property
    def all_fits(self) -> bool:
        return int(self.sizes.sum(dtype=np.int64)) <= self.limit


class Caching(Reprs, shows="stopped _held writing"):
    """The cache folder of one node. `start` is None if there is none.

    `largest`: pages of the largest sample that memory holds, and that can therefore be written.
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
        self.start = start
        self._held = np.zeros(0, np.bool_)
        self.stopped = "off"
        """Why nothing is written. Empty if it is."""
        if start is not None:
            self._held, self.stopped = start.held.copy(), start.stopped
        self._placed: Placed | None = None
        """The samples that have a place in the folder. None if the planner has not chosen."""
        self._evictions = Evictions(len(self._held))
        self._spoilt = np.zeros(len(self._held), np.bool_)
        """Whether each sample is in a chunk whose files could not be read. Such samples are not written again."""
        self._lost: deque[Forget] = deque()
        """Samples that the folder still has to forget."""
        self.writing = Writing(residents, self.wanted)

    def holds(self, places: NDArray[Any]) -> Mask:
        return np.zeros(len(places), np.bool_) if self.start is None else self._held[places]

    def shelf(
        self, kept_unit: int | None, lives: EpochTable, *, later: bool = False, whole: bool = False
    ) -> CacheContents | None:
        """Return the facts that the planner needs to choose the samples to write. None if nothing is written.

        `later`: the choice is for a coming epoch, and for the folder's contents then. `whole`: misses may read units.
        """
        start = self.start
        if start is None or self.stopped:
            return None
        every = np.arange(len(self._held))
        held, coming = self._held.copy(), self._evictions.next_placed
        placed = self._placed.mask if coming is None and self._evictions.moves and self._placed is not None else coming
        if later and placed is not None:
            held = placed & (held | lives.waited_for(len(every)) | self._residents.present(every))
        able = self._residents.pages_of <= self._largest
        near, whole_unit = self._residents.to_keep(every), start.whole_unit if whole else 1
        unit = max(self.unit(kept_unit), whole_unit)
        return CacheContents(start.sizes, held, able, near, start.limit, unit, whole=whole_unit > 1)

    def unit(self, kept_unit: int | None) -> int:
        """Return the samples that are placed together if the memory cache holds `kept_unit` of them together."""
        assert self.start is not None
        return cached_unit(kept_unit, self._chunk_size, self.start.mean_bytes)

    @property
    def whole_unit(self) -> int:
        """Samples of a unit that a miss reads as a whole. 1 if it reads only the missing sample."""
        return 1 if self._placed is None or self.stopped else self._placed.whole_unit

    def on_choice(self, placed: Mask, since: int | None, whole_unit: int) -> None:
        """Apply the planner's choice of samples that have a place, from epoch number `since` on; at once if None.

        A miss reads whole units of `whole_unit` samples.
        """
        if self.stopped:
            return
        if since is not None:
            self._evictions.store_choice(since, placed)
            return
        self._evictions.stop()
        self._placed = Placed(placed, whole_unit)
        self.writing.review()
        self.writing.add_later(np.flatnonzero(placed & ~self._held & self._residents.kept()))

    def on_read_started(self, number: int, lives: EpochTable) -> None:
        """Note that a read for an epoch begins. The first one puts the choice for this epoch into effect."""
        if self._evictions.is_due(number):
            placed, gone = self._evictions.apply(self._held, lives.waited_for(len(self._held)))
            self._placed = Placed(placed)
            self._drop(gone)
            self.writing.review()

    def on_samples(self, places: NDArray[Any], *, reserved: bool = False) -> None:
        """Queue samples of a read for writing if they have a place and are not held.

        Samples that have lost their place are evicted from the folder. `reserved`: the queue has space for all of them.
        """
        if len(places) and not self.stopped:
            self._drop(self._evictions.on_read(places))
            self.writing.add(places, reserved=reserved)

    def instructions(self) -> Iterator[Write | Forget]:
        """Yield the next instructions for the thread that writes."""
        while self._lost:
            yield self._lost.popleft()
        if self._placed is not None and not self.stopped:
            yield from self.writing.next()

    def on_write_ended(self, write: Write, held: Mask, stopped: str) -> None:
        """Record a write that has ended: whether the folder holds each sample now, and why it is `stopped`, if so."""
        wanted = self.wanted(write.places)
        new, late = write.places[held & wanted], write.places[held & ~wanted & ~self._held[write.places]]
        self._held[new] = True
        self._drop(late)  # they lost their places during the write
        self._counters.add_written(self._bytes(new))
        self.writing.on_write_ended(write)
        if stopped and not self.stopped:
            self.stopped = stopped
            self._evictions.stop()
            self.writing.stop()

    def on_read_failed(self, places: NDArray[Any]) -> None:
        """Stop reading and writing the chunks of these samples, since a read of the folder has failed."""
        for number in np.unique(places // self._chunk_size).tolist():
            which = slice(number * self._chunk_size, (number + 1) * self._chunk_size)
            self._counters.add_lost(int(self._held[which].sum()))
            self._held[which] = False
            self._spoilt[which] = True
        self._lost.append(Forget(places, parts=True))

    def forget_wrong(self, places: NDArray[Any]) -> None:
        """Forget samples with wrong checksums, so that they are read from the storage and written again."""
        if self.start is not None:
            places = places[self._held[places]]
            self._counters.add_lost(len(places))
            self._drop(places)

    def facts(self) -> dict[str, Any] | None:
        """Return the contents and the counters of the folder, as plain values. None if there is no folder."""
        start = self.start
        if start is None:
            return None
        state = "filling"
        if self._evictions.moves:
            state = "changing"
        elif self._placed is not None and not (self._placed.mask & ~self._held & ~self._spoilt).any():
            state = "full"
        return {
            "folder": start.folder,
            "limit": start.limit,
            "used": self._bytes(self._held),
            "cached": int(np.count_nonzero(self._held)),
            **self._counters.to_json(),
            "state": self.stopped or state,
        }

    def _drop(self, places: NDArray[Any]) -> None:
        if len(places):
            self._held[places] = False
            self._lost.append(Forget(places, parts=False))

    def wanted(self, places: NDArray[Any]) -> Mask:
        """Return a mask of the samples that have a place, as far as it is chosen, and are not held."""
        wanted: Mask = ~self._held[places] & ~self._spoilt[places]
        return wanted if self._placed is None else wanted & self._placed.mask[places]

    def _bytes(self, places: NDArray[Any]) -> int:
        return 0 if self.start is None else int(self.start.sizes[places].sum(dtype=np.int64))
