"""Looks for chunks in the page cache, among those that an epoch has still to read. The threads that read do this.

If the page cache holds a chunk, it is likely to hold the next chunks. A look costs a tenth of a read that the loop
decides, starts and ends. So the thread that has found a chunk in the page cache looks at the chunks that the plan reads
next: a few, and twice as many with each look, until a chunk is missing. One thread looks at a time. Other threads
continue with their reads, so the first draws do not wait for looks.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.plan import EpochPlan
from brand.reprs import Reprs

FEWEST: Final = 4
"""Number of chunks of a first look."""
MOST: Final = 64
"""Maximum number of chunks of one look. Each look delays the end of the thread's own read."""


class Scout(Reprs, shows="_seen _order _most"):
    """Looks ahead. `holds` returns whether the page cache holds a chunk. Any thread may use it."""

    def __init__(self, holds: Callable[[int], bool]) -> None:
        self.holds = holds
        self._looking = threading.Lock()
        """Guards the attributes below."""
        self._reads: weakref.ref[NDArray[np.void]] | None = None
        """The reads of the plan of the last look. A weak reference, so that a plan that has ended is freed."""
        self._order: NDArray[np.int32] = np.arange(0, dtype=np.int32)
        """The chunks of that plan, by their first reads."""
        self._seen, self._most = 0, FEWEST
        """Number of these chunks that were read or looked at, and maximum number for the next look."""

    def beyond(self, plan: EpochPlan, chunk: int) -> list[int]:
        """Return the next chunks after `chunk` that the page cache holds, in the order of the plan's first reads.

        The list is empty if another thread looks, or if each sample is a read of its own.
        """
        if plan.reads is None or not self._looking.acquire(blocking=False):
            return []
        try:
            if self._reads is None or self._reads() is not plan.reads:
                chunks, firsts = np.unique(plan.reads["chunk"], return_index=True)
                self._reads, self._order = weakref.ref(plan.reads), chunks[np.argsort(firsts)]
                self._seen, self._most = 0, FEWEST
            self._seen = max(self._seen, int(np.flatnonzero(self._order == chunk)[0]) + 1)
            return self._look()
        finally:
            self._looking.release()

    def _look(self) -> list[int]:
        """Return the next chunks, up to the first that the page cache lacks."""
        held: list[int] = []
        for chunk in self._order[self._seen : self._seen + self._most].tolist():
            self._seen += 1
            if not self.holds(chunk):
                self._most = FEWEST
                return held
            held.append(chunk)
        self._most = min(MOST, 2 * self._most)
        return held
