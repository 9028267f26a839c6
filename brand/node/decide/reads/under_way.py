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
    """Other epochs that wait for samples of it."""

    def of(self, places: NDArray[Any]) -> Waits:
        """What waits for a part of the read, of the samples at these places."""
        others = [(epoch, waited[np.isin(waited, places)]) for epoch, waited in self.others]
        return Waits(self.epoch, others)


class UnderWay:
    """Reads that have started and not ended."""

    def __init__(self) -> None:
        self.waits: dict[int, Waits] = {}
        """What waits for the reads that have not ended, by number."""
        self.count = 0
        """A bundle is one; stripes that start together are as many."""
        self._ended = 0
        """Reads that have ended since the last call of `together`, counted as above."""

    def __repr__(self) -> str:
        return f"UnderWay({self.count})"

    def starts(self, read: Read) -> None:
        """A read has started."""
        self.count += read.count

    def ends(self, read: Read) -> None:
        """A read has ended."""
        self.count -= read.count
        self._ended += read.count

    def together(self) -> int:
        """How many reads may start as one: one less than have ended since the last call.

        Where the storage is faster than the loop, several have. Where it is slower, they end one by one, so fewer
        start together each time, until each starts alone: samples come when all of their read is there.
        """
        ended, self._ended = self._ended, 0
        return max(1, ended - 1)
