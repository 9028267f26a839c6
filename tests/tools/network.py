"""A network between nodes of one process, in which nothing moves before a test says so.

    network = FakeNetwork(nodes=3)
    server = NodeServer(ServerSpec(path, address, member=Member(0, 3, token)), lambda data, page: network.peer(0))
    ...
    network.open(0, 1)              # node 0 may now ask node 1
    while network.deliver(0, 1):    # all that is on its way from node 0 to node 1 arrives
        ...
    network.cut(0, 1, arrive=2)     # the stream ends; two of the messages on their way still arrive

Each `peer` is the `Network` of one node (`brand.node.wire.network`). As with gRPC, a stream keeps its messages in
order, and says nothing about the order between two streams. A stream that ends loses what is on its way. There is no
clock and no thread: a test that is given a seed takes the same way each time.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field

from brand.node.wire.network import Closed, Event, Opened, PeerStream, Received


@dataclass(slots=True)
class _Wire:
    """What is on its way to one end of a stream."""

    coming: deque[Event] = field(default_factory=deque)
    bytes: int = 0
    """Of the messages among it."""
    heard: int = 0
    """The opening of the stream that this end knows of; 0: for this end it is closed."""


@dataclass(slots=True)
class _Line:
    """A stream between two nodes, opened any number of times."""

    wires: dict[int, _Wire]
    """By the node at whose end things arrive."""
    openings: int = 0
    open: bool = False


class FakeNetwork:
    """The streams between so many nodes. All are closed at first."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self._lines = {
            (asks, answers): _Line({asks: _Wire(), answers: _Wire()})
            for asks in range(nodes)
            for answers in range(nodes)
            if asks != answers
        }
        """By the node that asks and the one that answers."""
        self._arrived: list[list[Event]] = [[] for _ in range(nodes)]
        """What each node has not taken yet."""
        self.hung_up: list[tuple[int, PeerStream, str]] = []
        """Which node has ended which of its streams because of what the other side said, and why."""

    def peer(self, node: int) -> FakePeer:
        """The network as this node sees it."""
        return FakePeer(self, node)

    def is_open(self, asks: int, answers: int) -> bool:
        """Whether one node has a stream on which it asks another one."""
        return self._lines[asks, answers].open

    def open(self, asks: int, answers: int) -> None:
        """One node opens a stream to another one; nothing happens where it is open. Both are still to hear of it."""
        line = self._lines[asks, answers]
        if line.open:
            return
        line.open = True
        line.openings += 1
        for node, wire in line.wires.items():
            wire.coming.append(Opened(_seen_by(node, asks, answers)))

    def cut(self, asks: int, answers: int, *, arrive: int = 0, reason: str = "the link was cut") -> None:
        """End a stream, if it is open: of what is on its way to each end, only the first so many messages arrive."""
        line = self._lines[asks, answers]
        if not line.open:
            return
        line.open = False
        for node, wire in line.wires.items():
            before, now = _split_at_opening(list(wire.coming))
            wire.coming = deque((*before, *now[:arrive], Closed(_seen_by(node, asks, answers), reason)))
            wire.bytes = sum(len(event.message) for event in wire.coming if isinstance(event, Received))

    def restart(self, node: int) -> None:
        """A node's process is replaced: its streams end, and the new process has heard of none of them."""
        for (asks, answers), line in self._lines.items():
            if node in (asks, answers):
                self.cut(asks, answers, reason="the node was restarted")
                line.wires[node] = _Wire()
        self._arrived[node].clear()

    def on_the_way(self) -> list[tuple[int, int]]:
        """Streams, as (asks, answers), on which something is still to arrive."""
        return [pair for pair, line in self._lines.items() if any(wire.coming for wire in line.wires.values())]

    def deliver(self, asks: int, answers: int, *, to: int | None = None) -> bool:
        """The next thing on a stream arrives, at one end or at both; False where nothing was on its way."""
        line, moved = self._lines[asks, answers], False
        for node, wire in line.wires.items():
            if wire.coming and to in (None, node):
                event = wire.coming.popleft()
                moved = True
                if isinstance(event, Received):
                    wire.bytes -= len(event.message)
                self._arrived[node].append(event)
        return moved

    def take(self, node: int) -> list[Event]:
        """What has arrived at a node since the last call. Only now it knows of streams that have opened or ended."""
        arrived, self._arrived[node] = self._arrived[node], []
        for event in arrived:
            if not isinstance(event, Received):
                # A `Closed` belongs to the opening before it, an `Opened` to the latest one that is not closed.
                line = self._line(node, event.stream)
                line.wires[node].heard = 0 if isinstance(event, Closed) else self._opening(line, line.wires[node])
        return arrived

    def waiting_at(self, node: int) -> bool:
        """Whether a node has still to take what has arrived."""
        return bool(self._arrived[node])

    def send(self, node: int, stream: PeerStream, message: bytes) -> None:
        """Put a message on its way; it is lost where the stream has ended."""
        line = self._line(node, stream)
        if self._speaks(line, node):
            wire = line.wires[stream.node]
            wire.coming.append(Received(_other_end(node, stream), message))
            wire.bytes += len(message)

    def unsent(self, node: int, stream: PeerStream) -> int:
        """Bytes that are on their way from a node on a stream."""
        return self._line(node, stream).wires[stream.node].bytes

    def hang_up(self, node: int, stream: PeerStream, reason: str) -> None:
        """A node ends a stream, and knows it at once; nothing that was on its way to it arrives."""
        line = self._line(node, stream)
        if self._speaks(line, node):
            self.hung_up.append((node, stream, reason))
            asks, answers = (node, stream.node) if stream.asks else (stream.node, node)
            self.cut(asks, answers, reason=reason)
            self.deliver(asks, answers, to=node)

    def _line(self, node: int, stream: PeerStream) -> _Line:
        return self._lines[(node, stream.node) if stream.asks else (stream.node, node)]

    def _speaks(self, line: _Line, node: int) -> bool:
        """Whether what a node says on a line now belongs to the opening that goes on."""
        return line.open and line.wires[node].heard == line.openings

    @staticmethod
    def _opening(line: _Line, wire: _Wire) -> int:
        """The number of the opening that an end has just heard of: those behind it on the wire are later ones."""
        return line.openings - sum(isinstance(event, Opened) for event in wire.coming)


class FakePeer:
    """One node's end of a `FakeNetwork`: what its server is given as `Network`."""

    def __init__(self, network: FakeNetwork, node: int) -> None:
        self.network, self.node = network, node
        self._wake: int | None = None

    @property
    def wake(self) -> int:
        """A descriptor that never becomes readable: the test calls what the loop would call."""
        if self._wake is None:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._wake

    @property
    def address(self) -> str:
        """Nobody looks for it there."""
        return f"127.0.0.1:{self.node + 1}"

    def connect(self, addresses: dict[int, str]) -> None:
        """Nothing to do: the test says which streams are open."""

    def events(self) -> list[Event]:
        """What has arrived since."""
        return self.network.take(self.node)

    def send(self, stream: PeerStream, message: bytes) -> None:
        """Put a message on its way."""
        self.network.send(self.node, stream, message)

    def unsent(self, stream: PeerStream) -> int:
        """Bytes that the other side has not taken yet."""
        return self.network.unsent(self.node, stream)

    def hang_up(self, stream: PeerStream, reason: str) -> None:
        """End a stream; `Closed` follows."""
        self.network.hang_up(self.node, stream, reason)

    def close(self) -> None:
        """Let go of the descriptor."""
        if self._wake is not None:
            os.close(self._wake)
            self._wake = None


def _split_at_opening(coming: list[Event]) -> tuple[list[Event], list[Event]]:
    """What arrives up to the latest opening of a stream, that included, and the messages after it."""
    opened = [number for number, event in enumerate(coming) if isinstance(event, Opened)]
    end = opened[-1] + 1 if opened else 0
    return coming[:end], coming[end:]


def _seen_by(node: int, asks: int, answers: int) -> PeerStream:
    """A stream as one of its ends names it."""
    return PeerStream(answers, asks=True) if node == asks else PeerStream(asks, asks=False)


def _other_end(node: int, stream: PeerStream) -> PeerStream:
    """A stream of this node as the other end names it."""
    return PeerStream(node, asks=not stream.asks)
