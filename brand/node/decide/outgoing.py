"""What must this node still send to one other node of an epoch, and in which order?

With `stripes`, everything that the other node's ranks will draw, in the order of their draws, unasked. With `slots`,
what the other node asks for, and after that the samples that are sent along (section 3.4 of the paper).

A position is queued at most once, even if the other node asks for it twice: a sample that was taken out of memory twice
would give its pages back twice.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.wire.numbers import NodeNumber
from brand.orders.base.dtypes import index_dtype
from brand.orders.base.plan import PeerRequests

LOOK: Final = 1024
"""The most positions that `next` returns."""

_OPEN, _ALONG, _ASKED = range(3)
"""How far a position has come: the node can ask for it, it will be sent along, it was asked for or sent."""


class Outgoing:
    """A queue for one node: its `positions` (ascending, all different) from `front` on.

    `requests` is the plan's table where the node has to ask; None: all is sent unasked.
    """

    def __init__(self, positions: NDArray[np.int64], requests: PeerRequests | None, front: int = 0) -> None:
        positions = positions.astype(index_dtype(int(positions.max(initial=0))))
        ahead, nothing = positions[np.searchsorted(positions, front) :], positions[:0]
        self._requests = requests
        self._known: NDArray[Any] = nothing if requests is None else positions
        """Positions that the node can ask for, ascending; none where it does not ask."""
        self._stage = np.full(len(self._known), _OPEN, np.uint8)
        """How far each known position has come."""
        self._first = ahead if requests is None else nothing
        self._second = nothing
        """Positions that are sent along with answers, after these."""
        self.urgent = 0
        """How many of the next positions the node waits for."""

    def ask(self, positions: NDArray[Any]) -> None:
        """The node draws positions whose samples it does not have. They come first.

        Where the node has to ask, samples are sent along with each request that the plan foresees; an unforeseen
        request is answered alone. A position is left out where it was asked for or sent before, or where the node does
        not draw it.
        """
        if self._requests is None:
            urgent, rest = self._first[: self.urgent], self._first[self.urgent :]
            waits = np.isin(rest, positions)
            self._first = np.concatenate((urgent, rest[waits], rest[~waits]))
            self.urgent += int(waits.sum())
            return
        asked = self._bring(positions, _ASKED)
        self._first = np.concatenate((self._first, asked))
        self.urgent = len(self._first)
        table = self._requests
        at = np.searchsorted(table.positions, asked)
        foreseen = at < len(table.positions)
        foreseen[foreseen] = table.positions[at[foreseen]] == asked[foreseen]
        along = np.concatenate((asked[:0], *(table.sent_with(number) for number in at[foreseen].tolist())))
        second = self._second[~np.isin(self._second, asked)]
        self._second = np.sort(np.concatenate((second, self._bring(along, _ALONG))))  # the order of the draws

    @property
    def unanswered(self) -> NDArray[Any]:
        """Positions that the node has asked for, and whose samples were not sent."""
        return self._first[: self.urgent]

    def next(self) -> NDArray[Any]:
        """The positions to send next, at most `LOOK`."""
        return self._first[:LOOK] if len(self._first) else self._second[:LOOK]

    def advance(self, count: int) -> None:
        """The first `count` positions of `next` are sent, or will never be."""
        if len(self._first):
            self._first = self._first[count:]
            self.urgent = max(0, self.urgent - count)
        else:
            self._bring(self._second[:count], _ASKED)
            self._second = self._second[count:]

    def front(self, samples: int) -> int:
        """No position before this one will be sent any more; `samples`: no position at all."""
        if self._requests is not None:
            return 0
        return int(self._first.min(initial=samples))

    def _bring(self, positions: NDArray[Any], stage: int) -> NDArray[Any]:
        """Bring positions to a stage. Returns the positions that were at an earlier stage, ascending, all different."""
        at = np.searchsorted(self._known, positions)
        known = at < len(self._known)
        known[known] = self._known[at[known]] == positions[known]
        found = np.unique(at[known])
        found = found[self._stage[found] < stage]
        self._stage[found] = stage
        return self._known[found]


def follows(
    requests: PeerRequests | None, ranks: dict[int, NodeNumber], nodes: int, replicas: int
) -> PeerRequests | None:
    """The table of requests where the ranks lie as it foresees: the ranks of a node side by side. Else None.

    Without the table all samples are sent unasked, as with `stripes`.
    """
    return requests if all(node == rank * nodes // replicas for rank, node in ranks.items()) else None
