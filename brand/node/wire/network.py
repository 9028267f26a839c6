"""How do node servers reach each other? The seam between the server's loop and whatever carries messages.

Between two nodes there are two streams, one opened by each. The node that opens one *asks* on it: it says what it will
draw, grants room, fetches; the node that *owns* the samples answers on it. `brand.cluster` carries them by gRPC. All
calls are the loop's, and never wait; events come in the order in which they happened, by stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

MAX_UNSENT: Final = 16 << 20
"""No more is put into a stream that holds so many bytes which the other side has not taken."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One of the two streams between this node and another one."""

    node: int
    """The other node."""
    asks: bool
    """Whether this node opened it, and asks; else it answers."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream is open: both sides know that they serve the same data set, and have the same token."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class Received:
    """A message has come."""

    stream: Stream
    message: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """A stream has ended, or could not be opened; it is opened again as soon as the other side can be reached."""

    stream: Stream
    reason: str
    """For people."""
    refused: bool = False
    """Whether the two nodes disagree, so that it can never work."""


Event = Opened | Received | Closed


class Network(Protocol):
    """Streams to and from all other nodes of a cluster."""

    @property
    def wake(self) -> int:
        """A descriptor that can be read while there are events, or when a full stream has room again."""
        ...

    @property
    def address(self) -> str:
        """Where other nodes can reach this one: host:port."""
        ...

    def connect(self, addresses: dict[int, str]) -> None:
        """Where the other nodes listen, by node. Said once; streams to them are opened, again and again if they end."""
        ...

    def events(self) -> list[Event]:
        """What has happened since."""
        ...

    def send(self, stream: Stream, message: bytes) -> None:
        """Have a message sent; nothing happens where the stream is not open (its `Closed` has come, or is coming)."""
        ...

    def unsent(self, stream: Stream) -> int:
        """Bytes that the other side has not taken yet."""
        ...

    def hang_up(self, stream: Stream, reason: str) -> None:
        """End a stream whose other side says what it should not; `Closed` follows."""
        ...

    def close(self) -> None:
        """End all streams, and let go of threads and descriptors."""
        ...
