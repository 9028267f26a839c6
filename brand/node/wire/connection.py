"""Unix sockets between processes of one user: addresses, the check of the user, and the split of bytes into messages.

Addresses are abstract (`unix:@name`), so the file system has no entry that a process could leave behind. Both sides ask
the kernel for the user of the other side before the first byte.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from brand.errors import ProtocolError, UsageError
from brand.node.wire.drawing import Drawer
from brand.node.wire.messages import HEAD, MAX_REQUEST, Kind, parse_head
from brand.node.wire.numbers import ClientNumber
from brand.reprs import Reprs

PREFIX: Final = "unix:@"
_CREDENTIALS: Final = struct.Struct("3i")
_CHUNK: Final = 1 << 18


def socket_name(address: str) -> bytes:
    """Return the kernel's name of an address such as `unix:@name`. Raises `UsageError`."""
    name = address.removeprefix(PREFIX).encode()
    if not address.startswith(PREFIX) or not 0 < len(name) < 100 or b"\0" in name:
        raise UsageError(f"server={address!r}: an address looks like 'unix:@name', as `brand serve` prints it")
    return b"\0" + name


def listen(address: str) -> socket.socket:
    """Return a listening socket. Raises OSError (EADDRINUSE if a process listens there already)."""
    name = socket_name(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.bind(name)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def own_addresses(table: Path = Path("/proc/net/unix")) -> list[str]:
    """Return the addresses of this user's data servers (see `own_address`), one for each server."""
    prefix = _own_prefix().removeprefix("unix:")
    names = {line.split()[-1] for line in table.read_text().splitlines() if line.split()[-1].startswith(prefix)}
    return sorted(f"unix:{name}" for name in names)


def own_address(facts: bytes) -> str:
    """Return an address for a server of this user, derived from the facts that distinguish it from other servers."""
    return f"{_own_prefix()}{hashlib.blake2s(facts, digest_size=8).hexdigest()}"


def second_address(address: str) -> str | None:
    """Return a second address for a server, for `own_addresses`; None if that finds the first address already."""
    return None if address.startswith(_own_prefix()) else own_address(address.encode())


def _own_prefix() -> str:
    return f"{PREFIX}brand-{os.getuid()}-"


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end, as the kernel reports them.

    The process has its number of this PID namespace; 0 if this namespace does not have it.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return process, user


def pid_namespace() -> int:
    """Return a number of the PID namespace of this process; 0 if /proc does not tell it."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user."""
    return peer(connection)[1] == os.geteuid()


class Channel(Reprs, shows="number greeted closing _inbox _outbox"):
    """The server's end of one connection: splits bytes into messages and sends messages as bytes. Never blocks."""

    def __init__(self, number: ClientNumber, connection: socket.socket, longest_order: int = MAX_REQUEST) -> None:
        self.number, self.socket = number, connection
        self._longest_order = longest_order
        """Largest body of an ORDER that is accepted, in bytes."""
        self.greeted = False
        self.drawer: Drawer | None = None
        """The process at the other end, as given in its HELLO."""
        self.closing = False
        """Whether the connection is closed as soon as all messages are sent."""
        self.began_s = time.monotonic()
        """Time at which the unfinished message began; before the first message, time at which the connection began."""
        self._inbox, self._outbox = bytearray(), bytearray()

    def greet(self, drawer: Drawer | None) -> None:
        """Record that the client has sent HELLO, and the process that draws."""
        self.greeted, self.drawer = True, drawer

    def end(self, now_s: float) -> None:
        """Have the connection closed as soon as all messages are sent, or after a while."""
        self.closing, self.began_s = True, now_s

    @property
    def unsent(self) -> int:
        return len(self._outbox)

    @property
    def half(self) -> bool:
        """Whether a message has begun and not ended, the client has not sent HELLO, or the connection is closing."""
        return bool(self._inbox) or not self.greeted or self.closing

    def receive(self) -> bool:
        """Read the bytes that have arrived. Returns False if the client has disconnected."""
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not self._inbox:
            self.began_s = time.monotonic()
        self._inbox += data
        return bool(data)

    def messages(self) -> Iterator[tuple[Kind, bytes]]:
        """Yield the whole messages that have arrived. Raises `ProtocolError`."""
        while len(self._inbox) >= HEAD.size:
            kind, length = parse_head(self._inbox[: HEAD.size], MAX_REQUEST, self._longest_order)
            end = HEAD.size + length
            if len(self._inbox) < end:
                return
            body = bytes(self._inbox[HEAD.size : end])
            del self._inbox[:end]
            self.began_s = time.monotonic()
            yield kind, body
        if len(self._inbox) > HEAD.size + max(MAX_REQUEST, self._longest_order):
            raise ProtocolError("more bytes than one message")

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send a message, or store it for `flush`. Returns False if the client has disconnected."""
        if descriptors:  # the first message of the connection, so no other message is waiting
            try:
                sent = socket.send_fds(self.socket, [message], descriptors)
            except OSError:
                return False
            self._outbox += message[sent:]
            return True
        self._outbox += message
        return self.flush()

    def flush(self) -> bool:
        """Send stored messages. Returns False if the client has disconnected."""
        try:
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True
