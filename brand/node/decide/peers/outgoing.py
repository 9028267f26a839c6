"""Which samples of an epoch must this node still send to one other node, and in which order?

With `stripes`, it sends all samples that the other node's ranks will draw, in the order of their draws, without
requests. With `slots`, it sends the samples that the other node requests, and then the samples that are sent along with
them (section 3.4 of the paper).

A position is queued at most once, even if the other node requests it twice: if a sample were taken out of memory twice,
its pages would be freed twice.
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
"""Limit on the requested positions of another node that are kept until the plan is made."""
LOOK: Final = 1024
"""Limit on the positions that `next` returns."""

_OPEN, _ALONG, _ASKED = range(3)
"""Stages of a position: the node may request it; it will be sent along; it was requested or sent."""


class Outgoing:
    """A queue for one node: its `positions` (ascending, all different) from `front` on.

    `requests` is the plan's table if the node has to request samples. None if all samples are sent without requests.
    """

    def __init__(self, positions: NDArray[np.int64], requests: PeerRequests | None, front: int = 0) -> None:
        positions = positions.astype(index_dtype(int(positions.max(initial=0))))
        ahead, nothing = positions[np.searchsorted(positions, front) :], positions[:0]
        self._requests = requests
        self._known: NDArray[Any] = nothing if requests is None else positions
        """Positions that the node can request, ascending; none if it sends no requests."""
        self._stage = np.full(len(self._known), _OPEN, np.uint8)
        """The stage of each known position."""
        self._first = ahead if requests is None else nothing
        self._second = nothing
        """Positions that are sent along with answers, after those in `_first`."""
        self.urgent = 0
        """Number of the next positions for which the node waits."""

    def ask(self, positions: NDArray[Any]) -> None:
        """Queue the positions of a draw whose samples the node lacks, ahead of all other positions.

        If the node has to request samples, other samples are sent along with each request that the plan foresees. An
        unforeseen request is answered alone. A position is left out if it was requested or sent before, or if the node
        does not draw it.
        """
        if self._requests is None:
            urgent, rest = self._first[: self.urgent], self._first[self.urgent :]
            waits = np.isin(rest, positions)
            self._first = np.concatenate((urgent, rest[waits], rest[~waits]))
            self.urgent += int(waits.sum())
            return
        asked = self._move_to(positions, _ASKED)
        self._first = np.concatenate((self._first, asked))
        self.urgent = len(self._first)
        table = self._requests
        at = np.searchsorted(table.positions, asked)
        foreseen = at < len(table.positions)
        foreseen[foreseen] = table.positions[at[foreseen]] == asked[foreseen]
        along = np.concatenate((asked[:0], *(table.sent_with(number) for number in at[foreseen].tolist())))
        second = self._second[~np.isin(self._second, asked)]
        self._second = np.sort(np.concatenate((second, self._move_to(along, _ALONG))))  # in the order of the draws

    @property
    def unanswered(self) -> NDArray[Any]:
        """Positions that the node has requested and whose samples were not sent."""
        return self._first[: self.urgent]

    def next(self) -> NDArray[Any]:
        """Return the positions to send next, at most `LOOK`."""
        return self._first[:LOOK] if len(self._first) else self._second[:LOOK]

    def advance(self, count: int) -> None:
        """Remove the first `count` positions of `next`, which were sent or never will be."""
        if len(self._first):
            self._first = self._first[count:]
            self.urgent = max(0, self.urgent - count)
        else:
            self._move_to(self._second[:count], _ASKED)
            self._second = self._second[count:]

    def front(self, samples: int) -> int:
        """Return the position before which nothing more will be sent; `samples` if nothing at all will be sent."""
        if self._requests is not None:
            return 0
        return int(self._first.min(initial=samples))

    def _move_to(self, positions: NDArray[Any], stage: int) -> NDArray[Any]:
        """Move positions to a stage. Return the positions that were at an earlier stage, ascending, all different."""
        at = np.searchsorted(self._known, positions)
        known = at < len(self._known)
        known[known] = self._known[at[known]] == positions[known]
        found = np.unique(at[known])
        found = found[self._stage[found] < stage]
        self._stage[found] = stage
        return self._known[found]


def queue_to(epoch: Epoch, node: NodeNumber) -> Outgoing:
    """Return the queue of an epoch to a node that can take its samples."""
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
    """Whether the node requests samples. If not, they are sent without requests."""
    asked: list[NDArray[np.int64]] = field(default_factory=list)
    """Positions that the node requested before the plan was made."""

    def start(self, epoch: Epoch) -> None:
        """Begin to send the samples that the node's ranks draw of an active epoch."""
        before = queue_to(epoch, self.node) if self.node in epoch.outgoing else None
        queue = Outgoing(epoch.to_send(self.node), epoch.plan.requests if self.asks else None, self.front)
        epoch.outgoing[self.node] = queue
        if before is not None:  # more of its ranks draw than were announced before; it does not repeat its requests
            queue.ask(before.unanswered)
        for positions in self.asked:
            queue.ask(positions)
        self.asked.clear()

    def ask(self, epoch: Epoch | None, positions: NDArray[np.int64]) -> None:
        """Queue the positions that the node requests. Before the plan is made, keep up to `MAX_EARLY` of them."""
        if epoch is not None and self.node in epoch.outgoing:
            queue_to(epoch, self.node).ask(positions)
        elif sum(map(len, self.asked)) + len(positions) <= MAX_EARLY:
            self.asked.append(positions)
