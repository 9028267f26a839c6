"""What must this node still send to one other node of an epoch, and in which order?

With `stripes`, everything that the other node's ranks will draw, in the order of their draws, unasked. With `slots`,
what the other node asks for, and after that the samples that are sent along (section 3.4 of the paper).

A position is queued at most once, even if the other node asks for it twice: a sample that was taken out of memory twice
would give its pages back twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Epoch
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.dtypes import index_dtype
from brand.orders.base.plan import PeerRequests

MAX_EARLY: Final = 1 << 20
"""The most positions of another node's requests that are kept until the plan is made."""
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


def queue_to(epoch: Epoch, node: NodeNumber) -> Outgoing:
    """What this node still has to send of an epoch to a node that can take its samples."""
    queue = epoch.outgoing[node]
    assert isinstance(queue, Outgoing)
    return queue


@dataclass(frozen=True, slots=True)
class Taker:
    """A node that can take samples of an epoch."""

    node: NodeNumber
    front: int
    """The node takes samples from this position on."""
    asks: bool
    """Whether the node asks for samples; else they are sent unasked."""
    asked: list[NDArray[np.int64]] = field(default_factory=list)
    """Positions that the node asked for before the plan was made."""

    def starts(self, epoch: Epoch) -> None:
        """Send to the node what its ranks draw of an epoch that is live."""
        before = queue_to(epoch, self.node) if self.node in epoch.outgoing else None
        queue = Outgoing(epoch.to_send(self.node), epoch.plan.requests if self.asks else None, self.front)
        epoch.outgoing[self.node] = queue
        if before is not None:  # the node has more ranks than it said before; it does not ask twice
            queue.ask(before.unanswered)
        for positions in self.asked:
            queue.ask(positions)
        self.asked.clear()

    def ask(self, epoch: Epoch | None, positions: NDArray[np.int64]) -> None:
        """Note that the node asks for positions. Before the plan is made, keep up to `MAX_EARLY` of them."""
        if epoch is not None and self.node in epoch.outgoing:
            queue_to(epoch, self.node).ask(positions)
        elif sum(map(len, self.asked)) + len(positions) <= MAX_EARLY:
            self.asked.append(positions)
