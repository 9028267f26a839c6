"""Which prepared samples make room for others? Those that no rank of this node will draw in an epoch under way.

Where that is not enough, samples of runs that have not drawn for a while make room for the other runs. A look goes over
all places, so looks are rare: after enough was copied, or once in a while.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brand.node.decide.ahead import Aheads
from brand.node.memory.prepared import MADE, PreparedMemory
from brand.node.wire.numbers import RunNumber

IDLE_S: Final = 2.0
"""A run that has not drawn for so long makes room for others."""
LOOK_S: Final = 1.0
"""How long after a look the next one comes, where little was copied."""
COPIED_SHARE: Final = 64
"""A look is worth it once `1 / COPIED_SHARE` of the memory was copied."""
CLEARED_SHARE: Final = 16
"""A look makes at most `1 / CLEARED_SHARE` of the memory free, unless more is needed: the rest may be drawn again."""


class Clearing:
    """Makes room in the memory of prepared samples."""

    def __init__(self, memory: PreparedMemory, aheads: Aheads) -> None:
        self._memory, self._aheads = memory, aheads
        self._looked_s = -np.inf

    def __repr__(self) -> str:
        return f"Clearing({self._memory!r})"

    def make_room(self, pages: int, run: RunNumber, now_s: float) -> None:
        """Make `pages` free for a run, as far as that is possible."""
        memory, count = self._memory, self._memory.allocator.count
        early = now_s - self._looked_s < LOOK_S and memory.released < max(pages, count // COPIED_SHARE)
        if memory.allocator.free >= pages or early:
            return
        self._looked_s = now_s
        enough = max(pages, count // CLEARED_SHARE)
        self._clear(enough, None)
        if memory.allocator.free < enough:
            memory.looked()
        busy = self._aheads.busy(now_s - IDLE_S)
        if memory.allocator.free < pages and run in busy:
            self._clear(pages, busy)
            self._aheads.rewind()

    def _clear(self, pages: int, runs: set[RunNumber] | None) -> None:
        """Free samples that none of these runs will draw (None: no run), until `pages` are free."""
        memory = self._memory
        for want in memory:
            shelf = memory[want]
            places = shelf.all(MADE)
            idle = places[~shelf.copied(places) & ~self._aheads.undrawn(want, places, runs)]
            enough = int(np.searchsorted(np.cumsum(shelf.pages(idle)), pages - memory.allocator.free)) + 1
            if pages > memory.allocator.free:
                shelf.free(idle[:enough])
