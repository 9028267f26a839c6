"""Which samples do the cache folders hold, and which reads use them?

A large read uses a folder if the folder holds all samples that the read is for. Otherwise it reads all of them from
the storage. Samples that are read from the storage and have a place in a folder are written to it later (`Writing`).
The planner chooses the places (`ChooseCached`). Until it has, samples wait to be written. If the choice changes with
each epoch, samples without a place are evicted from their folder once they are read for this epoch (`Evictions`).

Folders have numbers from 1 on, the fastest one first. 0 stands for no folder.

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

Folders = NDArray[np.int8]
"""A cache folder for each of some samples."""


class Writing(Reprs, shows="_queue _under_way _pages"):
    """The queue of one node. `target` returns the folder to which each sample is to be written; 0 if to none."""

    def __init__(self, residents: Residents, target: Callable[[NDArray[Any]], Folders]) -> None:
        self._residents, self._target = residents, target
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
        places = places[self._target(places) > 0]
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
                targets = self._target(places)
                first, folder = targets == targets[0], int(targets[0])
                if not first.all():
                    self._queue.appendleft(places[~first])
                self._last += 1
                self._under_way.add(self._last)
                yield Write(self._last, folder, places[first], *self._residents.chains(places[first]))

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
        wanted = self._target(places) > 0
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
    """The samples to evict from the folders.

    The choice for an epoch is made while the epoch before it is still read. It takes effect with the first read of its
    epoch: until then, the folders hold the samples that the epoch before still reads from them. When the ranks here are
    settled, in the middle of an epoch, the choice for the rest of it and that for the next one follow each other.
    """

    def __init__(self, samples: int) -> None:
        self._coming: list[tuple[int, Folders]] = []
        """Choices that are not in effect yet, in order: number of the first epoch, and the folder of each sample."""
        self._going = np.zeros(samples, np.bool_)
        """Whether each sample is evicted when it is read."""
        self.moves = False
        """Whether samples are evicted at all."""

    @property
    def next_placed(self) -> Folders | None:
        """The folder of each sample by the last choice that is not in effect yet. None if there is no such choice."""
        return self._coming[-1][1] if self._coming else None

    def stop(self) -> None:
        """Evict nothing from now on."""
        self._coming, self.moves = [], False
        self._going[:] = False

    def store_choice(self, since: int, placed: Folders) -> None:
        """Store a choice. It takes effect with the next read of epoch number `since`, or of a later one."""
        earlier = [coming for coming in self._coming if coming[0] < since]
        self._coming, self.moves = [*earlier, (since, placed)], True

    def is_due(self, number: int) -> bool:
        """Return whether a stored choice takes effect with this read, for epoch number `number`."""
        return bool(self._coming) and number >= self._coming[0][0]

    def apply(self, number: int, held: Folders, to_read: Mask) -> tuple[Folders, NDArray[np.intp]]:
        """Put the last stored choice that is due with a read for epoch number `number` into effect.

        Return the folder of each sample, and the places to evict at once.

        `held` is the folder that holds each sample, `to_read` a mask of the samples that epochs still have to read.
        """
        placed = [placed for since, placed in self._coming if since <= number][-1]
        self._coming = [coming for coming in self._coming if coming[0] > number]
        self._going = (held > 0) & (placed != held)
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
    """The samples that have a place in a folder."""

    folders: Folders
    """The folder in which each sample has a place, shape (samples,)."""
    whole_unit: int = 1
    """Samples of a unit that a miss reads as a whole."""


@dataclass(frozen=True, slots=True, eq=False)
class FolderStart:
    """The facts that a server knows of one of its cache folders when it starts."""

    folder: str
    held: Mask
    """Whether the folder holds each sample, shape (samples,)."""
    limit: int
    """Bytes that the folder's samples may take."""
    stopped: str = ""
    """Why nothing is written. Empty if it is."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheStart:
    """The facts that a server knows of its cache folders when it starts."""

    folders: tuple[FolderStart, ...]
    """At least one, the fastest one first."""
    sizes: NDArray[np.uint32]
    """Stored size of each place's sample in bytes, shape (samples,)."""
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
        return int(self.sizes.sum(dtype=np.int64)) <= sum(folder.limit for folder in self.folders)


class Caching(Reprs, shows="stopped _held writing"):
    """The cache folders of one node. `start` is None if there are none.

    `largest`: pages of the largest sample that memory holds, and that can therefore be written.
    """

    def __init__(
        self,
        residents: Residents,
        chunk_size: int,
        largest: int,
        counters: list[CacheCounters],
        start: CacheStart | None = None,
    ) -> None:
        self._residents, self._chunk_size, self._largest, self._counters = residents, chunk_size, largest, counters
        self.start = start
        folders = () if start is None else start.folders
        counters += [CacheCounters() for _ in folders]
        self._stops = [folder.stopped for folder in folders]
        """For each folder, why nothing is written to it. Empty if something is."""
        self._held = np.zeros(0 if start is None else len(start.sizes), np.int8)
        """The folder that holds each sample, shape (samples,)."""
        self._lost: deque[Forget] = deque()
        """Samples that the folders still have to forget."""
        for number, folder in enumerate(folders, 1):
            twice = np.flatnonzero(folder.held & (self._held > 0))
            if len(twice) and not folder.stopped:  # a faster folder holds them, too
                self._lost.append(Forget(number, twice, parts=False))
            self._held[folder.held & (self._held == 0)] = number
        self._placed: Placed | None = None
        """The samples that have a place in a folder. None if the planner has not chosen."""
        self._evictions = Evictions(len(self._held))
        self._spoilt = np.zeros(len(self._held), np.bool_)
        """Whether each sample is in a chunk whose files could not be read. Such samples are not written again."""
        self.writing = Writing(residents, self._target)

    @property
    def stopped(self) -> str:
        """Why nothing is written to any folder. Empty if something is."""
        return "off" if self.start is None else "" if "" in self._stops else self._stops[0]

    def holds(self, places: NDArray[Any]) -> Folders:
        """Return the folder that holds each of these samples."""
        return np.zeros(len(places), np.int8) if self.start is None else self._held[places]

    def shelf(
        self, kept_unit: int | None, lives: EpochTable, *, later: bool = False, whole: bool = False
    ) -> CacheContents | None:
        """Return the facts that the planner needs to choose the samples to write. None if nothing is written.

        `later`: the choice is for a coming epoch, and for the folders' contents then. `whole`: misses may read units.
        """
        start = self.start
        if start is None or self.stopped:
            return None
        every = np.arange(len(self._held))
        written = self._written()
        stays = ~written[self._held] & (self._held > 0)  # in a folder that is not written any more
        held, coming = np.where(stays, np.int8(0), self._held), self._evictions.next_placed
        placed = coming
        if coming is None and self._evictions.moves and self._placed is not None:
            placed = self._placed.folders
        if later and placed is not None:
            there = (held > 0) | lives.waited_for(len(every)) | self._residents.present(every)
            held = np.where(there, placed, np.int8(0))
        able = (self._residents.pages_of[:] <= self._largest) & ~stays
        near, whole_unit = self._residents.to_keep(every), start.whole_unit if whole else 1
        unit = max(self.unit(kept_unit), whole_unit)
        limits = np.where(written[1:], [folder.limit for folder in start.folders], 0)
        return CacheContents(start.sizes, held, able, near, limits, unit, whole=whole_unit > 1)

    def unit(self, kept_unit: int | None) -> int:
        """Return the samples that are placed together if the memory cache holds `kept_unit` of them together."""
        assert self.start is not None
        return cached_unit(kept_unit, self._chunk_size, self.start.mean_bytes)

    @property
    def whole_unit(self) -> int:
        """Samples of a unit that a miss reads as a whole. 1 if it reads only the missing sample."""
        return 1 if self._placed is None or self.stopped else self._placed.whole_unit

    def on_choice(self, placed: Folders, since: int | None, whole_unit: int) -> None:
        """Apply the planner's choice of the folder of each sample, from epoch number `since` on; at once if None.

        A miss reads whole units of `whole_unit` samples.
        """
        if self.stopped:
            return
        if since is not None:
            self._evictions.store_choice(since, placed)
            return
        self._evictions.stop()
        self._placed = Placed(placed, whole_unit)
        self._drop(np.flatnonzero((self._held > 0) & (placed > 0) & (placed != self._held)))  # to another folder
        self.writing.review()
        kept = self._residents.kept_places()
        self.writing.add_later(kept[(placed[kept] > 0) & (self._held[kept] == 0)])

    def on_read_started(self, number: int, lives: EpochTable) -> None:
        """Note that a read for an epoch begins. The first one puts the choice for this epoch into effect."""
        if self._evictions.is_due(number):
            moving = np.where(self._written()[self._held], self._held, np.int8(0))
            placed, gone = self._evictions.apply(number, moving, lives.waited_for(len(self._held)))
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
        wanted, folder = self._target(write.places) == write.folder, write.folder
        new, late = write.places[held & wanted], write.places[held & ~wanted & (self._held[write.places] != folder)]
        self._held[new] = folder
        if len(late):  # they lost their places during the write
            self._lost.append(Forget(folder, late, parts=False))
        self._counters[folder - 1].add_written(self._bytes(new))
        self.writing.on_write_ended(write)
        if stopped and not self._stops[folder - 1]:
            self._stops[folder - 1] = stopped
            if self.stopped:
                self._evictions.stop()
                self.writing.stop()

    def on_read_failed(self, places: NDArray[Any], folders: Folders) -> None:
        """Stop reading and writing the chunks of these samples, since reads of these folders have failed."""
        for folder in np.unique(folders).tolist():
            mine = places[folders == folder]
            for number in np.unique(mine // self._chunk_size).tolist():
                which = slice(number * self._chunk_size, (number + 1) * self._chunk_size)
                lost = self._held[which] == folder
                self._counters[folder - 1].add_lost(int(np.count_nonzero(lost)))
                self._held[which][lost] = 0
                self._spoilt[which] = True
            self._lost.append(Forget(folder, mine, parts=True))

    def forget_wrong(self, places: NDArray[Any]) -> None:
        """Forget samples with wrong checksums, so that they are read from the storage and written again."""
        if self.start is not None:
            places = places[self._held[places] > 0]
            for counters, lost in zip(self._counters, self._by_folder(self._held[places]), strict=True):
                counters.add_lost(int(lost.sum()))
            self._drop(places)

    def facts(self) -> dict[str, Any] | None:
        """Return the contents and the counters of the folders, as plain values. None if there is no folder."""
        start = self.start
        if start is None:
            return None
        placed = np.zeros(len(self._held), np.int8) if self._placed is None else self._placed.folders
        missing = np.where((self._held == 0) & ~self._spoilt, placed, np.int8(0))
        each: list[dict[str, Any]] = [
            {
                "folder": folder.folder,
                "limit": folder.limit,
                "used": used,
                "cached": int(np.count_nonzero(self._held == number)),
                **self._counters[number - 1].to_json(),
                "state": self._stops[number - 1] or self._state((missing == number).any()),
            }
            for number, (folder, used) in enumerate(zip(start.folders, self._used(), strict=True), 1)
        ]
        first, state = each[0], self.stopped or self._state(missing.any())
        total = {name: sum(facts[name] for facts in each) for name in first if name not in ("folder", "state")}
        return {"folder": ", ".join(facts["folder"] for facts in each), **total, "state": state, "folders": each}

    def _state(self, missing: np.bool_) -> str:
        """Return the state of folders that are written. `missing`: some samples that have a place are not there."""
        return "changing" if self._evictions.moves else "filling" if self._placed is None or missing else "full"

    def _drop(self, places: NDArray[Any]) -> None:
        for number, mine in enumerate(self._by_folder(self._held[places]), 1):
            if mine.any():
                self._lost.append(Forget(number, places[mine], parts=False))
        self._held[places] = 0

    def wanted(self, places: NDArray[Any]) -> Mask:
        """Return a mask of the samples that have a place, as far as it is chosen, and are not held."""
        return self._target(places) > 0

    def _target(self, places: NDArray[Any]) -> Folders:
        """Return the folder to which each sample is to be written; the first one if it is not chosen. 0 if to none."""
        wanted = (self._held[places] == 0) & ~self._spoilt[places]
        placed = np.ones(len(places), np.int8) if self._placed is None else self._placed.folders[places]
        return np.where(wanted & self._written()[placed], placed, np.int8(0))

    def _written(self) -> Mask:
        """Return whether each folder is written, by number; False for number 0."""
        return np.array([False, *(not stopped for stopped in self._stops)])

    def _by_folder(self, folders: Folders) -> Iterator[Mask]:
        """Yield a mask of `folders` for each folder."""
        return (folders == number for number in range(1, len(self._stops) + 1))

    def _used(self) -> list[int]:
        """Return the bytes of the samples in each folder."""
        return [self._bytes(mine) for mine in self._by_folder(self._held)]

    def _bytes(self, places: NDArray[Any]) -> int:
        return 0 if self.start is None else int(self.start.sizes[places].sum(dtype=np.int64))
