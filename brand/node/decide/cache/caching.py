"""Which samples does the cache folder hold, and which reads use it?

A large read uses the folder if the folder holds all samples that the read is for. Otherwise it reads all of them from
the storage. Samples that are read from the storage and have a place in the folder are written to it later (`Writing`).
The planner chooses the places (`ChooseCached`). Until it has, samples wait to be written. If the choice changes with
each epoch, samples without a place are evicted from the folder (`Leaving`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.cache.leaving import Leaving
from brand.node.decide.cache.writing import Writing
from brand.node.decide.state.choosing import CacheContents, Placement
from brand.node.decide.state.counters import CacheCounters
from brand.node.decide.state.epoch_table import EpochTable
from brand.node.decide.state.instructions import Forget, Write
from brand.node.memory.residents import Residents
from brand.orders.base.placement import cached_unit


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The samples that have a place in the folder."""

    mask: NDArray[np.bool_]
    """Whether each sample has a place, shape (samples,)."""
    whole_unit: int = 1
    """Samples of a unit that a miss reads as a whole."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheStart:
    """The facts that a server knows of its cache folder when it starts."""

    folder: str
    sizes: NDArray[np.uint32]
    """Stored size of each place's sample in bytes, shape (samples,)."""
    held: NDArray[np.bool_]
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
        """Mean stored size of a sample."""
        return float(self.sizes.mean())

    @property
    def all_fits(self) -> bool:
        """Whether the folder has space for all samples."""
        return int(self.sizes.sum(dtype=np.int64)) <= self.limit


class Caching:
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
        """The facts that the server has started with."""
        self._held = np.zeros(0, np.bool_)
        self.stopped = "off"
        """Why nothing is written. Empty if it is."""
        if start is not None:
            self._held, self.stopped = start.held.copy(), start.stopped
        self._placed: Placed | None = None
        """The samples that have a place in the folder. None if the planner has not chosen."""
        self._leaving = Leaving(len(self._held))
        self._spoilt = np.zeros(len(self._held), np.bool_)
        """Whether each sample is in a chunk whose files could not be read. Such samples are not written again."""
        self._lost: deque[Forget] = deque()
        """Samples that the folder still has to forget."""
        self.writing = Writing(residents, self.wanted)

    def __repr__(self) -> str:
        return f"Caching({self.stopped or f'{np.count_nonzero(self._held)} held, {self.writing!r}'})"

    def holds(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether the folder holds each of these places, shape (places,)."""
        return np.zeros(len(places), np.bool_) if self.start is None else self._held[places]

    def shelf(
        self, kept_unit: int | None, lives: EpochTable, *, later: bool = False, whole: bool = False
    ) -> CacheContents | None:
        """Return the facts that the planner needs to choose the samples to write. None if nothing is written.

        `later`: the choice is for a coming epoch, and so for the contents that the folder will have then. `whole`:
        misses may read whole units.
        """
        start = self.start
        if start is None or self.stopped:
            return None
        every = np.arange(len(self._held))
        held, coming = self._held.copy(), self._leaving.next_placed
        placed = self._placed.mask if coming is None and self._leaving.moves and self._placed is not None else coming
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

    def on_choice(self, placed: NDArray[np.bool_], since: int | None, whole_unit: int) -> None:
        """Apply the planner's choice of samples that have a place, from epoch number `since` on. None: at once, for
        good.

        A miss reads whole units of `whole_unit` samples.
        """
        if self.stopped:
            return
        if since is not None:
            self._leaving.store_choice(since, placed)
            return
        self._leaving.stop()
        self._placed = Placed(placed, whole_unit)
        self.writing.review()
        self.writing.add_later(np.flatnonzero(placed & ~self._held & self._residents.kept()))

    def on_read_started(self, number: int, lives: EpochTable) -> None:
        """Note that a read for epoch number `number` begins. The first such read puts the choice for this epoch into
        effect.
        """
        if self._leaving.is_due(number):
            placed, gone = self._leaving.apply(self._held, lives.waited_for(len(self._held)))
            self._placed = Placed(placed)
            self._drop(gone)
            self.writing.review()

    def on_samples(self, places: NDArray[Any], *, reserved: bool = False) -> None:
        """Queue samples of a read for writing if they have a place and are not held.

        Samples that have lost their place are evicted from the folder. `reserved`: the queue has space for all of them.
        """
        if len(places) and not self.stopped:
            self._drop(self._leaving.on_read(places))
            self.writing.add(places, reserved=reserved)

    def instructions(self) -> Iterator[Write | Forget]:
        """Yield the next instructions for the thread that writes."""
        while self._lost:
            yield self._lost.popleft()
        if self._placed is not None and not self.stopped:
            yield from self.writing.next()

    def on_write_ended(self, write: Write, held: NDArray[np.bool_], stopped: str) -> None:
        """Record a write that has ended. `held`: whether the folder holds each of its samples now.

        `stopped`: why nothing more can be written. Empty if it can.
        """
        wanted = self.wanted(write.places)
        new, late = write.places[held & wanted], write.places[held & ~wanted & ~self._held[write.places]]
        self._held[new] = True
        if len(late):  # they lost their places during the write
            self._lost.append(Forget(late, parts=False))
        self._counters.add_written(self._bytes(new))
        self.writing.on_write_ended(write)
        if stopped and not self.stopped:
            self.stopped = stopped
            self._leaving.stop()
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
        places = places[self._held[places]] if self.start is not None else places[:0]
        if len(places):
            self._counters.add_lost(len(places))
            self._drop(places)

    def facts(self) -> dict[str, Any] | None:
        """Return the contents and the counters of the folder, as plain values. None if there is no folder."""
        start = self.start
        if start is None:
            return None
        state = "filling"
        if self._leaving.moves:
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
        """Have the folder forget samples that it holds."""
        if len(places):
            self._held[places] = False
            self._lost.append(Forget(places, parts=False))

    def wanted(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the samples that have a place, as far as it is chosen, and are not held."""
        wanted: NDArray[np.bool_] = ~self._held[places] & ~self._spoilt[places]
        return wanted if self._placed is None else wanted & self._placed.mask[places]

    def _bytes(self, places: NDArray[Any]) -> int:
        return 0 if self.start is None else int(self.start.sizes[places].sum(dtype=np.int64))
