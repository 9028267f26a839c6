"""Which chunks does the page cache hold, of those that an epoch has still to read? The threads that read look.

Where the page cache holds a chunk it is likely to hold the next ones, and a look costs a tenth of a read that the loop
decides, starts and ends. So the thread that has found a chunk there looks at those that the plan reads next: a few, and
twice as many with each look, until one is not there. One thread looks at a time, and the others go on with their reads:
so the first draws do not wait for looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from brand.protocol.plan import Plan

FEWEST: Final = 4
"""The chunks of a first look."""
MOST: Final = 64
"""The most chunks of one look: the read that it belongs to ends some milliseconds later."""


class Scout:
    """Looks ahead. `holds` says whether the page cache holds a chunk. Any thread may use it."""

    def __init__(self, holds: Callable[[int], bool]) -> None:
        self.holds = holds
        self._looking = threading.Lock()
        """Its holder owns what follows."""
        self._plan: Plan | None = None
        self._order: list[int] = []
        """The chunks of the plan, by their first reads."""
        self._seen, self._most = 0, FEWEST
        """How many of them were read or looked at, and how many the next look may look at."""

    def __repr__(self) -> str:
        return f"Scout({self._seen} of {len(self._order)} chunks, the next {self._most})"

    def beyond(self, plan: Plan, chunk: int) -> list[int]:
        """Chunks that the page cache holds, from the one behind `chunk` on, in the order of the plan's first reads.

        None of them where another thread looks.
        """
        if plan.reads is None or not self._looking.acquire(blocking=False):
            return []
        try:
            if plan is not self._plan:
                chunks, firsts = np.unique(plan.reads["chunk"], return_index=True)
                self._plan, self._order, self._seen, self._most = plan, chunks[np.argsort(firsts)].tolist(), 0, FEWEST
            self._seen = max(self._seen, self._order.index(chunk) + 1)
            return self._look()
        finally:
            self._looking.release()

    def _look(self) -> list[int]:
        """The next chunks, up to the first that is not there."""
        held: list[int] = []
        for chunk in self._order[self._seen : self._seen + self._most]:
            self._seen += 1
            if not self.holds(chunk):
                self._most = FEWEST
                return held
            held.append(chunk)
        self._most = min(MOST, 2 * self._most)
        return held
