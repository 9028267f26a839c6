"""Reads the heads of HTTP requests from many connections in one thread, so that a silent client costs no thread.

The number of connections whose request is not there, their time and the size of a head have limits. If there are too
many, the oldest is closed: a client that sends its request at once is served, however many others are silent.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from brand.reprs import Reprs

MOST_HEAD: Final = 8192
"""Maximum size of a request in bytes."""
MOST_PENDING: Final = 128
"""Maximum number of connections whose request has not arrived."""

Ready = Callable[[socket.socket, str | int], None]
"""Receives a connection and the head of its request, or the status with which the request is refused."""


@dataclass(slots=True)
class _HeadRead:
    end_s: float
    data: bytearray = field(default_factory=bytearray)


class PendingRequests(Reprs, shows="_pending"):
    """Connections whose requests have not arrived, watched by a selector whose keys have callbacks. One thread."""

    def __init__(self, selector: selectors.BaseSelector, ready: Ready) -> None:
        self._selector, self._ready = selector, ready
        self._pending: dict[socket.socket, _HeadRead] = {}
        """The oldest first."""

    def add(self, connection: socket.socket, limit_s: float) -> None:
        """Read the request of a connection, which may take this long."""
        if len(self._pending) >= MOST_PENDING:
            self.close_oldest()
        connection.settimeout(0)
        self._pending[connection] = _HeadRead(time.monotonic() + limit_s)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(connection))

    def close_oldest(self) -> bool:
        """Close the connection that has waited longest. Returns False if there is none."""
        oldest = next(iter(self._pending), None)
        if oldest is None:
            return False
        self._take(oldest)
        oldest.close()
        return True

    def tend(self, now_s: float) -> None:
        """Refuse the requests that have taken too long."""
        for connection in [each for each, pending in self._pending.items() if now_s > pending.end_s]:
            self._take(connection)
            self._ready(connection, 408)

    def close(self) -> None:
        while self.close_oldest():
            pass

    def _read(self, connection: socket.socket) -> None:
        if connection not in self._pending:  # closed since the selector found it
            return
        data = self._pending[connection].data
        try:
            more = connection.recv(MOST_HEAD)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        data += more
        head, end, _ = data.partition(b"\r\n\r\n")
        if more and not end and len(data) <= MOST_HEAD:
            return
        self._take(connection)
        if not more:
            connection.close()
        else:
            self._ready(connection, 431 if len(data) > MOST_HEAD else head.decode("latin-1"))

    def _take(self, connection: socket.socket) -> None:
        del self._pending[connection]
        self._selector.unregister(connection)
