"""The interface between the server's loop and the transport of messages to other nodes.

Two nodes have two streams; each node opens one. The node that opens a stream is the *asking* node of the stream: it
announces its draws, grants capacity, and fetches. The other node is the *home node* of the samples and answers.
`brand.cluster` implements streams with gRPC. Only the server's loop calls these methods, and none of them blocks. The
events of a stream are returned in the order in which they happened.

The address of a node is `host:port`, or `[host]:port` for IPv6. Other forms that gRPC accepts are refused.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Final, Protocol

from brand.errors import ServerError, UsageError

MAX_UNSENT: Final = 16 << 20
"""A server adds nothing to a stream that holds this many bytes that the other side has not received."""
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([\w.-]+)):(\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class PeerStream:
    """One of the two streams between this node and another node."""

    node: int
    """The other node."""
    asks: bool
    """True if this node opened the stream, and asks on it. False if this node answers on it."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream is open. Both sides have verified the data set and the token."""

    stream: PeerStream


@dataclass(frozen=True, slots=True)
class Received:
    """A message has arrived."""

    stream: PeerStream
    message: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """A stream has ended or could not be opened. It is opened again as soon as the other node is reachable."""

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
        """A descriptor that is readable while there are events, and when a full stream has capacity again."""
        ...

    @property
    def address(self) -> str:
        """The address at which other nodes reach this node: host:port."""
        ...

    def connect(self, addresses: dict[int, str]) -> None:
        """Open a stream to each other node, and open it again whenever it ends. Called once, with addresses by node."""
        ...

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        ...

    def send(self, stream: PeerStream, message: bytes) -> None:
        """Have a message sent. Has no effect if the stream is not open (its `Closed` has been or will be returned)."""
        ...

    def unsent(self, stream: PeerStream) -> int:
        """Return the bytes that the other side has not received yet."""
        ...

    def hang_up(self, stream: PeerStream, reason: str) -> None:
        """End a stream whose other side violates the protocol. `Closed` follows."""
        ...

    def close(self) -> None:
        """End all streams, and release threads and descriptors."""
        ...


def split_address(address: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[3]) > 65535:
        raise UsageError(f"{address!r} is not an address; write it like 10.0.0.1:7000, node1:7000 or [::1]:7000")
    return match[1] or match[2], int(match[3])


def check_free(address: str) -> None:
    """Raise `ServerError`, with the reason, if this process cannot listen at `address`. gRPC gives no reason."""
    host, port = split_address(address)
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                probe.listen(1)
    except OSError as error:
        raise ServerError(f"the data server cannot listen at {address}: {error.strerror or error}") from None
