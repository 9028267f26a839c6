"""Open streams and their events: one queue between the threads that receive and the loop.

The queue has a bound in bytes. While the loop removes nothing, the threads that receive wait. gRPC's flow control then
stops the other side, and messages wait there. An eventfd wakes the loop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from brand.cluster.link import WAIT_S, PeerLink
from brand.cluster.parcel import Unpacking
from brand.errors import ProtocolError
from brand.node.wire.network import Closed, Event, Opened, PeerStream, Received
from brand.reprs import Reprs

MAX_HELD: Final = 4 << 20
"""Maximum number of bytes in the queue."""
_EVENT: Final = 256
"""Bytes that an event counts in addition to its message, so that events with empty messages have a bound, too."""


class Streams(Reprs, shows="_closed _links _events _held"):
    """Open streams and their events. Safe for several threads; the loop's calls never wait."""

    def __init__(self, limit: int = MAX_HELD) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._links: dict[PeerStream, PeerLink] = {}
        self._events: list[Event] = []
        self._held = 0
        self._closed = False
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when there are events, or a full stream has capacity again."""

    # -- called by the loop ------------------------------------------------------------------------------------------

    def take(self) -> list[Event]:
        """Return all events since the last call."""
        with self._changed:
            if not self._closed:
                with suppress(BlockingIOError):
                    os.eventfd_read(self.wake)
            events, self._events, self._held = self._events, [], 0
            self._changed.notify_all()
            return events

    def find(self, stream: PeerStream) -> PeerLink | None:
        with self._changed:
            return self._links.get(stream)

    def end(self, link: PeerLink, reason: str) -> None:
        """End an open stream. Has no effect if it has ended.

        Does not wait for space in the queue, because each stream adds at most one `Closed`.
        """
        with self._changed:
            if self._links.get(link.stream) is link:
                del self._links[link.stream]
                self._add(Closed(link.stream, reason))
                self._changed.notify_all()
        link.end()

    # -- called by the threads that receive --------------------------------------------------------------------------

    def open(self, link: PeerLink) -> bool:
        """Add a stream that is open now, and end an older stream to the same node. Waits for space.

        Returns False if `close` was called.
        """
        with self._changed:
            while not self._closed and not self._has_room(_EVENT):
                self._changed.wait(WAIT_S)
            if self._closed:
                return False
            old = self._links.get(link.stream)
            if old is not None:
                self._add(Closed(link.stream, f"node {link.stream.node} has opened it again"))
            self._links[link.stream] = link
            self._add(Opened(link.stream))
            self._changed.notify_all()  # the receiver of the old stream may wait for space
        if old is not None:
            old.end()
        return True

    def follow(self, link: PeerLink, incoming: Iterator[bytes]) -> None:
        """Receive until either side ends the stream. Raises the errors of `incoming`."""
        unpacking = Unpacking()
        try:
            for data in incoming:
                if not self._receive(link, unpacking.messages(data)):
                    return
        except ProtocolError as error:
            self.end(link, f"node {link.stream.node} violated the protocol: {error}")

    def fail(self, event: Closed) -> None:
        """Add the event that a stream could not be opened. Waits for space."""
        with self._changed:
            while not self._closed and not self._has_room(_EVENT):
                self._changed.wait(WAIT_S)
            if not self._closed:
                self._add(event)

    def rouse(self) -> None:
        """Wake the loop."""
        with self._changed:
            if not self._closed:
                os.eventfd_write(self.wake, 1)

    def close(self) -> None:
        """End all streams. Later calls have no effect."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            links, self._links, self._events = list(self._links.values()), {}, []
            self._changed.notify_all()
            os.close(self.wake)
        for link in links:
            link.end()

    def _receive(self, link: PeerLink, messages: list[bytes]) -> bool:
        """Add messages that arrived together. Waits for space. Returns False if the stream has ended."""
        size = sum(map(len, messages))
        with self._changed:
            while self._links.get(link.stream) is link:
                if self._has_room(size + _EVENT * len(messages)):
                    for message in messages:
                        self._add(Received(link.stream, message), len(message))
                    return True
                self._changed.wait(WAIT_S)
            return False

    def _has_room(self, size: int) -> bool:
        # An empty queue accepts any message: a message above the limit would wait forever otherwise.
        return not self._held or self._held + size <= self._limit

    def _add(self, event: Event, size: int = 0) -> None:
        # The loop removes all events at once, so one wake-up is enough.
        if not self._events:
            os.eventfd_write(self.wake, 1)
        self._events.append(event)
        self._held += size + _EVENT
