"""Which other nodes can be reached, and how much may be sent in each direction? One record a node.

Two nodes share two streams. On the stream that this node opened it asks: it tells the owner how many pages the owner
may send in all since the stream was opened (`told`). On the stream that the other node opened this node answers: it
sends no more than it is allowed. For every peer, at all times:

    sent <= allowed                                     as the owner
    told = window + outstanding + received - held       as the node that draws; it never falls

where `held` are pages in this node's memory that the owner has sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from brand.errors import ProtocolError

TELL_SHARE: Final = 16
"""An owner is told of new room when it is one part in so many of the whole window."""


class Reach(Enum):
    """Whether a node can be asked."""

    EXPECTED = "not reached yet"
    OPEN = "can be asked"
    LOST = "was reached, and cannot be asked now"
    GIVEN_UP = "was never reached, and is not waited for"


class Peer:
    """One other node."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.reach = Reach.EXPECTED
        self.asks = False
        """Whether it has a stream on which it can ask this node."""
        self.has_asked = False
        """Whether it ever had one."""
        self.opening = 0
        """How often it has opened that stream."""
        self.heard_s = 0.0
        """When it last sent samples, or could be asked again."""
        self._allowed = self._sent = 0
        self._told = self._outstanding = self._received = 0

    def __repr__(self) -> str:
        sends = f"sent {self._sent} of {self._allowed} pages"
        comes = f"received {self._received} of {self._told}, {self._outstanding} outstanding"
        return f"Peer({self.node} {self.reach.value}{', asks' if self.asks else ''}; {sends}; {comes})"

    # -- this node asks ----------------------------------------------------------------------------------------------

    def opens(self, now_s: float) -> None:
        """It can be asked, or can be asked again: all credit begins anew."""
        self.reach, self.heard_s = Reach.OPEN, now_s
        self._told = self._outstanding = self._received = 0

    def loses(self) -> None:
        """It cannot be asked; where it was never reached, it is given up."""
        self.reach = Reach.LOST if self.reach in (Reach.OPEN, Reach.LOST) else Reach.GIVEN_UP

    def owes(self, pages: int) -> None:
        """It is asked for samples of so many pages."""
        self._outstanding += pages

    def receives(self, pages: int, now_s: float) -> None:
        """It has sent so many pages. Raises `ProtocolError` where that is more than it was told."""
        self._received += pages
        if self._received > self._told:
            raise ProtocolError("more than there is room for")
        self.heard_s = now_s

    def answers(self, pages: int) -> None:
        """So many of the pages that it has sent were asked for."""
        self._outstanding = max(0, self._outstanding - pages)

    def room(self, window: int, held: int, *, now: bool) -> int | None:
        """Pages that it may send in all since the stream was opened; it is told so.

        None where that is too little more than it knows, unless it is to be told `now`.
        """
        room = max(window + self._outstanding + self._received - held, self._told)
        if not now and room < self._told + max(1, window // TELL_SHARE):
            return None
        self._told = room
        return room

    # -- this node answers -------------------------------------------------------------------------------------------

    def greets(self) -> None:
        """It has opened a stream to ask on: its room is not known yet."""
        self.asks = self.has_asked = True
        self.opening += 1
        self._allowed = self._sent = 0

    def leaves(self) -> None:
        """The stream on which it asks has ended."""
        self.asks = False

    def allows(self, pages: int) -> None:
        """It has room for so many pages in all, since its stream was opened."""
        self._allowed = max(self._allowed, pages)

    @property
    def may_send(self) -> int:
        """Pages that may be sent to it now."""
        return self._allowed - self._sent

    def sends(self, pages: int) -> None:
        """So many pages are sent to it."""
        self._sent += pages


class Peers:
    """All other nodes."""

    def __init__(self, nodes: list[int]) -> None:
        self._peers = {node: Peer(node) for node in nodes}

    def __repr__(self) -> str:
        return f"Peers({', '.join(map(repr, self))})"

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def __getitem__(self, node: int) -> Peer:
        return self._peers[node]

    def __len__(self) -> int:
        return len(self._peers)

    def reachable(self, node: int) -> bool:
        """Whether a node can be asked."""
        return self._peers[node].reach is Reach.OPEN

    def unreachable(self) -> list[int]:
        """Nodes from which nothing is expected just now."""
        return [peer.node for peer in self if peer.reach in (Reach.LOST, Reach.GIVEN_UP)]

    @property
    def any_lost(self) -> bool:
        """Whether a node was reached and cannot be asked any more; one that is still to come is not lost."""
        return any(peer.reach is Reach.LOST for peer in self)

    @property
    def any_asks(self) -> bool:
        """Whether any node has a stream on which it can ask this one."""
        return any(peer.asks for peer in self)

    @property
    def complete(self) -> bool:
        """Whether this node and each other one have reached each other at some time."""
        return all(peer.reach in (Reach.OPEN, Reach.LOST) and peer.has_asked for peer in self)
