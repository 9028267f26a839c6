"""Which prepared samples make room for others? Those whose next draw is farthest, and farther than that of the others.

Samples that no rank of this node will draw in an epoch under way go first. Draws of a run that has not drawn for a
while do not count. A look goes over all places, so a look that finds too little is not repeated until enough was
copied, or some time has passed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brand.node.decide.decoding.ahead import DecodeAheadTable
from brand.node.memory.prepared import MADE, PreparedMemory
from brand.node.wire.numbers import RunNumber

LOOK_S: Final = 1.0
"""How long after a look that found too little the next one comes, where little was copied."""
COPIED_SHARE: Final = 64
"""A look is worth it once `1 / COPIED_SHARE` of the memory was copied."""
CLEARED_SHARE: Final = 16
"""A look makes `1 / CLEARED_SHARE` of the memory free of samples that no rank will draw: others may be soon."""


class Clearing:
    """Makes room in the memory of prepared samples."""

    def __init__(self, memory: PreparedMemory, aheads: DecodeAheadTable) -> None:
        self._memory, self._aheads = memory, aheads
        self._looked_s = -np.inf
        self._lead = np.inf
        """The last look found too little for samples of this lead; infinity: it found enough."""

    def __repr__(self) -> str:
        return f"Clearing({self._memory!r})"

    def make_room(self, pages: int, lead: float, runs: set[RunNumber], now_s: float) -> None:
        """Make `pages` free for samples of these runs with at most this lead, as far as that is possible."""
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
        """Free samples until `pages` are free: those whose lead in these runs is longer, or infinite."""
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
