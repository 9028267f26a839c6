"""Messages between clients and the data server: typed, length-prefixed, never pickled.

`docs/dev/messages.md` specifies them, and `brand.node.wire.client_messages` has a class for each.

    u32 length of the body | u16 kind | u16 version | body

Rare messages have JSON bodies (`HELLO`, `ORDER`, `PREPARE`, `PEERS`, `STATS`, `REPORT`, `LOOP`, `FAILED`). Others have
packed numbers (`BEGIN`, `POSITIONS`, `DRAW`, `LEASE`, `RELEASE`, `FETCH`, `JOINS`, `DECIDED`, `PLACES`, `TAKEN`). Both
sides validate: a body has a maximum size, and a field with a wrong value raises `ProtocolError`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, ServerError, UnreachableError, UsageError
from brand.errors import ProtocolError as ProtocolError
from brand.orders.base.part import RandomSubset, Subset
from brand.orders.order import Order

VERSION: Final = 12
HEAD: Final = struct.Struct("<IHH")
MAX_REQUEST: Final = 1 << 20
"""Largest body that a server accepts, in bytes, except for an ORDER with a subset, and a BEGIN with lengths."""
MAX_MESSAGE: Final = 8 << 20
"""Largest message between nodes in bytes, both ways. gRPC refuses a larger one as soon as it has read its length."""
MAX_SHARED_ORDER: Final = MAX_MESSAGE - (1 << 16)
"""Largest order of a run on several nodes with the rule of its ranks, in bytes: nodes send both in DRAWING."""
_BITS: Final = "bits"
_FRACTIONS: Final = "fractions"
MAX_REPLY: Final = 1 << 28
"""Largest body that a client accepts, in bytes."""
MAX_FAILED: Final = 1 << 16
"""Largest body of a FAILED, in bytes."""
ENDED: Final = "Ended"
"""Type of a FAILED that refuses nothing: the server was stopped."""
REFUSALS: Final[dict[str, type[BrandError]]] = {
    cls.__name__: cls for cls in (ServerError, UnreachableError, UsageError, ProtocolError)
}
"""Classes that the type of a FAILED can name. For any other type, a client raises `ServerError`."""
MAX_REASON: Final = 1000
"""Longest reason of a report, in characters."""
MAX_DRAW: Final = 1 << 16
"""Maximum number of positions in one draw."""
MOST_PLACES: Final = 1 << 16
"""Maximum number of places in one DECIDED or PLACES: longer orders need several."""

MAX_REPLICAS: Final = 1 << 16
GOES_ON: Final = 0
"""In place of the number of processes of a rank: as many as before, and the rank continues its previous draws."""
AS_BEGUN: Final = 0
"""In place of the number of ranks: as the ranks of the node have begun the run."""
UNTOLD: Final = (1 << 32) - 1
"""In place of the number of processes of a rank: unknown, so the server does not check for skipped positions."""
MAX_COPIES: Final = 255
"""Maximum number of ranks that draw the same positions."""
MAX_NAME: Final = 100
"""Longest name of a run, in characters."""

PRESENT: Final = 1
"""State of a sample in a lease: it is in memory. The state is 0 if it is not."""
CHECKED: Final = 2
"""State of a sample in a lease: it is in memory, and its checksum was right."""
PREPARED: Final = 4
"""Added to the state of a sample in a lease: all its decoded fields for this client are in memory, too."""


class Kind(IntEnum):
    """Kinds of messages: the request of a client, and the server's answer."""

    HELLO = 1
    """Client: its process and its data set. Server: its own, with the arena in the ancillary data."""
    ORDER = 2
    """Client: the name and the order of a run. Server: the number of the run."""
    BEGIN = 3
    """Client: a rank is about to draw. No reply."""
    DRAW = 4
    """Client: positions that a rank draws. The server answers with LEASE."""
    LEASE = 5
    """Server: the pages of the samples of a draw (`brand.node.wire.draw_messages`)."""
    RELEASE = 6
    """Client: it has copied the samples of a lease. No reply."""
    STATS = 7
    """Client: nothing, or the number of rows of each training loop. Server: counters."""
    REPORT = 8
    """Client: a sample that was replaced. No reply."""
    FAILED = 9
    """Server: the reason for which it refuses a request. It then closes the connection."""
    POSITIONS = 10
    """Client: a rank of an epoch. Server: the positions that the rank draws."""
    PEERS = 12
    """Client: the addresses of the servers of other nodes. No reply."""
    FETCH = 11
    """Client: places of samples that only other nodes have. Server: their stored bytes."""
    JOINS = 13
    """Client: the points at which its run joined other runs in an epoch, as far as it knows. Server: all of them."""
    PREPARE = 14
    """Client: its decode specs. Server: numbers of these, or why it does not decode."""
    DECIDED = 15
    """Client: the part of an online order that it knows. Server: the part that is decided."""
    PLACES = 16
    """Client: the positions of an epoch whose samples it reads itself. Server: the samples at these positions."""
    TAKEN = 17
    """Client: positions whose samples it has read itself (`brand.node.wire.draw_messages`). No reply."""
    LOOP = 18
    """Client: the waits of its training loop since its last LOOP (`brand.node.wire.looping`). No reply."""


class PeerKind(IntEnum):
    """Kinds of messages between data servers (`brand.node.wire.peer_messages`)."""

    DRAWING = 1
    """Asking node: the epoch that its ranks draw."""
    FORGET = 2
    """Asking node: an epoch, or a run, that it does not need any more."""
    ROOM = 3
    """Asking node: total pages that it has had space for since the stream was opened."""
    REQUEST = 4
    """Asking node: positions that its ranks draw, and its pages as in ROOM."""
    FETCH = 5
    """Asking node: places of samples that it needs."""
    PUSH = 6
    """Home node: samples of an epoch, and places that it will not send."""
    FETCHED = 7
    """Home node: a segment of its answer to a FETCH."""
    REFUSED = 8
    """Home node: why it cannot serve a run."""
    JOINING = 9
    """Asking node: the joins with which it would draw an epoch."""
    FRONT = 10
    """Asking node: how far its ranks have drawn an epoch."""
    PART = 11
    """Home node: some pages of a sample that is larger than a message."""
    FOLLOWING = 12
    """Asking node: an epoch whose order the first node decides."""
    KNOWN = 13
    """Asking node: positions of that order that it knows, and those that its ranks need."""
    GROWN = 14
    """First node: more positions of that order."""
    LEFT = 15
    """Asking node: it follows that order no longer. First node: it has forgotten it."""


@dataclass(frozen=True, slots=True)
class Chains:
    """Chains of pages: the number of pages of each, and all pages, chain by chain."""

    counts: NDArray[np.uint32]
    pages: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.counts)


NO_CHAINS: Final = Chains(np.empty(0, np.uint32), np.empty(0, np.int32))


def frame(kind: IntEnum, *parts: bytes | memoryview) -> bytes:
    """Return a message with this body."""
    return b"".join((HEAD.pack(sum(map(len, parts)), kind, VERSION), *parts))


def parse_head(head: bytes | bytearray | memoryview, limit: int, order_limit: int = 0) -> tuple[Kind, int]:
    """Return kind and length of the body, at most `limit` (ORDER and BEGIN: `order_limit`). Raises `ProtocolError`."""
    length, kind, version = HEAD.unpack(head)
    if version != VERSION:
        raise ProtocolError(
            f"the other side uses version {version} of the protocol, this side {VERSION}: install one version of Brand"
            " for the server and its clients"
        )
    if kind not in Kind.__members__.values():
        raise ProtocolError(f"unknown kind of message: {kind}")
    limit = max(limit, order_limit) if kind in (Kind.ORDER, Kind.BEGIN) else limit
    if length > limit:
        raise ProtocolError(f"a message of {length:,} bytes; the limit is {limit:,}")
    return Kind(kind), length


def pack_json(kind: Kind, value: Any) -> bytes:
    return frame(kind, json.dumps(value).encode())


def unpack_json(body: bytes | memoryview, name: str = "a body") -> dict[str, Any]:
    """Return the object in a body. Raises `ProtocolError`, whose message begins with `name`."""
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{name} is not a JSON object")
    return value


def longest_order(samples: int, nodes: int = 1) -> int:
    """Return the largest body of an ORDER or a BEGIN in bytes that one of `nodes` servers of that many samples accepts.

    An ORDER may have a fraction of 4 bytes for each sample, and a BEGIN a length of 8 bytes.
    """
    longest = MAX_REQUEST + 4 * -(-(8 * samples + samples // 64) // 3)  # 4 characters for 3 bytes
    return longest if nodes == 1 else min(longest, MAX_SHARED_ORDER)


def order_facts(order: Order) -> dict[str, Any]:
    """Return an order as plain values, with the bits of its subset, or the fractions of its random subset."""
    name = _FRACTIONS if isinstance(order.subset, RandomSubset) else _BITS
    return {"order": order.to_json()} | ({} if order.subset is None else {name: order.subset.to_text()})


def unpack_order(value: dict[str, Any]) -> Order:
    """Invert `order_facts`, with validation. Raises ValueError, TypeError."""
    order, part = value["order"], None
    samples = order.get("samples") if isinstance(order, dict) else None
    for name, kind in ((_BITS, Subset), (_FRACTIONS, RandomSubset)):
        if name in value and isinstance(samples, int):
            part = kind.from_text(samples, value[name])
    return Order.from_json(order, part)
