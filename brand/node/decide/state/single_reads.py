"""How far is an epoch in windows in which each sample is a read of its own?

The number of a read is its position, so no table of reads is needed. A sample is read only if its position is known,
and if a rank that is known draws it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Division, EpochSetting
from brand.node.decide.state.states import EARLY
from brand.node.decide.state.windowed import KnownPlaces, WindowedEpoch, WindowedReadQueue
from brand.orders.base.dtypes import index_dtype
from brand.orders.base.plan import EpochPlan, OpenReads, PlanWindow, PlanWindows

Positions = NDArray[Any]


class SingleReadQueue(WindowedReadQueue):
    """The reads at the positions that are known, in the order of these."""

    def __init__(self, plan: EpochPlan, known: KnownPlaces, position_of: Callable[[NDArray[Any]], Positions]) -> None:
        super().__init__(plan)
        self._known, self._position_of = known, position_of

    def add(self, plan: EpochPlan, wanted: NDArray[np.bool_]) -> None:
        """Take the last window that is known. Queue those of its reads that are wanted."""
        self._plan = plan
        self._set(np.concatenate((self.rest(), self._known.end - len(wanted) + np.flatnonzero(wanted))))

    def put_back_all(self) -> None:
        self._set(np.arange(self._known.first, self._known.end))

    def put_back(self, places: NDArray[Any]) -> None:
        positions = self._position_of(places).astype(np.int64)
        inside = (positions >= self._known.first) & (positions < self._known.end)
        self._set(np.union1d(self.rest(), positions[inside]))

    def forget_before(self, position: int) -> None:
        """Remove the reads before a position, where the samples are not known any more."""
        rest = self.rest()
        self._set(rest[np.searchsorted(rest, position) :])

    def _set(self, positions: Positions) -> None:
        self._soon, self._at = positions.astype(index_dtype(len(self._known)), copy=False), 0


class WindowedSingleReads(WindowedEpoch):
    """The progress of one epoch in windows in which each sample is a read of its own, on a node that is alone."""

    def __init__(self, windows: PlanWindows, division: Division, number: int, setting: EpochSetting, room: int) -> None:
        super().__init__(windows, division, number, setting, room)
        assert windows.position_of is not None, "reads of several samples"
        self.plan = EpochPlan(windows.mapping, self.plan.sample_of, None)
        self.reads: SingleReadQueue = SingleReadQueue(self.plan, self._known, windows.position_of)
        self._buffer = 0

    def add_window(self, window: PlanWindow, open_reads: OpenReads | None) -> NDArray[Any]:
        held = super().add_window(window, open_reads)
        self.reads.forget_before(self._known.first)
        return held

    def _queue_window(self, window: PlanWindow) -> None:
        self._last = window.first
        self.reads.add(self.plan, self._to_read(window.sample_of))

    def _queue(self, reads: NDArray[np.void]) -> None:
        assert not len(reads), "no read of a single sample is due before its position"

    def _to_read(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        # A read for the cache folder does not load a sample for the epoch, so its own read is needed, too.
        return super()._to_read(places) | self.states.are(EARLY, places)
