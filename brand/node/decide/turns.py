"""Which rank draws which position of an epoch?

In turn from the position on where an iteration begins; or, with `locality`, each takes what its own node owns first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Turns:
    """Positions `start` to `samples` - 1, divided among ranks."""

    samples: int
    start: int = 0
    replicas: int = 1
    batch: int = 0
    """Samples of a batch of each rank, with `locality`; 0: in turn."""
    rank_at: NDArray[Any] | None = None
    """Rank of each position from `start` on, with `locality`."""

    def positions(self, rank: int) -> NDArray[np.int64]:
        """What a rank draws, ascending."""
        if self.rank_at is None:
            return np.arange(self.start + rank, self.samples, self.replicas, dtype=np.int64)
        return self.start + np.flatnonzero(self.rank_at == rank)

    def rank_of(self, position: int) -> int:
        """Who draws a position; one before `start` or past the end belongs to whoever would have it in turn."""
        if self.rank_at is None or not self.start <= position < self.samples:
            return (position - self.start) % self.replicas
        return int(self.rank_at[position - self.start])

    def same_division(self, other: Turns) -> bool:
        """Whether both divide the positions among equally many ranks in the same way."""
        return (self.replicas, self.batch) == (other.replicas, other.batch)

    def same_as(self, other: Turns) -> bool:
        """Whether both begin at the same position, too."""
        return self.start == other.start and self.same_division(other)
