"""Which samples are drawn at some positions of an epoch, for a process that plans only what is around them?"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.plan import PlanWindow
from brand.orders.order import Order
from brand.reprs import Reprs

FIRST: Final = 1 << 14
"""Positions of the first window, which the first batch waits for. Each further one is twice as large,"""
MOST: Final = 1 << 18
"""up to this many positions."""
KEPT: Final = 32
"""Windows that are kept: 8 million positions. Threads, and ranks that share a process, are less far apart."""


class EpochPlaces(Reprs, shows="_order _epoch _windows"):
    """The places of an epoch at any positions. A window of the plan is made when a position in it is asked for first.

    A window begins at a multiple of its size, so that draws of neighbouring positions, in any order, use the same ones.
    An order without windows is planned as a whole at once. One thread uses an object.
    """

    def __init__(self, order: Order, epoch: int) -> None:
        self._order, self._epoch = order, epoch
        self._source = order.windows(epoch)
        self._size = FIRST
        """Positions of the next window."""
        self._windows: list[PlanWindow] = []
        """The windows that are kept, the one that was used last at the end. No two have a position in common."""
        if self._source is None:
            self._plan_all()

    @property
    def nbytes(self) -> int:
        """Bytes of the places that are kept."""
        return sum(window.sample_of.nbytes for window in self._windows)

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of the sample at each of these positions. Raises IndexError if the epoch has not all."""
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < self._order.draws:
            raise IndexError(f"positions {positions.min()} to {positions.max()} of {self._order.draws:,}")
        found = np.empty(len(positions), np.int64)
        left, used = np.arange(len(positions)), 0
        while len(left):
            if used == KEPT:
                self._plan_all()  # these positions are too far apart for windows: the next draw would miss them again
            window = self._use(int(positions[left[0]]))
            inside = (window.first <= positions[left]) & (positions[left] < window.end)
            here, left, used = left[inside], left[~inside], used + 1
            found[here] = window.sample_of[positions[here] - window.first]
        return found

    def _use(self, position: int) -> PlanWindow:
        """Return the window with a position, as the one that was used last."""
        windows = self._windows
        at = next((at for at in reversed(range(len(windows))) if windows[at].first <= position < windows[at].end), None)
        window = self._make(position) if at is None else windows.pop(at)
        windows.append(window)
        del windows[:-KEPT]
        return window

    def _make(self, position: int) -> PlanWindow:
        """Make the next window, with a position that no other window has."""
        assert self._source is not None, "a whole plan has all positions"
        first = position // self._size * self._size
        end = min(first + self._size, self._order.draws)
        self._size = min(2 * self._size, MOST)
        first = max([first, *(window.end for window in self._windows if window.end <= position)])
        end = min([end, *(window.first for window in self._windows if window.first > position)])
        return self._source.window(first, end)

    def _plan_all(self) -> None:
        self._windows = [PlanWindow(0, self._order.plan(self._epoch).sample_of, None)]
