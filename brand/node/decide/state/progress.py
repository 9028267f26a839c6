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
        """No rank asks for a position before this one any more."""
        self.drawn = 0
        """Samples that ranks of this node have drawn."""
        self.sent = 0
        """Samples that this node has sent to other nodes, or will not send."""
        self.total = 0
        """Samples that ranks of this node will draw in all, or this node will send."""
        self._asked: dict[int, int] = {}
        """The highest position that each rank has asked for."""
        self.elsewhere: dict[NodeNumber, int] = {}
        """Positions before which ranks of other nodes have asked for all that they will ask for, as nodes tell it."""

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

    def expects(self, samples: int) -> None:
        """`samples` more samples (fewer, if below 0) will be drawn at this node or sent from it."""
        self.total += samples

    def draws(self, rank: int, positions: NDArray[np.int64]) -> None:
        """A rank draws positions."""
        self._asked[rank] = max(self._asked.get(rank, -1), int(positions.max()))
        self.drawn += len(positions)

    def sends(self, samples: int) -> None:
        """This node sends samples to other nodes."""
        self.sent += samples

    def hears(self, node: NodeNumber, front: int) -> None:
        """A node tells how far its ranks have come."""
        self.elsewhere[node] = front

    def skips_to(self, position: int) -> None:
        """No rank asks for a position before this one any more."""
        self.start = max(self.start, position)

    def front(self, ranks: Iterable[int]) -> int:
        """The position before which these ranks have asked for all that they will ask for."""
        return min((self._asked.get(rank, self.start - 1) + 1 for rank in ranks), default=self.start)

    def everywhere(self, here: Sequence[int]) -> int:
        """The position before which all ranks have asked, those of this node (`here`) and those of others."""
        own = [self.front(here)] if here or not self.elsewhere else []
        return min([*own, *self.elsewhere.values()])

    def reached(self, draws: int) -> float:
        """About the position that draws have reached, by what is done of what this node has to do. Of so many draws."""
        return self.start + (self.done * (draws - self.start) / self.total if self.total else 0)

    def last(self, rank: int) -> int:
        """The highest position that a rank has asked for; `start` where it has asked for none."""
        return self._asked.get(rank, self.start)
