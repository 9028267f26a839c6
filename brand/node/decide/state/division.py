"""Which rank draws which position of an epoch?

Ranks draw in turn from the position at which an iteration begins. With `locality`, each rank first takes samples that
its own node owns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.random import blocks


@dataclass(frozen=True, slots=True)
class Division:
    """Positions `start` to `samples` - 1, divided among ranks."""

    samples: int
    start: int = 0
    replicas: int = 1
    batch: int = 0
    """Samples of a batch of each rank, with `locality`. 0 if the ranks draw in turn."""
    rank_at: NDArray[Any] | None = None
    """Rank of each position from `start` on, with `locality`."""

    def positions(self, rank: int) -> NDArray[np.int64]:
        """Return the positions that a rank draws, ascending."""
        if self.rank_at is None:
            return np.arange(self.start + rank, self.samples, self.replicas, dtype=np.int64)
        return self.start + np.flatnonzero(self.rank_at == rank)

    def parts(self, rank: int, first: int = 0) -> Iterator[NDArray[np.int64]]:
        """Yield the positions of a rank from position `first` on, a block at a time."""
        for part in blocks(self.samples - self.start):
            if self.rank_at is None:
                begin = part.start + (rank - part.start) % self.replicas
                positions = np.arange(begin, part.stop, self.replicas, dtype=np.int64)
            else:
                positions = part.start + np.flatnonzero(self.rank_at[part] == rank)
            yield (positions + self.start)[np.searchsorted(positions, first - self.start) :]

    def at(self, values: NDArray[Any], rank: int, last: int) -> NDArray[Any]:
        """Return the values at the positions of a rank up to `last`, ascending. `values` are by position, shape
        (samples,).
        """
        if self.rank_at is None:
            return values[self.start + rank : last + 1 : self.replicas]
        values = values[self.start : last + 1]
        found: NDArray[Any] = values[self.rank_at[: len(values)] == rank]
        return found

    def rank_of(self, position: int) -> int:
        """Return the rank that draws a position. Before `start` and past the end, ranks count as drawing in turn."""
        if self.rank_at is None or not self.start <= position < self.samples:
            return (position - self.start) % self.replicas
        return int(self.rank_at[position - self.start])

    def ranks_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rank that draws each position, by the rule of `rank_of`."""
        ranks = (positions - self.start) % self.replicas
        if self.rank_at is not None:
            inside = (positions >= self.start) & (positions < self.samples)
            ranks[inside] = self.rank_at[positions[inside] - self.start]
        return ranks

    def same_division(self, other: Division) -> bool:
        """Return whether both divide the positions among equally many ranks in the same way."""
        return (self.replicas, self.batch) == (other.replicas, other.batch)

    def same_as(self, other: Division) -> bool:
        """Return whether both divide the positions in the same way, and begin at the same position."""
        return self.start == other.start and self.same_division(other)
