"""Which read starts next, and what becomes of its samples?

Reads start in the order in which draws will need them, as far ahead as memory allows. At the end of an epoch, reads for
the next one go into the memory that the last draws free.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.caching import Caching
from brand.node.decide.counters import Counters
from brand.node.decide.epoch import Epoch
from brand.node.decide.epochs import Epochs
from brand.node.decide.lives import Key, Live
from brand.node.decide.receiving import Receiving
from brand.node.decide.tasks import Read, Rows, rows_of
from brand.node.memory.residents import Residents


class Reads:
    """Large reads of one node. Other nodes may fill `remote_pages` of its memory."""

    def __init__(
        self,
        index: Rows,
        residents: Residents,
        epochs: Epochs,
        receiving: Receiving,
        caching: Caching,
        chunk_size: int,
        remote_pages: int,
        counters: Counters,
    ) -> None:
        self._index, self._residents, self._epochs, self._receiving = index, residents, epochs, receiving
        self._chunk_size, self._remote_pages = chunk_size, remote_pages
        self._caching, self._counters = caching, counters
        self._last = 0
        self._again: deque[Read] = deque()
        """Reads that have failed in the cache folder, and now go to the storage."""
        self.on_the_way = 0
        """Reads that have started and not ended."""
        self.no_room = False
        """Whether memory had no room for the next read."""

    def __repr__(self) -> str:
        return f"Reads({self.on_the_way} on the way{', no room for more' if self.no_room else ''})"

    @property
    def stuck(self) -> bool:
        """Whether memory is full, and no read is on its way."""
        return self.no_room and not self.on_the_way

    def next(self) -> Read | None:
        """The read to start now; None: there is none, or memory has no room for it."""
        self.no_room = False
        if self._again:
            return self._begin(self._again.popleft())
        while (epoch := self._most_urgent()) is not None:
            number = epoch.reads.next
            assert number is not None
            due = epoch.to_read(epoch.plan.places_held(number))
            present = self._residents.present(due)
            ready, absent = due[present], due[~present]
            if len(ready):
                self._residents.refer(ready)
                epoch.states.finds(ready)
            if len(absent):
                allocator, needed = self._residents.pool.allocator, int(self._residents.pages_of[absent].sum())
                if needed <= allocator.free - self._receiving.reserve():
                    span = epoch.plan.places_read(number)
                    rows = rows_of(self._index, *span, self._residents.pages_of, allocator.page)
                    if rows is not None:
                        epoch.reads.pop()
                        return self._start(epoch, span, absent, rows)
                    self._counters.reads.failed()
                elif needed < allocator.count - self._remote_pages:
                    self.no_room = True
                    return None
                epoch.states.leaves(absent)  # they never fit, or the index cannot be read: exact reads will say why
            epoch.reads.pop()
        return None

    def done(self, read: Read, *, failed: bool) -> None:
        """A read has ended. Where it failed in the cache folder, it goes to the storage.

        Where it failed in the storage, clients read its samples exactly.
        """
        self.on_the_way -= 1
        if failed and read.cached:
            self._caching.lose(read.places)
            self._last += 1
            self._again.append(replace(read, number=self._last, cached=False))
            return
        if failed:
            self._counters.reads.failed()
        residents, places, states = self._residents, read.places, read.epoch.states
        twice = residents.present(places)  # another epoch's read was faster
        drop = twice | failed
        if drop.any():
            residents.pool.give_back(places[drop], read.heads[drop])
        if failed:
            states.fails(places)
            return
        residents.put(places[~twice], read.heads[~twice])
        if drop.any():
            residents.refer(places[twice])
        self._caching.take(places)
        gone = places[~states.arrives(places)]
        if len(gone):
            residents.let_go(gone)

    def _most_urgent(self) -> Epoch | None:
        """The epoch whose next read is needed in the fewest draws."""
        best, least = None, None
        for key, live in self._epochs.lives.live():
            if live.epoch.reads.next is None:
                continue
            lead = (
                self._before(key, live)
                + live.epoch.reads.deadline
                - live.epoch.progress.start
                - live.epoch.progress.done
            )
            if least is None or lead < least:
                best, least = live.epoch, lead
        return best

    def _before(self, key: Key, live: Live) -> int:
        """How many draws come before an epoch that is read ahead: those left of the previous epoch."""
        behind = self._epochs.get((key[0], key[1] - 1))
        if behind is None or live.begun:
            return 0
        progress = behind.epoch.progress
        return len(self._residents.pages_of) - progress.start - progress.done

    def _start(self, epoch: Epoch, span: tuple[int, int], absent: NDArray[np.intp], rows: NDArray[np.void]) -> Read:
        first, end = span
        held = np.zeros(end - first, np.bool_)
        held[absent - first] = True
        heads, pages = self._residents.pool.take(absent, rows[held])
        epoch.states.starts(absent)
        sizes = rows["size"].astype(np.int64)
        size = int(sizes.sum())
        self._last += 1
        read = Read(
            number=self._last,
            chunk=first // self._chunk_size,
            offset=int(rows["offset"][0]),
            size=size,
            vector=self._residents.pool.vector(sizes, held, pages),
            forget=bool(self._residents.to_keep(absent).all()),  # it will not be read again
            places=absent,
            heads=heads,
            epoch=epoch,
            span=end - first,
            cached=self._caching.holds(absent),
        )
        return self._begin(read)

    def _begin(self, read: Read) -> Read:
        self.on_the_way += 1
        if read.cached:
            self._counters.cache.started(read.size)
        else:
            self._counters.reads.started(read.size, read.span, len(read.places))
        return read
