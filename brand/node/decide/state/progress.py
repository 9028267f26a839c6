"""How far have the ranks of this node drawn an epoch, and how much of the epoch is done?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from brand.node.wire.numbers import NodeNumber


class EpochProgress:
    """Counts of one epoch, and the highest position that each rank has asked for."""

    def __init__(self, start: int) -> None:
        self.start = start
        """Position before which no rank asks any more."""
        self.drawn = 0
        """Samples that ranks of this node have drawn."""
        self.sent = 0
        """Samples that this node has sent to other nodes, or will not send."""
        self.total = 0
        """Samples that ranks of this node will draw in all, or this node will send."""
        self._asked: dict[int, int] = {}
        """The highest position that each rank has asked for."""
        self.elsewhere: dict[NodeNumber, int] = {}
        """Position before which the ranks of each other node have asked for all that they will ask for, as that node
        reports.
        """

    def __repr__(self) -> str:
        return f"EpochProgress({self.drawn} drawn and {self.sent} sent of {self.total}, from position {self.start})"

    @property
    def done(self) -> int:
        """Samples that were drawn or sent."""
        return self.drawn + self.sent

    @property
    def half_done(self) -> bool:
        """Whether at least half of the samples were drawn or sent."""
        return 2 * self.done >= self.total

    def expect(self, samples: int) -> None:
        """Add samples that will be drawn at this node or sent from it. Removes some if `samples` is below 0."""
        self.total += samples

    def add_drawn(self, rank: int, positions: NDArray[np.int64]) -> None:
        """Record positions that a rank draws."""
        self._asked[rank] = max(self._asked.get(rank, -1), int(positions.max()))
        self.drawn += len(positions)

    def add_sent(self, samples: int) -> None:
        """Count samples that this node sends to other nodes."""
        self.sent += samples

    def learn_elsewhere(self, node: NodeNumber, front: int) -> None:
        """Record the progress that a node reports for its ranks."""
        self.elsewhere[node] = front

    def skip_to(self, position: int) -> None:
        """Record a position before which no rank asks any more."""
        self.start = max(self.start, position)

    def front(self, ranks: Iterable[int]) -> int:
        """Return the position before which these ranks have asked for all that they will ask for."""
        return min((self._asked.get(rank, self.start - 1) + 1 for rank in ranks), default=self.start)

    def everywhere(self, here: Sequence[int]) -> int:
        """Return the position before which all ranks have asked, those of this node (`here`) and of other nodes."""
        own = [self.front(here)] if here or not self.elsewhere else []
        return min([*own, *self.elsewhere.values()])

    def reached(self, draws: int) -> float:
        """Estimate the position that draws have reached, from the fraction of this node's work that is done.

        `draws` is the number of draws of the epoch.
        """
        return self.start + (self.done * (draws - self.start) / self.total if self.total else 0)

    def last(self, rank: int) -> int:
        """Return the highest position that a rank has asked for. `start` if it has asked for none."""
        return self._asked.get(rank, self.start)
