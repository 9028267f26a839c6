"""How many large reads are under way, which epochs wait for each, and how many may start as one?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.tasks import Read

Wait = tuple[Epoch, NDArray[Any]]
"""An epoch, and the places that it waits for."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The epochs that wait for a read that has not ended."""

    epoch: Epoch
    """The epoch that the read is for."""
    others: Sequence[Wait]
    """Other epochs that wait for samples of the read."""

    def of(self, places: NDArray[Any]) -> Waits:
        """Return the epochs that wait for these places, which are some of the read's."""
        others = [(epoch, waited[np.isin(waited, places)]) for epoch, waited in self.others]
        return Waits(self.epoch, others)


class UnderWay:
    """Reads that have started and not ended."""

    def __init__(self) -> None:
        self.waits: dict[int, Waits] = {}
        """The epochs that wait for each read that has not ended, by number."""
        self.count = 0
        """Number of reads under way. A bundle counts as one, stripes that start together count as many."""
        self._ended = 0
        """Reads that have ended since the last call of `together`, counted in the same way."""

    def __repr__(self) -> str:
        return f"UnderWay({self.count})"

    def add(self, read: Read) -> None:
        """Add a read that has started."""
        self.count += read.count

    def remove(self, read: Read) -> None:
        """Remove a read that has ended."""
        self.count -= read.count
        self._ended += read.count

    def together(self) -> int:
        """Return the number of reads that may start as one: one less than have ended since the last call.

        If the storage is faster than the loop, several have ended. If it is slower, they end one by one, so that fewer
        start together each time, until each starts alone: samples are available when all of their read is in memory.
        """
        ended, self._ended = self._ended, 0
        return max(1, ended - 1)
