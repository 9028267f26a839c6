"""How far is an epoch whose order is decided while ranks draw?

It needs all samples that ranks will draw, and waits for each of them, though most have no position yet. What another
job reads of them it holds. It reads only what is decided. One node has such an epoch for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.division import Division
from brand.node.decide.state.epoch import Epoch, EpochSetting
from brand.node.decide.state.read_queue import ReadQueue
from brand.node.decide.state.states import EARLY, SampleStates
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.plan import EpochPlan
from brand.orders.joader.growing import Growing


class OnlineReadQueue(ReadQueue):
    """Numbers of reads of a plan whose order is `growing`: those of its decided positions, each of one sample.

    A read's number is its position. The queue never reads an undecided position: another job may have read it.
    """

    def __init__(self, plan: EpochPlan, growing: Growing) -> None:
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


class OnlineEpoch(Epoch):
    """The progress of one epoch whose order is `growing`."""

    def __init__(
        self, plan: EpochPlan, division: Division, number: int, setting: EpochSetting, growing: Growing
    ) -> None:
        super().__init__(replace(plan, sample_of=growing.sample_of), division, number, setting)
        self.growing = growing
        self.reads: OnlineReadQueue = OnlineReadQueue(self.plan, growing)

    def decides(self, positions: NDArray[np.int64]) -> bool:
        """Whether it is decided which samples lie at these positions."""
        return int(positions.max()) < self.growing.decided

    def waits_for_reads(self, positions: NDArray[np.int64]) -> bool:
        """Whether any of these positions waits for a read of this node."""
        return self.decides(positions) and super().waits_for_reads(positions)

    def expecting(
        self, ranks: Mapping[int, NodeNumber], fronts: Mapping[int, int], read_of: NDArray[Any] | None = None
    ) -> Iterator[int]:
        """More ranks draw. Which of them draws which sample is open, so the first one has the epoch need all."""
        del fronts, read_of
        first = not self.ranks
        self.ranks |= ranks
        start = self.division.start
        if first and ranks and start < self.division.samples:  # else nothing is read ahead
            places = self.plan.sample_of[min(start, self.growing.decided) :]
            self.states.expect(places[~self._setting.limits.never_held()[places]])
            self.progress.expect(len(places))
            self.reads.look_anew(self.states)
            yield len(places)

    def grows(self, *, anew: bool) -> None:
        """More of the order is decided; `anew`: also what was decided before has changed."""
        if anew:
            self.reads.look_anew(self.states)
        else:
            self.reads.look(self.states)

    def give_up_before(self, position: int) -> NDArray[Any]:
        """No rank asks for a position before this one any more. Returns the places that were held for these."""
        return super().give_up_before(min(position, self.growing.decided))
