"""How do node servers reach each other? The seam between the server's loop and the transport of messages.

Two nodes have two streams; each node opens one. The node that opens a stream *asks* on it: it says what it will draw,
grants room, and fetches. The other node *owns* samples and answers on it. `brand.cluster` carries streams by gRPC. Only
the server's loop calls these methods, and none of them waits. The events of a stream come in the order in which they
happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

MAX_UNSENT: Final = 16 << 20
"""A server puts nothing more into a stream that holds so many bytes that the other side has not taken."""


@dataclass(frozen=True, slots=True)
class PeerStream:
    """One of the two streams between this node and another one."""

    node: int
    """The other node."""
    asks: bool
    """True: this node opened the stream, and asks on it. False: this node answers on it."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream is open. Both sides know that they serve the same data set and have the same token."""

    stream: PeerStream


@dataclass(frozen=True, slots=True)
class Received:
    """A message has come."""

    stream: PeerStream
    message: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """A stream has ended or could not be opened. It is opened again as soon as the other node can be reached."""

    stream: PeerStream
    reason: str
    """A text for the user."""
    refused: bool = False
    """Whether the two nodes disagree, so that no further attempt can succeed."""


Event = Opened | Received | Closed


class Network(Protocol):
    """Streams to and from all other nodes of a cluster."""

    @property
    def wake(self) -> int:
        """A descriptor that is readable while there are events, and when a full stream has room again."""
        ...

    @property
    def address(self) -> str:
        """The address at which other nodes reach this one: host:port."""
        ...

    def connect(self, addresses: dict[int, str]) -> None:
        """Open a stream to each other node, and open it again whenever it ends. Called once, with addresses by node."""
        ...

    def events(self) -> list[Event]:
        """What has happened since the last call."""
        ...

    def send(self, stream: PeerStream, message: bytes) -> None:
        """Have a message sent. Does nothing where the stream is not open (its `Closed` has come, or will come)."""
        ...

    def unsent(self, stream: PeerStream) -> int:
        """Bytes that the other side has not taken yet."""
        ...

    def hang_up(self, stream: PeerStream, reason: str) -> None:
        """End a stream whose other side breaks the protocol. `Closed` follows."""
        ...

    def close(self) -> None:
        """End all streams, and let go of threads and descriptors."""
        ...
