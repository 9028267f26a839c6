"""Requests of clients to a server, and its replies. Each message is one class, described once.

A request that needs a decision is also the stimulus for the decisions, and the entry in a record's log; a reply is also
an instruction. `docs/dev/messages.md` has a table of all messages. DRAW, LEASE and TAKEN are sent for each batch,
so they have packers of their own (`brand.node.wire.draw_messages`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError, UsageError
from brand.node.wire.decoding import DECODERS, MOST_WANTS, WANTS, DecodeSpec
from brand.node.wire.described import (
    BYTES,
    FLAG,
    KEY,
    U32,
    U64,
    Body,
    FieldSpec,
    array,
    described,
    inline,
    kind_of,
    maybe,
    order_entry,
    pack_body,
    several,
    text,
    unpack_body,
    whole,
)
from brand.node.wire.drawing import JOINS, RULE, Announcement, Drawer
from brand.node.wire.looping import LoopReport
from brand.node.wire.messages import MAX_DRAW, MAX_NAME, MAX_REASON, MOST_PLACES, Kind, frame, unpack_json
from brand.node.wire.numbers import NO_CLIENT, ClientNumber, Key, NodeNumber, RunNumber
from brand.orders.base.joins import Joins
from brand.orders.base.rank_rule import RankRule
from brand.orders.order import Order
from brand.reprs import Reprs

T = TypeVar("T")

MAX_ADDRESS: Final = 1000
"""Longest address of a node, in characters."""
MAX_NODES: Final = 1 << 16

_MOST: Final = (1 << 63) - 1
_NUMBER: Final = whole(_MOST, -(1 << 63))
_COUNT: Final = whole(_MOST)


def _cells(name: str, data: Body) -> int:
    if len(data) not in (0, 4):
        raise ProtocolError(f"{name} of {len(data)} bytes")
    return int.from_bytes(data, "little")


# -- requests that are stimuli -----------------------------------------------------------------------------------------


@described(Kind.ORDER, json_body=True)
@dataclass(frozen=True, slots=True)
class ClientRegisters:
    """Names a run and its order."""

    client: ClientNumber
    order: Annotated[Order, order_entry(UsageError)]
    name: Annotated[str, text(MAX_NAME, key="run")]
    tag: Annotated[int | None, maybe(_NUMBER)] = None
    turn: Annotated[int | None, maybe(_NUMBER)] = None


@described(Kind.BEGIN)
@dataclass(frozen=True, slots=True)
class ClientBegins:
    """Announces that a rank is about to draw."""

    client: ClientNumber
    run: Annotated[RunNumber, U32]
    announcement: Annotated[Announcement, inline(Announcement)]
    drawer: Drawer | None = None
    rule: Annotated[RankRule | None, RULE] = None
    """The rule by which the ranks divide the positions; None if they draw in turn or with `locality`."""

    @property
    def key(self) -> Key:
        return self.run, self.announcement.epoch


@described(Kind.RELEASE)
@dataclass(frozen=True, slots=True, eq=False)
class ClientReleases:
    """Releases a lease whose samples the client has copied. `checked`: all checksums were right."""

    client: ClientNumber
    lease: Annotated[int, U64]
    checked: Annotated[bool, FLAG]
    wrong: Annotated[NDArray[np.int64] | tuple[()], array("<i8", MAX_DRAW)] = ()
    """Places of samples whose checksums were wrong."""


@described(Kind.POSITIONS)
@dataclass(frozen=True, slots=True)
class ClientDivides:
    """Asks for the positions of an epoch that belong to a rank."""

    client: ClientNumber
    key: Annotated[Key, KEY]
    rank: Annotated[int, U32]


@described(Kind.FETCH)
@dataclass(frozen=True, slots=True, eq=False)
class ClientFetches:
    """Asks for samples that only other nodes have."""

    client: ClientNumber
    places: Annotated[NDArray[np.int64], array("<i8", MAX_DRAW, least=1)]


@described(Kind.JOINS)
@dataclass(frozen=True, slots=True)
class ClientJoins:
    """Tells where the client's run joined other runs in an epoch, as far as it knows, and asks for all these points."""

    client: ClientNumber
    key: Annotated[Key, KEY]
    joins: Annotated[Joins, JOINS]


@described(Kind.DECIDED)
@dataclass(frozen=True, slots=True, eq=False)
class ClientOrders:
    """Tells the samples at positions from `first` on, as far as the client knows, and asks for the decided samples.

    `docs/dev/orders.md` has the rule.
    """

    client: ClientNumber
    key: Annotated[Key, KEY]
    first: Annotated[int, U64]
    places: Annotated[NDArray[np.int32], array("<i4", MOST_PLACES)]
    sure: Annotated[int, U64]
    """The client may have received samples at positions before this position."""
    wanted: Annotated[int, U64]
    """The client needs the order before this position."""


@described(Kind.PREPARE, json_body=True)
@dataclass(frozen=True, slots=True)
class ClientPrepares:
    """Asks the server to decode fields of all samples that the client draws of a run."""

    client: ClientNumber
    run: Annotated[RunNumber, U32]
    wants: Annotated[tuple[DecodeSpec, ...], WANTS]
    decoders: Annotated[dict[str, Any], DECODERS] = field(default_factory=dict)
    """Versions of the libraries with which the client decodes, by codec."""

    def check(self) -> None:
        if len({want.field for want in self.wants}) < len(self.wants):
            raise ProtocolError("a PREPARE names a field twice")


# -- other requests ----------------------------------------------------------------------------------------------------


@described(Kind.HELLO, json_body=True)
@dataclass(frozen=True, slots=True)
class Hello:
    """Introduces the client."""

    data_set: Annotated[str | None, maybe(text(MAX_NAME))]
    """Id of its data set; None if it only looks, at any data set."""
    owner: Annotated[int | None, maybe(_NUMBER)] = None
    """The process whose end may end the server."""
    worker: Annotated[tuple[int, ...] | None, maybe(several(_NUMBER, 2, 2))] = None
    """Number of the owner's worker that draws, and number of its workers; None if the client does not tell."""
    space: Annotated[int | None, maybe(_COUNT)] = None
    """The client's PID namespace, in which the owner has this number; None or 0 if the client does not know it."""


@described(Kind.ORDER, json_body=True)
@dataclass(frozen=True, slots=True)
class AskOrder:
    """Asks for the order of a run, by its tag."""

    name: Annotated[str, text(MAX_NAME, key="run")]
    tag: Annotated[int | None, maybe(_NUMBER)]


@described(Kind.PLACES)
@dataclass(frozen=True, slots=True)
class AskPlaces:
    """Asks for the places at positions from `first` on, because the client reads the samples of an epoch itself."""

    key: Annotated[Key, KEY]
    first: Annotated[int, U64]


@described(Kind.PEERS, json_body=True)
@dataclass(frozen=True, slots=True)
class PeerAddresses:
    """Tells the addresses of the servers of all nodes; None for this node."""

    addresses: Annotated[tuple[str | None, ...], several(maybe(text(MAX_ADDRESS)), MAX_NODES)]


@described(Kind.STATS)
@dataclass(frozen=True, slots=True)
class AskStats:
    """Asks for statistics, with that many cells of each training loop."""

    cells: Annotated[int, FieldSpec(_cells, lambda cells: cells.to_bytes(4, "little") if cells else b"", rest=True)] = 0


MAX_REPORTS: Final = 1000
"""Maximum number of replaced samples that statistics list."""


@described(Kind.REPORT, json_body=True)
@dataclass(frozen=True, slots=True)
class Replaced:
    """Reports a replaced sample: its index, the index of the replacement, the damaged chunk, and the error."""

    index: Annotated[int | None, maybe(_NUMBER)]
    by: Annotated[int | None, maybe(_NUMBER)]
    chunk: Annotated[int | None, maybe(_NUMBER)]
    reason: Annotated[str, text(MAX_REASON, cut=True)]


Request = (
    Hello
    | ClientRegisters
    | AskOrder
    | ClientBegins
    | ClientReleases
    | ClientDivides
    | ClientFetches
    | ClientJoins
    | ClientOrders
    | ClientPrepares
    | AskPlaces
    | PeerAddresses
    | AskStats
    | Replaced
    | LoopReport
)

_REQUESTS: Final = {kind_of(cls): cls for cls in get_args(Request) if cls is not AskOrder}


def pack(message: object) -> bytes:
    kind, parts = pack_body(message)
    return frame(kind, *parts)


def unpack(cls: type[T], body: Body) -> T:
    """Return the message of this class in a body. Raises `ProtocolError`."""
    return unpack_body(cls, body, client=NO_CLIENT)


def unpack_request(kind: Kind, body: Body, client: ClientNumber, drawer: Drawer | None) -> Request:
    """Return the request of a client with process `drawer`. Raises `ProtocolError`, `UsageError` (invalid order)."""
    cls: Any = _REQUESTS.get(kind)
    if cls is None:
        raise ProtocolError(f"clients do not send {kind.name}")
    found = unpack_json(body) if kind == Kind.ORDER else body
    if isinstance(found, dict) and "order" not in found:
        cls = AskOrder
    request: Request = unpack_body(cls, found, client=client, drawer=drawer)
    return request


@described(Kind.HELLO, json_body=True)
@dataclass(frozen=True, slots=True, repr=False)
class ServerFacts(Reprs, shows="share nodes remote_share listens_at joined node process"):
    """Introduce the server to a client: facts about itself, and about the memories that it shares with the client."""

    data_set: Annotated[str, text(MAX_NAME)]
    process: Annotated[int, _COUNT]
    life: Annotated[str, text(MAX_NAME)]
    """Distinguishes this server from earlier and later servers at its address."""
    page: Annotated[int, _COUNT]
    """Bytes of a page of its memory."""
    pages: Annotated[int, whole(_MOST, 1)]
    all_pages: Annotated[int, whole(_MOST, 1)]
    """Pages that all samples would take."""
    node: Annotated[NodeNumber, _COUNT]
    nodes: Annotated[int, _COUNT]
    """Number of nodes that serve the data set together."""
    remote_pages: Annotated[int, _COUNT]
    """Pages that other nodes may fill."""
    listens_at: Annotated[str | None, maybe(text(MAX_ADDRESS))]
    """Address at which other nodes reach it, `host:port`; None if there is one node."""
    joined: Annotated[bool, FLAG]
    """Whether it knows the addresses of the other nodes."""
    prepared_pages: Annotated[int, _COUNT]
    """Pages of decoded samples; 0 if it decodes nothing."""
    entries: Annotated[int, _COUNT]
    """Entries of the directory; 0 if it has none."""

    @property
    def share(self) -> float:
        """Fraction of the data that fits into its memory; 1 or more if all of it fits."""
        return self.pages / self.all_pages

    @property
    def remote_share(self) -> float:
        """Fraction of its memory that other nodes may fill."""
        return self.remote_pages / self.pages


@described(Kind.ORDER, json_body=True)
@dataclass(frozen=True, slots=True)
class Number:
    """Tell a client the number of a run that it has registered."""

    client: ClientNumber
    run: Annotated[RunNumber, replace(U32, key="number")]


@described(Kind.ORDER, json_body=True)
@dataclass(frozen=True, slots=True)
class OrderFound:
    """Tell a client the order that it has asked for."""

    client: ClientNumber
    order: Annotated[Order, order_entry()]


@described(Kind.POSITIONS)
@dataclass(frozen=True, slots=True)
class PositionsDivided:
    """Tell a client the positions that belong to a rank. All positions are below 2**32."""

    client: ClientNumber
    positions: Annotated[NDArray[np.int64], array("<u4", into="<i8")]


@described(Kind.FETCH)
@dataclass(frozen=True, slots=True)
class Deliver:
    """Send a client the samples that it fetched. `data` is the result of `pack_samples`."""

    client: ClientNumber
    data: Annotated[bytes, BYTES]


@described(Kind.JOINS)
@dataclass(frozen=True, slots=True)
class Joined:
    """Tell a client where its run joined other runs in an epoch."""

    client: ClientNumber
    joins: Annotated[Joins, JOINS]


@described(Kind.DECIDED)
@dataclass(frozen=True, slots=True, eq=False)
class OrderDecided:
    """Tell a client the number of decided positions of an epoch, and the samples at some of them."""

    client: ClientNumber
    decided: Annotated[int, U64]
    places: Annotated[NDArray[np.int32], array("<i4", MOST_PLACES)]


@described(Kind.PREPARE, json_body=True)
@dataclass(frozen=True, slots=True)
class Numbers:
    """Tell a client the numbers of its decode specs; if there are none, `why`."""

    client: ClientNumber
    numbers: Annotated[tuple[int, ...], several(U32, MOST_WANTS)]
    why: Annotated[str, text(MAX_REASON, cut=True)] = ""


@described(Kind.PLACES)
@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Tell a client the samples at some positions; if there are none, it must ask with DRAW."""

    client: ClientNumber
    places: Annotated[NDArray[np.int32], array("<i4", MOST_PLACES)]


def pack_samples(samples: list[bytes | None]) -> bytes:
    """Return a byte for each sample (1 if it is present, 0 if not), then the stored bytes of the present samples."""
    return b"".join((bytes(sample is not None for sample in samples), *(s for s in samples if s is not None)))


def unpack_samples(data: memoryview, sizes: NDArray[np.int64]) -> tuple[NDArray[np.bool_], list[bytes]]:
    """Return which samples are present, shape (samples,), and the bytes of each present sample. Raises `ProtocolError`.

    `sizes` are the stored sizes of all samples, shape (samples,).
    """
    if len(data) < len(sizes):
        raise ProtocolError("an incomplete answer")
    flags = np.frombuffer(data[: len(sizes)], np.uint8)
    present = flags == 1
    ends = len(sizes) + np.cumsum(np.where(present, sizes, 0))
    if (flags > 1).any() or len(data) != ends[-1]:
        raise ProtocolError("an answer whose parts do not add up")
    starts = ends - sizes
    return present, [bytes(data[starts[k] : ends[k]]) for k in np.flatnonzero(present).tolist()]
