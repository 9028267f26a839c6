"""Does the other side know the token? Each side proves it to the other, and the token itself is never sent.

    asking node                                            answering node
        Greet                            ->
                                         <-                nonce
        Exchange: hello, HMAC(hello)     ->                checks the HMAC before it looks at anything else
        checks the HMAC                  <-                welcome, HMAC(hello, welcome)

The hello holds the answering node's nonce, which is good once and for a few seconds, so that a hello that somebody has
recorded opens nothing; and a nonce of the asking node, so that a recorded welcome does not pass either. Nonces are not
remembered: they bear a mark that only their maker can make. So nobody without the token can fill a table.
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
"""Longest time for which a nonce is good; the shortest is half of it."""
NONCE: Final = 64
"""Size of an answering node's nonce in bytes."""
MIN_TOKEN: Final = 16
"""Shortest token in characters."""
MAX_USED: Final = 4096
"""Most nonces that are used within half of `LIFE_S`; only who has the token can use any."""
_RANDOM: Final = 32
_HELLO: Final = struct.Struct(f"<I{_RANDOM}s{NONCE}s")
_ASKS: Final = b"brand: node asks\0"
_ANSWERS: Final = b"brand: node answers\0"


@dataclass(frozen=True, slots=True)
class Hello:
    """What the asking node says first."""

    to: int
    """The node that it means to reach."""
    nonce: bytes
    """The answering node's."""
    greeting: bytes
    own: bytes = field(default_factory=lambda: os.urandom(_RANDOM))
    """Its own nonce."""

    def to_bytes(self) -> bytes:
        """As it is sent."""
        return _HELLO.pack(self.to, self.own, self.nonce) + self.greeting

    @classmethod
    def from_bytes(cls, data: bytes) -> Hello:
        """Inverse of `to_bytes`. Raises `ProtocolError`."""
        if len(data) < _HELLO.size:
            raise ProtocolError("half a hello")
        to, own, nonce = _HELLO.unpack_from(data)
        return cls(to, nonce, data[_HELLO.size :], own)


@dataclass(frozen=True)
class Token:
    """What all nodes of a cluster know and nobody else. Raises `UsageError` where it is short."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.text) < MIN_TOKEN:
            raise UsageError(f"a token has at least {MIN_TOKEN} characters; make one with secrets.token_hex()")

    def of_asking(self, hello: bytes) -> bytes:
        """Proof that whoever said this hello knows the token."""
        return self._digest(_ASKS, hello)

    def of_answering(self, hello: bytes, welcome: bytes) -> bytes:
        """Proof that whoever answered this hello with this welcome knows the token."""
        return self._digest(_ANSWERS, hello, welcome)

    def _digest(self, role: bytes, *parts: bytes) -> bytes:
        message = b"".join((role, *(struct.pack("<Q", len(part)) + part for part in parts)))
        return hmac.digest(self.text.encode(), message, "sha256")


class Nonces:
    """Makes nonces, and knows its own again: each is good once, and for `LIFE_S` at the most. For any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._periods: list[_Period] = []

    def __repr__(self) -> str:
        return f"Nonces({[len(period.used) for period in self._periods]} used, newest period first)"

    def make(self) -> bytes:
        """A nonce of `NONCE` bytes."""
        with self._lock:
            return self._current()[0].make()

    def use(self, nonce: bytes) -> bool:
        """Whether the nonce is good; it is not any more after this."""
        with self._lock:
            return any(period.use(nonce) for period in self._current())

    def _current(self) -> list[_Period]:
        """This period and the one before it, the newest first."""
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
