"""Which reads of an epoch whose order grows have not started? Those of its decided positions, each of one sample.

A read's number is its position. What is not decided is read by nobody for this epoch: it may lie in memory because
another job has read it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.read_queue import ReadQueue
from brand.node.decide.states import EARLY, SampleStates
from brand.protocol.growing import Growing
from brand.protocol.plan import Plan


class GrowingQueue(ReadQueue):
    """Numbers of reads of a plan whose order is `growing`."""

    def __init__(self, plan: Plan, growing: Growing) -> None:
        super().__init__(plan)
        self._growing = growing
        self._known = 0
        """Positions before this one have been looked at."""

    def look(self, states: SampleStates) -> None:
        """More of the order is decided: start the reads that bring what is due of it."""
        positions = np.arange(self._known, self._growing.decided)
        places = self._growing.sample_of[self._known : self._growing.decided]
        wanted = positions[states.due(places) | states.are(EARLY, places)]
        self._soon, self._at = np.concatenate((self.rest(), wanted), dtype=np.int32), 0
        self._known = self._growing.decided

    def look_anew(self, states: SampleStates) -> None:
        """From now on start the reads that bring what is due of all that is decided."""
        self._soon, self._at, self._known = np.arange(0, dtype=np.int32), 0, 0
        self.look(states)

    def deadlines(self, places: NDArray[Any]) -> NDArray[Any]:
        """The position of each place; infinity, where that is not decided."""
        return self._growing.positions(places)

    def put_back(self, places: NDArray[Any]) -> None:
        """The reads of these places are to start at their time, as far as that is decided."""
        positions = self._growing.position_of[places]
        self._soon, self._at = np.union1d(self.rest(), positions[positions < self._known]).astype(np.int32), 0
