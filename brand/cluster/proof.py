"""Does the other side know the token? Each side proves it to the other, and the token itself is never sent.

    asking node                                            answering node
        Greet                            ->
                                         <-                nonce
        Exchange: hello, HMAC(hello)     ->                checks the HMAC before it looks at anything else
        checks the HMAC                  <-                welcome, HMAC(hello, welcome)

The hello holds two nonces. The answering node's nonce is valid once and for a few seconds, so a recorded hello opens
nothing. The asking node's nonce is new each time, so a recorded welcome does not pass either. A node does not remember
the nonces that it makes: each has a mark that only this node can make. So a stranger without the token cannot fill a
table.
"""

from __future__ import annotations

import hmac
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from brand.errors import ProtocolError, UsageError

LIFE_S: Final = 10.0
"""Maximum seconds for which a nonce is valid; the minimum is half of it."""
NONCE: Final = 64
"""Size of an answering node's nonce in bytes."""
MIN_TOKEN: Final = 16
"""Shortest token in characters."""
MAX_USED: Final = 4096
"""Maximum number of nonces that can be used within half of `LIFE_S`; only a node with the token can use one."""
_RANDOM: Final = 32
_HELLO: Final = struct.Struct(f"<I{_RANDOM}s{NONCE}s")
_ASKS: Final = b"brand: node asks\0"
_ANSWERS: Final = b"brand: node answers\0"


@dataclass(frozen=True, slots=True)
class PeerHello:
    """The asking node's first message."""

    to: int
    """Number of the node that it intends to reach."""
    nonce: bytes
    """The nonce of the answering node."""
    greeting: bytes
    own: bytes = field(default_factory=lambda: os.urandom(_RANDOM))
    """The nonce of the asking node."""

    def to_bytes(self) -> bytes:
        return _HELLO.pack(self.to, self.own, self.nonce) + self.greeting

    @classmethod
    def from_bytes(cls, data: bytes) -> PeerHello:
        """Invert `to_bytes`. Raises `ProtocolError`."""
        if len(data) < _HELLO.size:
            raise ProtocolError("an incomplete hello")
        to, own, nonce = _HELLO.unpack_from(data)
        return cls(to, nonce, data[_HELLO.size :], own)


@dataclass(frozen=True)
class Token:
    """The secret of a cluster, which only its nodes know. Raises `UsageError` if it is short."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.text) < MIN_TOKEN:
            raise UsageError(f"a token has at least {MIN_TOKEN} characters; make one with secrets.token_hex()")

    def of_asking(self, hello: bytes) -> bytes:
        """Return the proof that the node that sent this hello knows the token."""
        return self._digest(_ASKS, hello)

    def of_answering(self, hello: bytes, welcome: bytes) -> bytes:
        """Return the proof that the node that answered this hello with this welcome knows the token."""
        return self._digest(_ANSWERS, hello, welcome)

    def _digest(self, role: bytes, *parts: bytes) -> bytes:
        message = b"".join((role, *(struct.pack("<Q", len(part)) + part for part in parts)))
        return hmac.digest(self.text.encode(), message, "sha256")


class Nonces:
    """Makes nonces, and recognises its own. Each is valid once, for at most `LIFE_S`. Safe for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._periods: list[_Period] = []

    def __repr__(self) -> str:
        return f"Nonces({[len(period.used) for period in self._periods]} used, newest period first)"

    def make(self) -> bytes:
        with self._lock:
            return self._current()[0].make()

    def use(self, nonce: bytes) -> bool:
        """Use a nonce up. Returns whether it was valid."""
        with self._lock:
            return any(period.use(nonce) for period in self._current())

    def _current(self) -> list[_Period]:
        """Return this period and the one before it, the newest first."""
        now_s = self._clock()
        if not self._periods or now_s >= self._periods[0].began_s + LIFE_S / 2:
            self._periods = [_Period(now_s), *self._periods[:1]]
        self._periods = [period for period in self._periods if now_s < period.began_s + LIFE_S]
        return self._periods


class _Period:
    """Half of a nonce's life: a key of its own, and the nonces made with it that were used."""

    def __init__(self, began_s: float) -> None:
        self.began_s, self._key = began_s, os.urandom(_RANDOM)
        self.used: set[bytes] = set()

    def make(self) -> bytes:
        random = os.urandom(_RANDOM)
        return random + self._mark(random)

    def use(self, nonce: bytes) -> bool:
        good = hmac.compare_digest(self._mark(nonce[:_RANDOM]), nonce[_RANDOM:])
        if not good or nonce in self.used or len(self.used) >= MAX_USED:
            return False
        self.used.add(nonce)
        return True

    def _mark(self, random: bytes) -> bytes:
        return hmac.digest(self._key, random, "sha256")
