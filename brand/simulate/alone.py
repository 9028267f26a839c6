"""Which samples does a server that is alone hold after an epoch of its ranks? Its own decisions, block by block.

The ranks of such a server fetch a part of the samples, others in each epoch. So memory and the cache folder fill over
several epochs, and a folder that follows the ranks (`next`, `frequency`) changes with each epoch. `FetchedEpochs` loads
and releases samples in the order of the ranks' draws, block by block. The server's state decides which of them stay in
memory and which are written and evicted. Writes end at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.node_state import NodeState
from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.instructions import Write
from brand.node.decide.stimuli import WriteEnded
from brand.reprs import Reprs


class FetchedEpochs(Reprs, shows="_state"):
    """The epochs that the ranks of a server fetch. No read of its own starts in `state`."""

    def __init__(self, state: NodeState) -> None:
        self._state, self._residents = state, state.core.residents

    def hold_present(self, epoch: Epoch) -> None:
        """Have an epoch hold the samples that it waits for and that are in memory, as its reads would."""
        present = np.flatnonzero(epoch.states.due(slice(None)) & self._residents.present(slice(None)))
        epoch.states.mark_present(present)
        self._residents.refer(present)

    def fetch(self, epoch: Epoch, places: NDArray[Any]) -> None:
        """Load the samples of an epoch at these places, as far as they are due, and release them as drawn."""
        due = places[epoch.states.due(places)]
        pages = np.cumsum(self._residents.pages_of[due], dtype=np.int64)
        first = 0
        while first < len(due):
            taken = int(pages[first - 1]) if first else 0
            end = int(np.searchsorted(pages, taken + self._residents.pool.allocator.free, side="right"))
            self._load(epoch, due[first:end])
            first = max(end, first + 1)  # a sample without space is read directly
        self._residents.let_go(places[epoch.states.release(places)])

    def _load(self, epoch: Epoch, due: NDArray[Any]) -> None:
        caching, residents = self._state.core.caching, self._residents
        caching.on_read_started(epoch.number, self._state.core.epochs.lives)
        heads, _ = residents.pool.take(due)
        residents.put(due, heads)
        epoch.states.mark_present(due)
        caching.on_samples(due)
        self.write(list(caching.instructions()))
        residents.let_go(due[epoch.states.release(due)])

    def write(self, instructions: list[Any]) -> None:
        """Do the writes to the folder among these instructions, and those that follow from them."""
        while instructions:
            for write in instructions:
                if isinstance(write, Write):
                    self._state.handle(WriteEnded(write, np.ones(len(write.places), np.bool_), ""), 0.0)
            instructions = list(self._state.core.caching.instructions())
