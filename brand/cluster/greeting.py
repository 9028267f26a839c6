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
its nonces: each has a mark that only this node can make. So a stranger without the token cannot fill a table.
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
from typing import Annotated, Final

from brand.errors import ProtocolError, UsageError, counted
from brand.node.setup.memory import Memory, parse_size
from brand.node.wire.described import described, maybe, text, unpack_body, whole
from brand.node.wire.messages import unpack_json
from brand.reprs import Reprs

PROTOCOL: Final = 2
"""Version of the protocol between nodes."""
MAX_GREETING: Final = 1024
"""Longest greeting in bytes."""
MAX_NODES: Final = 1024
"""Maximum number of nodes of a cluster."""
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
_NODE: Final = whole(MAX_NODES - 1)
_VERSION: Final = whole(1 << 16)
_TEXT: Final = text(100)


@described(json_body=True)
@dataclass(frozen=True, slots=True)
class Greeting:
    """The facts that a node sends to another node about itself."""

    data_set: Annotated[str, _TEXT]
    """Id of the data set."""
    node: Annotated[int, _NODE]
    """The number of this node, from 0."""
    nodes: Annotated[int, whole(MAX_NODES, 1)]
    page: Annotated[int, whole(1 << 30, 1)]
    """Size of a page of the node's arena in bytes."""
    shares: Annotated[int | None, maybe(whole(1 << 40, 1))]
    """Chunks in a group, if each node holds a partition of the data; None if all nodes see one folder."""
    brand: Annotated[str, _TEXT]
    """Version of Brand; it may differ."""
    memory: Annotated[str | None, maybe(_TEXT)] = None
    """The node's memory setting, in the words of `memory_text`; None from an older version of Brand."""
    protocol: Annotated[int, _VERSION] = PROTOCOL

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Greeting:
        """Invert `to_json`. Raises `ProtocolError`, also for another version of the protocol."""
        if len(data) > MAX_GREETING:
            raise ProtocolError(f"a greeting of {len(data):,} bytes; the limit is {MAX_GREETING:,}")
        value = unpack_json(data, "a greeting")
        try:
            node = _NODE.checked("node", value.get("node"))
            protocol = _VERSION.checked("protocol", value.get("protocol"))
            if protocol == PROTOCOL:
                return unpack_body(cls, value)
        except ProtocolError as error:
            raise ProtocolError(f"a greeting that is not valid: {error}") from None
        # The rest may be other fields.
        raise ProtocolError(f"node {node} uses version {protocol} of the protocol between nodes, not {PROTOCOL}")

    def check(self) -> None:
        texts = [said for said in (self.data_set, self.brand, self.memory) if said is not None]
        if not all(said and said.isprintable() for said in texts):
            raise ProtocolError("a text is empty, or not printable")


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


def _facts(node: Greeting) -> list[tuple[str, str]]:
    """Return the facts that must be equal on all nodes, each as a verb and its object."""
    shares = "all chunks" if node.shares is None else f"a partition in groups of {counted(node.shares, 'chunk')}"
    return [
        ("serves", f"data set {node.data_set}"),
        ("knows of", counted(node.nodes, "node")),
        ("holds", shares),
        ("has", f"pages of {counted(node.page, 'byte')}"),
    ]


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
