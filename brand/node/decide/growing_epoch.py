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

from brand.node.decide.division import Division
from brand.node.decide.epoch import Epoch, Setting
from brand.node.decide.growing_queue import GrowingQueue
from brand.node.wire.numbers import NodeNumber
from brand.protocol.growing import Growing
from brand.protocol.plan import Plan


class GrowingEpoch(Epoch):
    """The progress of one epoch whose order is `growing`."""

    def __init__(self, plan: Plan, division: Division, number: int, setting: Setting, growing: Growing) -> None:
        super().__init__(replace(plan, sample_of=growing.sample_of), division, number, setting)
        self.growing = growing
        self.reads: GrowingQueue = GrowingQueue(self.plan, growing)

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
            self.states.expects(places[~self._setting.limits.never_held()[places]])
            self.progress.expects(len(places))
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


def decides(epoch: Epoch, positions: NDArray[np.int64]) -> bool:
    """Whether it is decided which samples lie at these positions of an epoch."""
    return not isinstance(epoch, GrowingEpoch) or epoch.decides(positions)
