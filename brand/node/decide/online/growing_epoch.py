"""How far is an epoch whose order is decided while ranks draw?

The epoch needs all samples that ranks will draw and waits for each of them, although most have no position yet. It
holds the samples of these that another job reads, and reads only samples with a decided position. Each node has such an
epoch for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Division, Epoch, EpochSetting
from brand.node.decide.state.states import EARLY, ReadQueue, SampleStates
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.plan import EpochPlan
from brand.orders.joader.growing import Growing


class OnlineReadQueue(ReadQueue):
    """Numbers of the reads of a plan with an online order: one read of one sample for each decided position.

    A read's number is its position. The queue never reads an undecided position, because another job may have read it.
    """

    def __init__(self, plan: EpochPlan, growing: Growing) -> None:
        super().__init__(plan)
        self._growing = growing
        self._known = 0
        """Positions before this one have been visited."""

    def look(self, states: SampleStates) -> None:
        """Queue the reads of due samples at positions that were decided since the last call."""
        positions = np.arange(self._known, self._growing.decided)
        places = self._growing.sample_of[self._known : self._growing.decided]
        wanted = positions[states.due(places) | states.are(EARLY, places)]
        self._soon, self._at = np.concatenate((self.rest(), wanted), dtype=np.int32), 0
        self._known = self._growing.decided

    def look_anew(self, states: SampleStates) -> None:
        """Queue the reads of due samples at all decided positions."""
        self._soon, self._at, self._known = np.arange(0, dtype=np.int32), 0, 0
        self.look(states)

    def deadlines(self, places: NDArray[Any]) -> NDArray[Any]:
        """Return the position of each place, infinity if it is not decided."""
        return self._growing.positions(places)

    def put_back(self, places: NDArray[Any]) -> None:
        """Queue the reads of these places again at their deadlines, as far as these are decided."""
        positions = self._growing.position_of[places]
        self._soon, self._at = np.union1d(self.rest(), positions[positions < self._known]).astype(np.int32), 0


class OnlineEpoch(Epoch):
    """The progress of one epoch with an online order."""

    def __init__(
        self, plan: EpochPlan, division: Division, number: int, setting: EpochSetting, growing: Growing
    ) -> None:
        super().__init__(replace(plan, sample_of=growing.sample_of), division, number, setting)
        self.growing = growing
        self.reads: OnlineReadQueue = OnlineReadQueue(self.plan, growing)

    def decides(self, positions: NDArray[np.int64]) -> bool:
        """Return whether the samples at these positions are decided."""
        return int(positions.max()) < self.growing.decided

    def waits_for_reads(self, positions: NDArray[np.int64]) -> bool:
        """Return whether any of these positions waits for a read of this node."""
        return self.decides(positions) and super().waits_for_reads(positions)

    def expecting(
        self, ranks: Mapping[int, NodeNumber], fronts: Mapping[int, int], read_of: NDArray[Any] | None = None
    ) -> Iterator[int]:
        """Note that more ranks draw. The rank of each sample is open, so the first rank makes the epoch need all
        samples.
        """
        del fronts, read_of
        first = not self.ranks
        self.ranks |= ranks
        start = self.division.start
        if first and ranks and start < self.division.samples:  # if not, nothing is read ahead
            places = self.plan.sample_of[min(start, self.growing.decided) :]
            self.states.expect(places[~self._setting.limits.never_held()[places]])
            self.progress.expect(len(places))
            self.reads.look_anew(self.states)
            yield len(places)

    def on_growth(self, *, anew: bool) -> None:
        """Note that more of the order is decided; `anew`: earlier positions have changed, too."""
        if anew:
            self.reads.look_anew(self.states)
        else:
            self.reads.look(self.states)

    def give_up_before(self, position: int) -> NDArray[Any]:
        """Release the positions before this one, for which no rank asks any more. Return the places that were held for
        them.
        """
        return super().give_up_before(min(position, self.growing.decided))
