"""Connections of the data server's clients, which never block.

The server accepts only processes of its own user. It disconnects a client that sends an invalid message, and tells the
client why. It does not read from a client that does not read its answers. It disconnects a client that begins a
message and does not end it.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from brand.errors import BrandError, ProtocolError, ServerError, pack_error
from brand.node.wire import messages
from brand.node.wire.connection import Channel, listen, peer, same_user, second_address
from brand.node.wire.messages import Kind
from brand.node.wire.numbers import ClientNumber
from brand.reprs import Reprs
from brand.storage.io.files import no_descriptor_left

MAX_CLIENTS: Final = 1024
MAX_UNSENT: Final = 1 << 20
"""The server does not read from a client that has more than this many bytes of unread answers."""
HALF_MESSAGE_S: Final = 30.0
"""Seconds that a client may take to complete a message, or to send HELLO."""

log = logging.getLogger("brand.node")

Handle = Callable[["Clients", Channel, Kind, bytes], None]
"""Executes the request of a client's message. Raises `BrandError` if that is impossible."""


class Clients(Reprs, shows="_channels _numbers"):
    """Connections at one address, and at a second address for `brand top`. The loop owns them.

    `longest_order` is the largest body of an ORDER, in bytes. Raises OSError (EADDRINUSE if the address is taken).
    """

    def __init__(
        self,
        address: str,
        selector: selectors.BaseSelector,
        handle: Handle,
        left: Callable[[ClientNumber], None],
        longest_order: int = messages.MAX_REQUEST,
    ) -> None:
        self._listeners = [listen(address)]
        second = second_address(address)
        if second is not None:
            with suppress(OSError):  # address in use: the server still serves, but `brand top` does not find it
                self._listeners.append(listen(second))
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """A descriptor that is closed for a moment if no other descriptor is left."""
        self._selector, self._handle, self._left = selector, handle, left
        self._longest_order = longest_order
        self._channels: dict[ClientNumber, Channel] = {}
        self._numbers = 0
        for listener in self._listeners:
            selector.register(listener.fileno(), selectors.EVENT_READ, lambda _, at=listener: self._accept(at))

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[Channel]:
        return iter(list(self._channels.values()))

    def get(self, number: ClientNumber) -> Channel | None:
        return self._channels.get(number)

    def process_of(self, number: ClientNumber) -> int:
        """Return the process id of a client, or 0 if the client has disconnected."""
        channel = self._channels.get(number)
        return 0 if channel is None else peer(channel.socket)[0]

    @property
    def fetch(self) -> bool:
        """Whether clients are connected that may fetch, and do not just look."""
        return any(channel.drawer is not None for channel in self)

    def fetching_processes(self) -> set[int]:
        """Return the ids of the processes that fetch: of ranks, and of workers of a `DataLoader`."""
        found = {peer(channel.socket)[0] for channel in self if channel.drawer is not None}
        return found - {0, os.getpid()}

    def send(self, channel: Channel, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message. The first message of a connection may carry open files, `descriptors`."""
        if channel.send(message, descriptors):
            self._adjust(channel)
        else:
            self._drop(channel)

    def refuse(self, channel: Channel, error: BrandError, now_s: float) -> None:
        """Send the error to a client, and disconnect it."""
        log.warning("client %d is disconnected: %s", channel.number, error)
        channel.end(now_s)
        self.send(channel, messages.pack_json(Kind.FAILED, pack_error(error)))

    def tend(self, now_s: float) -> None:
        """Disconnect clients that take too long to complete a message."""
        for channel in [c for c in self._channels.values() if c.half and now_s - c.began_s > HALF_MESSAGE_S]:
            if channel.closing:
                self._drop(channel)
            else:
                self.refuse(channel, ProtocolError(f"no complete message within {HALF_MESSAGE_S:.0f} s"), now_s)

    def close(self, reason: str = "") -> None:
        """Disconnect all clients. Clients that can receive a message at once get the reason."""
        for channel in self:
            if channel.greeted and not channel.closing:
                channel.send(messages.pack_json(Kind.FAILED, {"type": messages.ENDED, "message": reason}))
            self._drop(channel)
        for listener in self._listeners:
            self._selector.unregister(listener.fileno())
            listener.close()
        os.close(self._spare)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if why := no_descriptor_left(error):
                self._accept_with_spare(listener, why)
            return  # or the client has disconnected already
        connection.settimeout(0)
        if not same_user(connection):
            log.warning("refused process %d of user %d: it belongs to another user", *peer(connection))
            connection.close()
            return
        if len(self._channels) >= MAX_CLIENTS:
            self._turn_away(connection, f"{MAX_CLIENTS:,} clients are connected, which is the maximum")
            return
        self._numbers += 1
        channel = Channel(ClientNumber(self._numbers), connection, self._longest_order)
        self._channels[channel.number] = channel
        self._selector.register(connection.fileno(), selectors.EVENT_READ, lambda events: self._serve(channel, events))

    def _accept_with_spare(self, listener: socket.socket, why: str) -> None:
        """Accept with the spare descriptor if no other is left, and tell the client so, as it would wait forever."""
        os.close(self._spare)
        try:
            with suppress(OSError):
                connection, _ = listener.accept()
                connection.settimeout(0)
                self._turn_away(connection, f"the data server cannot take another client, as {why}")
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _turn_away(self, connection: socket.socket, why: str) -> None:
        log.warning("refused process %d of user %d: %s", *peer(connection), why)
        fact = {"type": ServerError.__name__, "message": why}
        with connection, suppress(OSError):
            connection.send(messages.pack_json(Kind.FAILED, fact))

    def _serve(self, channel: Channel, events: int) -> None:
        """Read from a connection, or write to it, as `events` say."""
        if channel.number not in self._channels:
            return
        if events & selectors.EVENT_WRITE and not channel.flush():
            self._drop(channel)
            return
        if channel.unsent <= MAX_UNSENT and not channel.closing:
            alive = channel.receive() if events & selectors.EVENT_READ else True
            try:
                for kind, body in channel.messages():
                    self._handle(self, channel, kind, body)
                    if channel.number not in self._channels:
                        return
                    if channel.unsent > MAX_UNSENT:
                        break  # handle the rest when the client has read its answers
            except BrandError as error:
                self.refuse(channel, error, channel.began_s)
                return
            if not alive:
                self._drop(channel)
                return
        self._adjust(channel)

    def _adjust(self, channel: Channel) -> None:
        """Watch the connection for the events that matter now."""
        if channel.closing and not channel.unsent:
            self._drop(channel)
            return
        events = selectors.EVENT_WRITE if channel.unsent else 0
        if channel.unsent <= MAX_UNSENT and not channel.closing:
            events |= selectors.EVENT_READ
        key = self._selector.get_key(channel.socket.fileno())
        if key.events != events:
            self._selector.modify(channel.socket.fileno(), events, key.data)

    def _drop(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is None:
            return
        self._selector.unregister(channel.socket.fileno())
        channel.socket.close()
        self._left(channel.number)
