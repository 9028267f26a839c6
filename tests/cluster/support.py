"""What the tests of streams between nodes share: nodes whose events are awaited, and greetings."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from brand.cluster.greeting import Greeting
from brand.cluster.peers import PeerStreams
from brand.node.wire.network import Closed, Event, Opened, PeerStream, Received
from tests.support import LIMIT_S

TOKEN = "known to all the nodes"
ANY = "127.0.0.1:0"

Kind = TypeVar("Kind", Opened, Received, Closed)


def greeting(node: int, nodes: int = 2, **more: Any) -> Greeting:
    """A greeting that agrees with the others made here, but for `more`."""
    return replace(Greeting("2b5f", node, nodes, 4096, None, "0.1.0"), **more)


class Node:
    """A node, and what has happened on its streams that no test has looked at."""

    def __init__(self, peers: PeerStreams) -> None:
        self.peers = peers
        self.waiting: list[Event] = []

    def take(self) -> list[Event]:
        """All that has happened so far and was not looked at."""
        self.waiting += self.peers.events()
        events, self.waiting = self.waiting, []
        return events

    def next_event(self) -> Event:
        """What happens next."""
        end = time.monotonic() + LIMIT_S
        while not self.waiting:
            if not select.select([self.peers.wake], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"nothing happens for {LIMIT_S} s")
            self.waiting += self.peers.events()
        return self.waiting.pop(0)

    def next(self, kind: type[Kind], where: Callable[[Kind], bool] = lambda _: True) -> Kind:
        """The next event of a kind; those before it are dropped."""
        while True:
            event = self.next_event()
            if isinstance(event, kind) and where(event):
                return event

    def opened(self, node: int, *, asks: bool) -> PeerStream:
        """A stream that opens next."""
        stream = PeerStream(node, asks)
        self.next(Opened, lambda event: event.stream == stream)
        return stream

    def closed(self, stream: PeerStream) -> Closed:
        """Why a stream ends next, or cannot be opened."""
        return self.next(Closed, lambda event: event.stream == stream)

    def messages(self, stream: PeerStream, count: int) -> list[bytes]:
        """The next messages on a stream."""
        return [self.next(Received, lambda event: event.stream == stream).message for _ in range(count)]


@contextmanager
def running(
    number: int, nodes: int = 2, *, bind: str = ANY, token: str = TOKEN, tls: Any = None, **more: Any
) -> Iterator[Node]:
    """A node that listens."""
    peers = PeerStreams(greeting(number, nodes, **more), token, bind, tls)
    try:
        yield Node(peers)
    finally:
        peers.close()


@contextmanager
def asking(node: Node, **more: Any) -> Iterator[Node]:
    """Node 0, which asks node 1 at the address of `node`."""
    with running(0, **more) as asker:
        asker.peers.connect({1: node.peers.address})
        yield asker
