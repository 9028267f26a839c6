"""Do two nodes belong together? The facts that must be equal on both sides, and a proof that each side knows the token.

A greeting is a small JSON object. Its reader validates it: first the size, then every field. Each side proves to the
other that it knows the token, and the token itself is never sent:

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
import json
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from brand.errors import ProtocolError, UsageError, counted
from brand.node.setup.memory import Memory, parse_size
from brand.reprs import Reprs

PROTOCOL: Final = 1
"""Version of the protocol between nodes."""
MAX_GREETING: Final = 1024
"""Longest greeting in bytes."""
MAX_NODES: Final = 1024
"""Maximum number of nodes of a cluster."""
_MAX_TEXT: Final = 100
_LIMITS: Final = {
    "protocol": (0, 1 << 16),
    "node": (0, MAX_NODES - 1),
    "nodes": (1, MAX_NODES),
    "page": (1, 1 << 30),
    "shares": (1, 1 << 40),
}
"""Smallest and largest value of each number."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The facts that a node sends to another node about itself."""

    data_set: str
    """Id of the data set."""
    node: int
    """The number of this node, from 0."""
    nodes: int
    """Number of nodes."""
    page: int
    """Size of a page of the node's arena in bytes."""
    shares: int | None
    """Chunks in a group, if each node holds a partition of the data; None if all nodes see one folder."""
    brand: str
    """Version of Brand; it may differ."""
    memory: str | None = None
    """The node's memory setting, in the words of `memory_text`; None from an older version of Brand, which does not
    send it.
    """
    protocol: int = PROTOCOL

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Greeting:
        """Invert `to_json`. Raises `ProtocolError`, also for another version of the protocol."""
        value = _object(text)
        node, protocol = _number(value, "node"), _number(value, "protocol")
        if protocol != PROTOCOL:  # the rest may be other fields
            raise ProtocolError(f"node {node} uses version {protocol} of the protocol between nodes, not {PROTOCOL}")
        return cls(
            data_set=_text(value, "data_set"),
            node=node,
            nodes=_number(value, "nodes"),
            page=_number(value, "page"),
            shares=None if value.get("shares") is None else _number(value, "shares"),
            brand=_text(value, "brand"),
            memory=None if value.get("memory") is None else _text(value, "memory"),
        )


def disagreement(mine: Greeting, theirs: Greeting) -> str:
    """Return why two nodes cannot work together, naming both; empty if they can."""
    if theirs.node == mine.node:
        return f"two nodes have the number {mine.node}: give each a number of its own"
    if theirs.nodes == mine.nodes <= theirs.node:
        return (
            f"node {theirs.node} greets node {mine.node}, but the last of {mine.nodes} nodes is node {mine.nodes - 1}"
        )
    differ = [
        f"node {theirs.node} {verb} {said}, node {mine.node} {meant}"
        for (verb, meant), (_, said) in zip(_facts(mine), _facts(theirs), strict=True)
        if said != meant
    ]
    if None not in (mine.memory, theirs.memory) and mine.memory != theirs.memory:
        differ.append(
            f"node {theirs.node} has {theirs.memory}, node {mine.node} has {mine.memory}: "
            "give all nodes the same --memory (in Python: memory=)"
        )
    return "; ".join(differ)


def memory_text(memory: Memory) -> str:
    """Return a node's memory setting in words; equal memory gives equal text. Raises `UsageError`."""
    if memory is None:
        return "no memory named, so a part of what is free"
    if isinstance(memory, str):
        memory = parse_size(memory)
    return f"memory for {memory!r} of the data" if isinstance(memory, float) else f"memory of {memory:,} bytes"


def _facts(greeting: Greeting) -> list[tuple[str, str]]:
    """Return the facts that must be equal on all nodes, each as a verb and its object."""
    shares = (
        "all chunks" if greeting.shares is None else f"a partition in groups of {counted(greeting.shares, 'chunk')}"
    )
    return [
        ("serves", f"data set {greeting.data_set}"),
        ("knows of", counted(greeting.nodes, "node")),
        ("holds", shares),
        ("has", f"pages of {counted(greeting.page, 'byte')}"),
    ]


def _object(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_GREETING:
        raise ProtocolError(f"a greeting of {len(text):,} bytes; the limit is {MAX_GREETING:,}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("a greeting is not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError("a greeting is not a JSON object")
    return value


def _number(value: dict[str, Any], name: str) -> int:
    least, most = _LIMITS[name]
    number = value.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise ProtocolError(f"a greeting in which {name} is not a number from {least} to {most:,}")
    return number


def _text(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_TEXT or not text.isprintable():
        raise ProtocolError(f"a greeting in which {name} is not a text of 1 to {_MAX_TEXT} characters")
    return text


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


class Nonces(Reprs, shows="_periods"):
    """Makes nonces, and recognises its own. Each is valid once, for at most `LIFE_S`. Safe for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._periods: list[_Period] = []
        """The newest first."""

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


class _Period(Reprs, shows="used"):
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
