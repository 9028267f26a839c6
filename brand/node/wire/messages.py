"""How do messages between clients and the node server travel? Typed, length-prefixed, never pickled.

`docs/protocols/messages.md` specifies them, and `brand.node.wire.client_messages` has a class for each.

    u32 length of the body | u16 kind | u16 version | body

Rare messages have JSON bodies (`HELLO`, `ORDER`, `PREPARE`, `PEERS`, `STATS`, `REPORT`, `LOOP`, `FAILED`). Others have
packed numbers (`BEGIN`, `POSITIONS`, `DRAW`, `LEASE`, `RELEASE`, `FETCH`, `JOINS`, `DECIDED`, `PLACES`, `TAKEN`).
Both sides distrust: a body has a largest size, and a field with a wrong value raises `ProtocolError`.
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
from brand.orders.base.part import Subset
from brand.orders.order import Order

VERSION: Final = 7
HEAD: Final = struct.Struct("<IHH")
MAX_REQUEST: Final = 1 << 20
"""Largest body that a server takes, but for an ORDER with the bits of a part."""
MAX_REPLY: Final = 1 << 28
"""Largest body that a client takes."""
MAX_FAILED: Final = 1 << 16
"""Largest body of a FAILED."""
ENDED: Final = "Ended"
"""Type of a FAILED by which a server refuses nothing: it was told to end."""
REFUSALS: Final[dict[str, type[BrandError]]] = {
    cls.__name__: cls for cls in (ServerError, UnreachableError, UsageError, ProtocolError)
}
"""Classes that the type of a FAILED can name. For any other type a client raises `ServerError`."""
MAX_REASON: Final = 1000
"""Longest reason of a report, in characters."""
MAX_DRAW: Final = 1 << 16
"""Most positions in one draw."""
MOST_PLACES: Final = 1 << 16
"""Most places in one DECIDED or PLACES: longer orders take several."""

MAX_REPLICAS: Final = 1 << 16
GOES_ON: Final = 0
"""In place of how many processes share a rank: as many as before, and the rank goes on in what it has drawn so far."""
UNTOLD: Final = (1 << 32) - 1
"""In its place: the server is not told, so it does not judge whether positions are left out."""
MAX_NAME: Final = 100
"""Longest name of a run, in characters."""

_DRAW: Final = struct.Struct("<II")

ABSENT: Final = 0
"""State of a sample in a lease: it is not in memory."""
PRESENT: Final = 1
"""State of a sample in a lease: it is in memory."""
CHECKED: Final = 2
"""State of a sample in a lease: it is in memory, and its checksum was right."""
PREPARED: Final = 4
"""Added to the state of a sample in a lease: all that the client has prepared of it is in memory, too."""


class Kind(IntEnum):
    """Kinds of messages: what a client says by each, and what the server answers."""

    HELLO = 1
    """Client: its process and its data set. Server: its own, with the arena in the ancillary data."""
    ORDER = 2
    """Client: the name and the order of a run. Server: the number of the run."""
    BEGIN = 3
    """Client: a rank is about to draw. No reply."""
    DRAW = 4
    """Client: positions that a rank draws. The server answers by LEASE."""
    LEASE = 5
    """Server: where the samples of a draw are in memory (`brand.node.wire.lease`)."""
    RELEASE = 6
    """Client: it has copied the samples of a lease. No reply."""
    STATS = 7
    """Client: nothing, or with how many rows of each training loop. Server: counters."""
    REPORT = 8
    """Client: a sample that was replaced. No reply."""
    FAILED = 9
    """Server: why it refuses a request. It then closes the connection."""
    POSITIONS = 10
    """Client: a rank of an epoch. Server: the positions that the rank draws."""
    PEERS = 12
    """Client: where the servers of other nodes listen. No reply."""
    FETCH = 11
    """Client: places of samples that only other nodes have. Server: their stored bytes."""
    JOINS = 13
    """Client: where its run joined others in an epoch, as far as it knows. Server: where it did."""
    PREPARE = 14
    """Client: what it wants prepared. Server: numbers of these, or why it does not."""
    DECIDED = 15
    """Client: the order of an epoch that grows, as far as it knows it. Server: the order, as far as it is decided."""
    PLACES = 16
    """Client: the positions of an epoch at which it takes samples by itself. Server: the samples at these."""
    TAKEN = 17
    """Client: positions whose samples it has taken by itself (`brand.node.wire.taking`). No reply."""
    LOOP = 18
    """Client: how its training loop has waited since it last said so (`brand.node.wire.looping`). No reply."""


class PeerKind(IntEnum):
    """Kinds of messages between node servers (`brand.node.wire.peer_messages`)."""

    DRAWING = 1
    """Asking node: what its ranks draw of an epoch."""
    FORGET = 2
    """Asking node: it has no use any more for an epoch, or for a run."""
    ROOM = 3
    """Asking node: how many pages it has had room for since the stream was opened."""
    REQUEST = 4
    """Asking node: positions that its ranks draw, and its room as in ROOM."""
    FETCH = 5
    """Asking node: samples that it wants, by place."""
    PUSH = 6
    """Owner: samples of an epoch, and places that it will not send."""
    FETCHED = 7
    """Owner: a part of its answer to a FETCH."""
    REFUSED = 8
    """Owner: why it cannot serve a run."""
    JOINING = 9
    """Asking node: with which joins it would draw an epoch."""
    FRONT = 10
    """Asking node: how far its ranks have drawn an epoch."""


@dataclass(frozen=True, slots=True)
class Chains:
    """Chains of pages: the number of pages of each, and all pages, chain by chain."""

    counts: NDArray[np.uint32]
    pages: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.counts)


NO_CHAINS: Final = Chains(np.empty(0, np.uint32), np.empty(0, np.int32))


def frame(kind: IntEnum, *parts: bytes | memoryview) -> bytes:
    """A message."""
    return b"".join((HEAD.pack(sum(map(len, parts)), kind, VERSION), *parts))


def parse_head(head: bytes | bytearray | memoryview, limit: int, order_limit: int = 0) -> tuple[Kind, int]:
    """Kind and length of the body, which is at most `limit`, or `order_limit` for an ORDER. Raises `ProtocolError`."""
    length, kind, version = HEAD.unpack(head)
    if version != VERSION:
        raise ProtocolError(f"the other side speaks version {version} of the protocol, this one {VERSION}")
    if kind not in Kind.__members__.values():
        raise ProtocolError(f"no message is of kind {kind}")
    limit = max(limit, order_limit) if kind == Kind.ORDER else limit
    if length > limit:
        raise ProtocolError(f"a message of {length:,} bytes; the limit is {limit:,}")
    return Kind(kind), length


def pack_json(kind: Kind, value: Any) -> bytes:
    """A message whose body is JSON."""
    return frame(kind, json.dumps(value).encode())


def unpack_json(body: bytes | memoryview) -> dict[str, Any]:
    """The object in a body. Raises `ProtocolError`."""
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError("a body is not a JSON object")
    return value


def longest_order(samples: int) -> int:
    """Largest body of an ORDER that the server of a data set of so many samples takes."""
    return MAX_REQUEST + 4 * -(-samples // 24)  # 4 characters for 24 bits


def order_facts(order: Order) -> dict[str, Any]:
    """An order as plain values, with the bits of its part."""
    return {"order": order.to_json()} | ({} if order.subset is None else {"bits": order.subset.to_text()})


def unpack_order(value: dict[str, Any]) -> Order:
    """Inverse of `order_facts`, distrusting. Raises ValueError, TypeError."""
    order, bits = value["order"], value.get("bits")
    samples = order.get("samples") if isinstance(order, dict) else None
    part = None if bits is None or not isinstance(samples, int) else Subset.from_text(samples, bits)
    return Order.from_json(order, part)


def pack_draw(run: int, epoch: int, positions: NDArray[np.int64]) -> bytes:
    """`DRAW`."""
    return frame(Kind.DRAW, _DRAW.pack(run, epoch), positions.tobytes())


def unpack_draw(body: bytes | memoryview) -> tuple[int, int, NDArray[np.int64]]:
    """Run, epoch, positions. Raises `ProtocolError`."""
    rest = len(body) - _DRAW.size
    if rest < 8 or rest % 8 or rest // 8 > MAX_DRAW:
        raise ProtocolError(f"a draw of {len(body)} bytes")
    run, epoch = _DRAW.unpack_from(body)
    return run, epoch, np.frombuffer(body, np.int64, offset=_DRAW.size)
