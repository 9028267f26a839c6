"""Turns the server's decisions into messages to other nodes, and messages of other nodes into stimuli.

`StreamExchange` connects `NodeState` and `Network` and decides nothing. It disconnects a node that breaks the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from brand.errors import FormatError, ProtocolError, UsageError
from brand.node.decide.node_state import NodeState
from brand.node.decide.peers.peers import Peer
from brand.node.decide.state.instructions import Say
from brand.node.decide.stimuli import NodeRefuses, NodeSays, Stimulus, StreamEnds, StreamOpens
from brand.node.wire import peer_messages as wire
from brand.node.wire.network import Closed, Network, Opened, PeerStream, Received
from brand.node.wire.numbers import NodeNumber
from brand.reprs import Reprs

log = logging.getLogger("brand.node")

Watch = Callable[[Opened | Closed], None]
"""Called with each stream that opens, ends, or cannot be opened."""


class StreamExchange(Reprs, shows="_state.core.peers"):
    """The streams to and from other nodes. Pages have `page` bytes. `tell` accepts the stimuli."""

    def __init__(self, state: NodeState, network: Network, page: int, tell: Callable[[Stimulus], object]) -> None:
        self._state, self._network, self._page, self._tell = state, network, page, tell
        self._watch: Watch | None = None
        self.wake = network.wake
        """A descriptor that is readable while there are events."""
        self.address = network.address
        """The address at which other nodes reach this node, `host:port`."""
        self.connected = False
        """Whether this node knows the addresses of the other nodes."""

    def connect(self, addresses: dict[int, str], watch: Watch | None = None) -> None:
        """Connect to the servers of the other nodes, with the addresses given by node. Later calls have no effect.

        The loop calls `watch` for each stream that opens, ends, or cannot be opened.
        """
        if not self.connected:
            self.connected, self._watch = True, watch
            self._network.connect(addresses)

    def take_events(self, _: int = 0) -> None:
        for event in self._network.events():
            if self._watch is not None and not isinstance(event, Received):
                self._watch(event)
            match event:
                case Opened(stream):
                    self._tell(StreamOpens(NodeNumber(stream.node), stream.asks))
                case Closed(stream, reason, refused):
                    self._closed(stream, reason, refused=refused)
                case Received(stream, message):
                    try:
                        self._take(stream, message)
                    except (ProtocolError, UsageError, FormatError) as error:  # FormatError: the index of this node
                        log.warning("node %d is disconnected: %s", stream.node, error)
                        self._network.hang_up(stream, str(error))

    def unsent(self) -> dict[NodeNumber, int]:
        """Return the bytes that each asking node has not received yet, by node."""
        return {peer.node: self._network.unsent(PeerStream(peer.node, asks=False)) for peer in self._peers}

    def say(self, instruction: Say) -> None:
        self._network.send(PeerStream(instruction.node, instruction.asks), wire.pack(instruction.message))

    def facts(self) -> dict[str, object]:
        node, nodes, peers = self._state.members.node, self._state.members.nodes, self._peers
        return {
            "node": node,
            "nodes": nodes,
            "reachable": [peer.node for peer in peers if peer.reachable],
            "sent_bytes": {str(peer.node): peer.total_sent * self._page for peer in peers},
            "received_bytes": {str(peer.node): peer.total_received * self._page for peer in peers},
        }

    def close(self) -> None:
        self._network.close()

    @property
    def _peers(self) -> list[Peer]:
        return [] if self._state.peering is None else list(self._state.peering.peers)

    def _take(self, stream: PeerStream, message: bytes) -> None:
        """Handle a message of a stream. Raises `ProtocolError` or `UsageError` if it is invalid."""
        node = NodeNumber(stream.node)
        if stream.asks:
            self._tell(NodeSays(node, wire.unpack_reply(message, self._page)))
        else:
            self._tell(NodeSays(node, wire.unpack_question(message, node)))

    def _closed(self, stream: PeerStream, reason: str, *, refused: bool) -> None:
        node, peering = NodeNumber(stream.node), self._state.peering
        assert peering is not None
        peers, announcements = peering.peers, peering.announcements
        if refused:
            if not announcements.disagreements.all_refused:
                log.warning("%s", reason)
            self._tell(NodeRefuses(reason))
        was_open = peers.is_reachable(node) if stream.asks else peers[node].asks
        if not was_open:
            return
        level = logging.WARNING if announcements.draws else logging.INFO  # if no rank draws, the job has ended
        log.log(level, "node %d %s: %s", node, "cannot be asked" if stream.asks else "asks no more", reason)
        self._tell(StreamEnds(node, stream.asks))
