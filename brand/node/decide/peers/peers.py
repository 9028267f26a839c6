"""Which other nodes can be reached, and how much may be sent in each direction? There is one record per node.

Two nodes share two streams. On the stream that this node opened, it asks: it announces how many pages the owner
may send in all since the stream was opened (`told`). On the stream that the other node opened, this node answers: it
sends no more pages than it is allowed. For every peer, at all times:

    sent <= allowed                                     as the owner
    told = window + outstanding + received - held       as the node that draws; it never falls

`held` are pages in this node's memory that the owner has sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from brand.errors import ProtocolError
from brand.node.wire.numbers import NodeNumber
from brand.reprs import Reprs

TELL_SHARE: Final = 16
"""A node reports new capacity to an owner if that is at least `1 / TELL_SHARE` of the whole window."""


class Reach(Enum):
    """Whether a node can be asked."""

    EXPECTED = "not reached yet"
    OPEN = "can be asked"
    LOST = "was reached, and cannot be asked now"
    GIVEN_UP = "was never reached, and is not waited for"


class Peer(Reprs, shows="node reach asks _sent _allowed _received _told _outstanding"):
    """One other node."""

    def __init__(self, node: NodeNumber) -> None:
        self.node = node
        self.reach = Reach.EXPECTED
        self.asks = False
        """Whether the peer has a stream on which it can ask this node."""
        self.has_asked = False
        """Whether the peer ever had such a stream."""
        self.has_reported = False
        """Whether the peer has reported its capacity on its stream, which follows the messages about its epochs."""
        self.opening = 0
        """Number of such streams that the peer has opened."""
        self.heard_s = 0.0
        """The time when the peer last sent samples or became reachable."""
        self._allowed = self._sent = 0
        self._told = self._outstanding = self._received = 0
        self.total_sent = self.total_received = 0
        """Pages that were sent between this node and the peer since the server started."""

    @property
    def reachable(self) -> bool:
        return self.reach is Reach.OPEN

    # -- as the node that asks ---------------------------------------------------------------------------------------

    def mark_open(self, now_s: float) -> None:
        """Mark the peer as reachable after this node has opened a stream to it. All credit starts again at 0."""
        self.reach, self.heard_s = Reach.OPEN, now_s
        self._told = self._outstanding = self._received = 0

    def mark_lost(self) -> None:
        """Mark the peer as unreachable. A peer that was never reached is given up."""
        self.reach = Reach.LOST if self.reach in (Reach.OPEN, Reach.LOST) else Reach.GIVEN_UP

    def add_requested(self, pages: int) -> None:
        """Count `pages` pages of samples for which this node asks the peer."""
        self._outstanding += pages

    def add_received(self, pages: int, now_s: float) -> None:
        """Count pages that the peer has sent. Raises `ProtocolError` if they exceed the capacity that it was told."""
        self._received += pages
        if self._received > self._told:
            raise ProtocolError("more pages than it was allowed to send")
        self.total_received += pages
        self.hear(now_s)

    def hear(self, now_s: float) -> None:
        """Note that the peer has sent something of its samples."""
        self.heard_s = now_s

    def add_answered(self, pages: int) -> None:
        """Count `pages` pages that the peer has sent in answer to requests of this node."""
        self._outstanding = max(0, self._outstanding - pages)

    def grant(self, window: int, held: int, *, now: bool) -> int | None:
        """Return the pages that the peer may send in all since the stream was opened, which the caller reports to it.

        None if they are hardly more than the peer knows, unless the peer has to be told `now`.
        """
        # The capacity never falls, because the peer may have used what it was told.
        room = max(window + self._outstanding + self._received - held, self._told)
        if not now and room < self._told + max(1, window // TELL_SHARE):
            return None
        self._told = room
        return room

    # -- as the node that answers ------------------------------------------------------------------------------------

    def on_stream_open(self) -> None:
        """Note that the peer has opened a stream to ask on. Its capacity is not known yet."""
        self.asks = self.has_asked = True
        self.opening += 1
        self._allowed, self._sent, self.has_reported = 0, 0, False

    def on_stream_end(self) -> None:
        self.asks = False

    def allow(self, pages: int) -> None:
        """Allow `pages` pages in all, counted since the peer's stream was opened."""
        self._allowed = max(self._allowed, pages)
        self.has_reported = True

    @property
    def may_send(self) -> int:
        """Pages that this node may send to the peer now."""
        return self._allowed - self._sent

    def add_sent(self, pages: int) -> None:
        self._sent += pages
        self.total_sent += pages


class PeerTable(Reprs, shows="_peers"):
    """All other nodes."""

    def __init__(self, nodes: list[NodeNumber]) -> None:
        self._peers = {node: Peer(node) for node in nodes}

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def __getitem__(self, node: NodeNumber) -> Peer:
        return self._peers[node]

    def __len__(self) -> int:
        return len(self._peers)

    def is_reachable(self, node: NodeNumber) -> bool:
        return self._peers[node].reachable

    def unreachable(self) -> list[NodeNumber]:
        """Return the nodes from which this node expects no samples at present."""
        return [peer.node for peer in self if peer.reach in (Reach.LOST, Reach.GIVEN_UP)]

    @property
    def any_lost(self) -> bool:
        """Whether a node was reached and cannot be asked now, or had a stream to this node that has ended.

        A node that was never reached is not lost.
        """
        return any(peer.reach is Reach.LOST or (peer.has_asked and not peer.asks) for peer in self)

    @property
    def any_asks(self) -> bool:
        return any(peer.asks for peer in self)

    @property
    def complete(self) -> bool:
        """Whether this node has reached every other node at some time, and every other node has reached this node."""
        return all(peer.reach in (Reach.OPEN, Reach.LOST) and peer.has_asked for peer in self)
