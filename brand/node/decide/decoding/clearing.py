"""Which decoded samples are evicted for others? Those whose next draw is the latest, and later than that of the others.

Samples that no rank of this node will draw in an epoch under way are evicted first. Draws of a run that has not drawn
for a while do not count. A search visits all places. After a search that found too little, the next one waits until
enough samples were copied or some time has passed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brand.node.decide.decoding.ahead import DecodeAheadTable
from brand.node.memory.decoded import MADE, PreparedMemory
from brand.node.wire.numbers import RunNumber

LOOK_S: Final = 1.0
"""Time between a search that found too little and the next one, if few samples were copied."""
COPIED_SHARE: Final = 64
"""A search is worthwhile once `1 / COPIED_SHARE` of the memory was copied."""
CLEARED_SHARE: Final = 16
"""A search frees `1 / CLEARED_SHARE` of the memory, from samples that no rank will draw, for those decoded next."""


class Clearing:
    """Evicts decoded samples."""

    def __init__(self, memory: PreparedMemory, aheads: DecodeAheadTable) -> None:
        self._memory, self._aheads = memory, aheads
        self._looked_s = -np.inf
        self._lead = np.inf
        """The last search found too little for samples of this lead; infinity if it found enough."""

    def __repr__(self) -> str:
        return f"Clearing({self._memory!r})"

    def make_room(self, pages: int, lead: float, runs: set[RunNumber], now_s: float) -> None:
        """Free `pages` pages for samples of these runs with at most this lead, as far as possible."""
        memory, count = self._memory, self._memory.allocator.count
        recent = now_s - self._looked_s < LOOK_S and memory.released < max(pages, count // COPIED_SHARE)
        if memory.allocator.free >= pages or (recent and lead >= self._lead):
            return
        self._looked_s = now_s
        self._clear(max(pages, count // CLEARED_SHARE), np.inf, runs)
        self._clear(pages, lead, runs)
        memory.looked()
        self._lead = lead if memory.allocator.free < pages else np.inf
        self._aheads.rewind()

    def _clear(self, pages: int, lead: float, runs: set[RunNumber]) -> None:
        """Evict samples until `pages` pages are free: those whose lead in these runs is longer, or infinite."""
        memory = self._memory
        for want in memory:
            shelf = memory[want]
            places = shelf.all(MADE)
            places = places[~shelf.copied(places)]
            leads = self._aheads.leads(want, places, runs)
            order = np.argsort(-leads, kind="stable")
            order = order[: int(np.count_nonzero((leads > lead) | (leads == np.inf)))]
            missing = pages - memory.allocator.free
            enough = int(np.searchsorted(np.cumsum(shelf.pages(places[order])), missing)) + 1
            if missing > 0:
                shelf.free(places[order[:enough]])
