"""How does a data server that a user started report on the other nodes, and when does it give up?

The server's loop reports streams, and `Attendance` decides which lines the user sees. Before all nodes have met, a
disagreement between nodes is the user's mistake, and the server ends at once. Afterwards the server continues with the
remaining nodes: a node that returns with a wrong greeting is refused and logged.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final

from brand.errors import UsageError, counted
from brand.node.serve.server import NodeServer
from brand.node.wire.network import Closed, Opened, split_address
from brand.reprs import Reprs

REMIND_S: Final = 5.0
"""Seconds between two lines that name the missing nodes."""
DRAIN: Final = b"drain\n"
"""The line with which a launcher has a server end after its clients."""
_MOST_NAMED: Final = 8
_CHUNK: Final = 1 << 12

Say = Callable[[str], None]
"""Shows a line to the user who started the server."""


def everybody(nodes: int) -> str:
    """Return the server's line once all nodes are connected; the launcher waits for this line."""
    return f"all {nodes} nodes are connected" if nodes > 1 else "this is the only node"


def check_peers(peers: Sequence[str], node: int) -> None:
    """Check that these can be the addresses of all nodes, in order. Raises `UsageError`."""
    if not 0 <= node < len(peers):
        raise UsageError(f"node {node} of {len(peers)}: --peers lists all nodes in order, and the first is node 0")
    for number, address in enumerate(peers):
        _, port = split_address(address)
        if port == 0:
            raise UsageError(f"node {number} is at {address}: give a port, so that the other nodes find it")
        if address in peers[:number]:
            raise UsageError(f"nodes {peers.index(address)} and {number} have the same address, {address}")


def only_here(bind: str, peers: Sequence[str]) -> str:
    """Return a warning if no other host can reach this node, because its host's name may mean loopback; else empty."""
    host, port = split_address(bind)
    if host == "localhost" or {split_address(peer)[0] for peer in peers} <= {host}:
        return ""
    try:
        found = {str(where[0]) for *_, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        if not all(ipaddress.ip_address(address).is_loopback for address in found) or host in found:
            return ""
    except (OSError, ValueError):
        return ""
    named = " and ".join(sorted(found))
    return f"here {host} is {named}, which no other host reaches: list its IP address, or --bind 0.0.0.0:{port}"


class Attendance(Reprs, shows="_peers _missing refusal"):
    """Which other nodes are reachable, according to the server's events? Safe for several threads."""

    def __init__(self, peers: Sequence[str], node: int) -> None:
        self._peers, self._lock = peers, threading.Lock()
        self._missing = {other: "" for other in range(len(peers)) if other != node}
        """Reasons by unreachable node; empty if a reason is unknown."""
        self._met = not self._missing
        self.refusal: str | None = None
        """Why the server must give up; None if it need not."""

    def take(self, event: Opened | Closed) -> str:
        """Handle an event. Returns a text for the user; empty if there is none."""
        if not event.stream.asks:
            return ""
        node = event.stream.node
        with self._lock:
            if isinstance(event, Closed):
                was_there = node not in self._missing
                self._missing[node] = "" if was_there else event.reason
                if event.refused and not self._met:
                    self.refusal = event.reason
                return f"node {node} at {self._peers[node]} is lost: {event.reason}" if was_there else ""
            self._missing.pop(node, None)
            if not self._missing:
                self._met = True
                return everybody(len(self._peers))
            return f"node {node} is connected again" if self._met else ""

    def missing(self) -> str:
        """Return a text that names the nodes that the server waits for; empty if all are connected."""
        with self._lock:
            missing = dict(self._missing)
        if not missing:
            return ""
        named = [why or f"node {node} at {self._peers[node]}" for node, why in sorted(missing.items())[:_MOST_NAMED]]
        named += [f"{len(missing) - _MOST_NAMED} more"] if len(missing) > _MOST_NAMED else []
        return f"waiting for {len(missing)} of {counted(len(self._peers), 'node')}: {'; '.join(named)}"


def serve(server: NodeServer, peers: Sequence[str], node: int, say: Say) -> None:
    """Run one of several servers until it is stopped. Raises `UsageError` if the nodes disagree at the start."""
    attendance, ended = Attendance(peers, node), threading.Event()

    def watch(event: Opened | Closed) -> None:
        if said := attendance.take(event):
            say(said)
        if attendance.refusal is not None:
            server.stop()

    def remind() -> None:
        while not ended.wait(REMIND_S):
            if said := attendance.missing():
                say(said)

    if said := only_here(server.listens_at or peers[node], peers):
        say(f"WARNING: {said}")
    server.connect({other: address for other, address in enumerate(peers) if other != node}, watch)
    if len(peers) == 1:
        say(everybody(1))
    reminder = threading.Thread(target=remind, name="remind", daemon=True)
    reminder.start()
    try:
        server.run()
    finally:
        ended.set()
        reminder.join(REMIND_S)
    if attendance.refusal is not None:
        raise UsageError(attendance.refusal)


def stop_at_end_of(descriptor: int, stop: Callable[[], None], drain: Callable[[], None]) -> None:
    """Call `stop` when a pipe ends: the process at the other end has then ended, even if it was killed.

    Call `drain` if that process writes `DRAIN`.
    """

    def wait() -> None:
        try:
            while data := os.read(descriptor, _CHUNK):
                if DRAIN in data:
                    drain()
        except OSError:  # the terminal was closed
            pass
        stop()

    threading.Thread(target=wait, name="end of input", daemon=True).start()
