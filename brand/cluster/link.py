"""The sending half of one open stream: messages under way to another node.

The loop adds messages and never waits. gRPC's sending thread removes a message when the message before it has passed
flow control. So the bytes counted here as unsent are those that the other side has not received.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from brand.cluster.parcel import pack
from brand.node.wire.network import MAX_UNSENT, PeerStream
from brand.reprs import Reprs

LIMIT_UNSENT: Final = 4 * MAX_UNSENT
"""Maximum number of unsent bytes of a stream. A stream with more is ended, because its sender ignores `unsent`."""
WAIT_S: Final = 1.0
"""Seconds after which a waiting thread checks again whether it must still wait."""


class PeerLink(Reprs, shows="stream _unsent _ended"):
    """Messages to one node, in order. The loop's calls never wait."""

    def __init__(
        self, stream: PeerStream, rouse: Callable[[], None], cancel: Callable[[], object] | None = None
    ) -> None:
        self.stream = stream
        self.cancel = cancel
        """Ends the call that carries the stream; None while there is no call."""
        self._rouse = rouse
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._unsent = 0
        self._was_full = self._ended = False

    @property
    def unsent(self) -> int:
        """Bytes that gRPC has not accepted, or cannot send because the other side receives nothing."""
        return self._unsent

    def put(self, message: bytes) -> bool:
        """Queue a message. Returns False if more than `LIMIT_UNSENT` bytes would then be unsent."""
        with self._changed:
            if self._unsent + len(message) > LIMIT_UNSENT:
                return False
            self._waiting.append(message)
            self._unsent += len(message)
            self._was_full = self._was_full or self._unsent >= MAX_UNSENT
            self._changed.notify()
            return True

    def outgoing(self) -> Iterator[bytes]:
        """Yield the messages that gRPC's sending thread sends. Waits for messages until the stream is ended."""
        while (parcel := self._next()) is not None:
            data, size = parcel
            yield from data
            self._sent(size)

    def finish(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()

    def end(self) -> None:
        """Send nothing more, and end the call."""
        self.finish()
        if self.cancel is not None:
            self.cancel()

    def _next(self) -> tuple[list[bytes], int] | None:
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait(WAIT_S)
            return None if self._ended else pack(self._waiting)

    def _sent(self, size: int) -> None:
        with self._changed:
            self._unsent -= size
            # Wake the loop once per full stream, and only at half, so that it adds many messages at a time.
            room = self._was_full and self._unsent < MAX_UNSENT // 2
            if room:
                self._was_full = False
        if room:
            self._rouse()
