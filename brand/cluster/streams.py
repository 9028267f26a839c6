"""Open streams: one queue of events between the threads that receive and the loop; messages under way to each node.

The queue has a bound in bytes. While the loop removes nothing, the threads that receive wait. gRPC's flow control then
stops the other side, and messages wait there. An eventfd wakes the loop.

A `PeerLink` is the sending half of one open stream. The loop adds messages and never waits. gRPC's sending thread
removes a message when the message before it has passed flow control. So unsent bytes are those not yet received.

Small messages that wait are sent together, because gRPC's cost of a message hardly depends on its size. A message of
more than `PARCEL` bytes is sent by itself. Smaller messages are sent as one parcel, in order:

    u32 count | u32 size of each | the messages

A message that is just small enough to look like a parcel, yet too large to fit into one, is sent by itself after an
empty parcel (count 0). The empty parcel marks the next piece as one message.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Final

from brand.errors import ProtocolError
from brand.node.wire.network import MAX_UNSENT, Closed, Event, Opened, PeerStream, Received
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
        self._known: dict[PeerStream, PeerLink] = {}
        """The streams that were open at the last `take`, so the loop knows of them."""
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
            self._known = dict(self._links)
            self._changed.notify_all()
            return events

    def find(self, stream: PeerStream) -> PeerLink | None:
        """Return an open stream. None if it has ended, or has been opened again since the last `take`.

        Until the loop knows of the new stream, it sends to the old one. Such messages are lost.
        """
        with self._changed:
            link = self._links.get(stream)
            return link if link is self._known.get(stream) else None

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
            if not self._wait_for_room():
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
            if self._wait_for_room():
                self._add(event)

    def rouse(self) -> None:
        with self._changed:
            if not self._closed:
                os.eventfd_write(self.wake, 1)

    def close(self) -> None:
        """End all streams. Later calls have no effect."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            links, self._links, self._known, self._events = list(self._links.values()), {}, {}, []
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

    def _wait_for_room(self) -> bool:
        """Wait for space for an event. Returns False if `close` was called."""
        while not self._closed and not self._has_room(_EVENT):
            self._changed.wait(WAIT_S)
        return not self._closed

    def _has_room(self, size: int) -> bool:
        # An empty queue accepts any message: a message above the limit would wait forever otherwise.
        return not self._held or self._held + size <= self._limit

    def _add(self, event: Event, size: int = 0) -> None:
        # The loop removes all events at once, so one wake-up is enough.
        if not self._events:
            os.eventfd_write(self.wake, 1)
        self._events.append(event)
        self._held += size + _EVENT


LIMIT_UNSENT: Final = 4 * MAX_UNSENT
"""Maximum number of unsent bytes of a stream. A stream with more is ended, because its sender ignores `unsent`."""
WAIT_S: Final = 1.0
"""Seconds after which a waiting thread checks again whether it must still wait."""


class PeerLink(Reprs, shows="stream unsent _ended"):
    """Messages to one node, in order. The loop's calls never wait."""

    def __init__(
        self, stream: PeerStream, rouse: Callable[[], None], cancel: Callable[[], object] | None = None
    ) -> None:
        self.stream = stream
        self._cancel = cancel
        """Ends the call that carries the stream; None while there is no call."""
        self._rouse = rouse
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self.unsent = 0
        """Bytes that gRPC has not accepted, or cannot send because the other side receives nothing."""
        self._was_full = self._ended = False

    def carry(self, cancel: Callable[[], object]) -> None:
        """Record how to end the call that carries the stream."""
        self._cancel = cancel

    def put(self, message: bytes) -> bool:
        """Queue a message. Returns False if more than `LIMIT_UNSENT` bytes would then be unsent."""
        with self._changed:
            if self.unsent + len(message) > LIMIT_UNSENT:
                return False
            self._waiting.append(message)
            self.unsent += len(message)
            self._was_full = self._was_full or self.unsent >= MAX_UNSENT
            self._changed.notify()
            return True

    def outgoing(self) -> Iterator[bytes]:
        """Yield the messages that gRPC's sending thread sends. Waits for messages until the stream is ended."""
        while (parcel := self._next()) is not None:
            data, size = parcel
            yield from data
            self._sent(size)

    def finish(self) -> None:
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()

    def end(self) -> None:
        """Send nothing more, and end the call."""
        self.finish()
        if self._cancel is not None:
            self._cancel()

    def _next(self) -> tuple[list[bytes], int] | None:
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait(WAIT_S)
            return None if self._ended else pack(self._waiting)

    def _sent(self, size: int) -> None:
        with self._changed:
            self.unsent -= size
            # Wake the loop once per full stream, and only at half, so that it adds many messages at a time.
            room = self._was_full and self.unsent < MAX_UNSENT // 2
            if room:
                self._was_full = False
        if room:
            self._rouse()


PARCEL: Final = (1 << 20) - 1
"""Largest parcel in bytes."""
MAX_COUNT: Final = 4096
"""Maximum number of messages in a parcel."""
_COUNT: Final = struct.Struct("<I")
_WORD: Final = 4
_ALONE: Final = _COUNT.pack(0)


def pack(waiting: deque[bytes]) -> tuple[list[bytes], int]:
    """Remove the first waiting message and those that fit with it. Returns the data to send, and the messages' size."""
    first = waiting.popleft()
    size = len(first)
    if size > PARCEL:
        return [first], size
    length = 2 * _WORD + size
    if length > PARCEL:
        return [_ALONE, first], size
    messages = [first]
    while waiting and len(messages) < MAX_COUNT and length + _WORD + len(waiting[0]) <= PARCEL:
        message = waiting.popleft()
        messages.append(message)
        size += len(message)
        length += _WORD + len(message)
    sizes = struct.pack(f"<{1 + len(messages)}I", len(messages), *map(len, messages))
    return [b"".join((sizes, *messages))], size


class Unpacking(Reprs, shows="_alone"):
    """Extracts the messages from one node's data. Checks each size before it reads a byte."""

    def __init__(self) -> None:
        self._alone = False
        """Whether the next piece is one message."""

    def messages(self, data: bytes) -> list[bytes]:
        if self._alone or len(data) > PARCEL:
            self._alone = False
            return [data]
        if data == _ALONE:
            self._alone = True
            return []
        return list(_split(data))


def _split(data: bytes) -> Iterator[bytes]:
    count = _COUNT.unpack_from(data)[0] if len(data) >= _WORD else 0
    begin = _WORD * (1 + count)
    if not 0 < count <= MAX_COUNT or begin > len(data):
        raise ProtocolError("a parcel without its sizes")
    ends = list(accumulate(struct.unpack_from(f"<{count}I", data, _WORD), initial=begin))
    if ends[-1] != len(data):
        raise ProtocolError("a parcel whose sizes do not add up")
    return (data[a:b] for a, b in pairwise(ends))
