"""How far have the ranks of this node drawn an epoch, and how much of it is done?"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Progress:
    """Counts of one epoch, and the highest position that each rank has asked for."""

    def __init__(self, start: int) -> None:
        self.start = start
        """Positions before it are not asked for any more."""
        self.drawn = 0
        """Samples drawn here."""
        self.sent = 0
        """Samples sent to other nodes, or given up for them."""
        self.total = 0
        """Samples that are to be drawn here or sent from here."""
        self.asked_s = math.inf
        """When it was last drawn from; infinity: not yet."""
        self._asked: dict[int, int] = {}
        """The highest position that each rank has asked for."""

    def __repr__(self) -> str:
        return f"Progress({self.drawn} drawn and {self.sent} sent of {self.total}, from position {self.start})"

    @property
    def done(self) -> int:
        """Samples that were drawn or sent."""
        return self.drawn + self.sent

    @property
    def half_done(self) -> bool:
        """Whether at least half of the samples were drawn or sent."""
        return 2 * self.done >= self.total

    def expects(self, samples: int) -> None:
        """So many samples more (or fewer, below 0) are to be drawn here or sent from here."""
        self.total += samples

    def draws(self, rank: int, positions: NDArray[np.int64], now_s: float) -> None:
        """A rank draws these."""
        self.asked_s = now_s
        self._asked[rank] = max(self._asked.get(rank, -1), int(positions.max()))
        self.drawn += len(positions)

    def sends(self, samples: int) -> None:
        """So many samples are sent to other nodes."""
        self.sent += samples

    def skips_to(self, position: int) -> None:
        """What lies before a position is not asked for any more."""
        self.start = max(self.start, position)

    def front(self, ranks: Iterable[int]) -> int:
        """The position before which these ranks have asked for all that they will ask for."""
        return min((self._asked.get(rank, self.start - 1) + 1 for rank in ranks), default=self.start)

    def last(self, rank: int) -> int:
        """The highest position that a rank has asked for; `start` where it has asked for none."""
        return self._asked.get(rank, self.start)
