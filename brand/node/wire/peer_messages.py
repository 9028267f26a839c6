"""Messages between data servers: typed, never pickled (docs/dev/messages.md).

    u16 kind | u16 version | body

The node that opens a stream asks on it, with DRAWING, FORGET, ROOM, REQUEST and FETCH. With JOINING and FRONT it
reports how its runs share, and with FOLLOWING, KNOWN and LEFT it follows orders that the first node decides. The home
node of the samples answers with PUSH, PART, FETCHED and REFUSED, the first node with GROWN. Rare messages have JSON
bodies, the others packed numbers and the pages of samples. A field with a wrong value raises `ProtocolError`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.wire.described import (
    BYTES,
    FLAG,
    U32,
    U64,
    FieldSpec,
    array,
    described,
    inline,
    kind_of,
    maybe,
    order_entry,
    pack_body,
    text,
    unpack_body,
    whole,
)
from brand.node.wire.drawing import Drawing
from brand.node.wire.messages import MAX_DRAW, MAX_NAME, MAX_REASON, MOST_PLACES, PeerKind
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.joins import MAX_LAP, Join, Joins
from brand.orders.order import MAX_EPOCH, Order

VERSION: Final = 5
MAX_ROOM: Final = 1 << 62
MAX_FOLLOWED: Final = (1 << 32) - 1
_HEAD: Final = struct.Struct("<HH")
_PUSH: Final = struct.Struct("<III")
_PART: Final = struct.Struct("<IQI")


@dataclass(frozen=True, slots=True, order=True)
class Vote:
    """The joins with which a node would draw an epoch. The greater of two votes is preferred."""

    committed: bool = False
    """Whether draws may have been answered with these joins: no other joins are possible any more."""
    from_leader: bool = False
    """Whether the leader has decided them, and not the node that replaces the leader."""
    rows: tuple[Join, ...] = ()
    """The joins; empty if the node does not know them."""


def _said(_: Any, value: dict[str, Any]) -> Vote:
    # `stands` and `leads` are the keys of the message (docs/dev/messages.md).
    committed, from_leader = (FLAG.checked(name, value.get(name)) for name in ("stands", "leads"))
    try:
        return Vote(committed, from_leader, Joins.from_json(value.get("joins"), value.get("lap")).rows)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _entries(said: Vote) -> dict[str, Any]:
    return {"joins": Joins(said.rows).to_json(), "stands": said.committed, "leads": said.from_leader}


@described(PeerKind.JOINING, json_body=True)
@dataclass(frozen=True, slots=True)
class JoinVote:
    """A JOINING."""

    name: Annotated[str, text(MAX_NAME, key="run")]
    """Name of the run."""
    order: Annotated[Order, order_entry()]
    epoch: Annotated[int, whole(MAX_EPOCH)]
    said: Annotated[Vote, FieldSpec(_said, _entries, inner=True)]
    lap: Annotated[int, whole(MAX_LAP, -1)]
    """The highest lap that the run has drawn from, as far as the sending node knows; -1 if there is none."""
    asks: Annotated[bool, FLAG]
    """Whether the sending node does not know the vote of the receiving node."""
    draws: Annotated[bool, FLAG]
    """Whether clients of the sending node draw the run: the receiving node remembers it until it receives FORGET."""

    def check(self) -> None:
        if not self.order.joins:
            raise ProtocolError("joins of an order that has none")
        if (self.said.committed or self.said.from_leader) and not self.said.rows:
            raise ProtocolError("joins that are decided, but empty")
        try:
            Joins(self.said.rows).check_fits(self.order.samples, self.order.draws)
        except ValueError as error:
            raise ProtocolError(str(error)) from None


@described(PeerKind.FRONT)
@dataclass(frozen=True, slots=True)
class LeadingOffset:
    """A FRONT."""

    number: Annotated[int, U32]
    """Number that the sending node gave the epoch."""
    position: Annotated[int, U64]
    """Its ranks have asked for all their positions before this position."""
    drawn: Annotated[int, U64]
    """Samples that its ranks have drawn of the run, in all epochs."""


@described(PeerKind.DRAWING, json_body=True)
@dataclass(frozen=True, slots=True)
class EpochAnnounced:
    """A DRAWING."""

    drawing: Annotated[Drawing, inline(Drawing)]
    asks: Annotated[bool, FLAG]
    """Whether the asking node asks for the samples of this epoch; if not, the home node sends them unasked."""


@described(PeerKind.FORGET, json_body=True)
@dataclass(frozen=True, slots=True)
class EpochReleased:
    """The contents of a FORGET, or the run and epoch that a REFUSED is about."""

    name: Annotated[str, text(MAX_NAME, key="run")]
    """Name of the run."""
    order: Annotated[Order, order_entry()]
    epoch: Annotated[int | None, maybe(whole(MAX_EPOCH))]
    """The epoch; None for all epochs of the run."""


@described(PeerKind.ROOM)
@dataclass(frozen=True, slots=True)
class PeerCapacity:
    """A ROOM."""

    pages: Annotated[int, whole(MAX_ROOM, code="Q")]
    """Total pages that the asking node has had space for since the stream was opened."""


@described(PeerKind.REQUEST)
@dataclass(frozen=True, slots=True, eq=False)
class SampleRequest:
    """A REQUEST."""

    number: Annotated[int, U32]
    """Number that the asking node gave the epoch."""
    room: Annotated[int, whole(MAX_ROOM, code="Q")]
    """The pages of `PeerCapacity`."""
    positions: Annotated[NDArray[np.int64], array("<i8", MAX_DRAW, least=1)]


@described(PeerKind.FETCH)
@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """A FETCH."""

    number: Annotated[int, U64]
    """Number of the question."""
    places: Annotated[NDArray[np.int64], array("<i8", MAX_DRAW, least=1)]


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """A PUSH. It holds almost all bytes that nodes send, so it has a packer of its own."""

    number: int
    """Number that the asking node gave the epoch."""
    places: NDArray[np.int64]
    missed: NDArray[np.int64]
    """Places that the home node will not send."""
    data: NDArray[np.uint8]
    """Pages of the samples, sample by sample, shape (pages, page size)."""


@dataclass(frozen=True, slots=True, eq=False)
class PushPart:
    """A PART: consecutive pages of one sample. Like a `Push`, it has a packer of its own."""

    number: int
    """Number that the asking node gave the epoch."""
    place: int
    first: int
    """Pages of the sample in earlier parts."""
    data: NDArray[np.uint8]
    """At least one page, shape (pages, page size)."""


@described(PeerKind.FETCHED)
@dataclass(frozen=True, slots=True, eq=False)
class FetchReply:
    """A FETCHED: a segment of the answer to a question."""

    number: Annotated[int, U64]
    """Number of the question."""
    size: Annotated[int, U64]
    """Bytes of the whole answer."""
    offset: Annotated[int, U64]
    """Offset of this segment in the whole answer."""
    part: Annotated[memoryview, BYTES]

    def check(self) -> None:
        if self.offset + len(self.part) > self.size:
            raise ProtocolError("an answer with bytes beyond its end")


@described(PeerKind.REFUSED, json_body=True)
@dataclass(frozen=True, slots=True)
class Refused:
    """A REFUSED."""

    about: Annotated[EpochReleased, inline(EpochReleased)]
    reason: Annotated[str, text(MAX_REASON, cut=True)]


@described(PeerKind.FOLLOWING, json_body=True)
@dataclass(frozen=True, slots=True)
class OrderFollowed:
    """A FOLLOWING."""

    name: Annotated[str, text(MAX_NAME, key="run")]
    """Name of the run."""
    order: Annotated[Order, order_entry()]
    epoch: Annotated[int, whole(MAX_EPOCH)]
    number: Annotated[int, whole(MAX_FOLLOWED)]
    """Number that the asking node gives the order of this epoch."""
    draws: Annotated[bool, FLAG]
    """Whether clients of the asking node draw the run: the first node remembers it until it receives FORGET."""

    def check(self) -> None:
        if not self.order.grows:
            raise ProtocolError("an order that does not grow is followed")


@described(PeerKind.KNOWN)
@dataclass(frozen=True, slots=True, eq=False)
class OrderKnown:
    """A KNOWN."""

    number: Annotated[int, U32]
    """Number of a FOLLOWING."""
    first: Annotated[int, U64]
    """The asking node knows the positions before this one."""
    most: Annotated[int, U64]
    """Its ranks have asked for positions before this one."""
    largest: Annotated[int, U32]
    """Positions of its largest draw."""
    places: Annotated[NDArray[np.int32], array("<i4", MOST_PLACES)]
    """Samples at positions from `first` on that it knows, too; empty if the first node has sent them."""


@described(PeerKind.LEFT)
@dataclass(frozen=True, slots=True)
class OrderLeft:
    """A LEFT: the asking node follows an order no longer, or the first node has forgotten it."""

    number: Annotated[int, U32]
    """Number of a FOLLOWING."""


@described(PeerKind.GROWN)
@dataclass(frozen=True, slots=True, eq=False)
class OrderGrown:
    """A GROWN."""

    number: Annotated[int, U32]
    """Number of a FOLLOWING."""
    first: Annotated[int, U64]
    places: Annotated[NDArray[np.int32], array("<i4", MOST_PLACES)]
    """Samples at positions from `first` on; empty if none are decided."""


Question = (
    EpochAnnounced
    | EpochReleased
    | PeerCapacity
    | SampleRequest
    | Fetch
    | JoinVote
    | LeadingOffset
    | OrderFollowed
    | OrderKnown
    | OrderLeft
)
"""Messages that a node sends on a stream that it has opened."""
Reply = Push | PushPart | FetchReply | OrderGrown | OrderLeft | Refused
"""Messages that a node sends on a stream that another node has opened."""

_QUESTIONS: Final[dict[Any, Any]] = {kind_of(cls): cls for cls in get_args(Question)}
_REPLIES: Final[dict[Any, Any]] = {kind_of(cls): cls for cls in (FetchReply, OrderGrown, OrderLeft, Refused)}


def pack(message: Question | Reply) -> bytes:
    if isinstance(message, Push):
        head = _PUSH.pack(message.number, len(message.places), len(message.missed))
        sent, missed = message.places.tobytes(), message.missed.tobytes()
        return b"".join((_HEAD.pack(PeerKind.PUSH, VERSION), head, sent, missed, message.data.data))
    if isinstance(message, PushPart):
        head = _PART.pack(message.number, message.place, message.first)
        return b"".join((_HEAD.pack(PeerKind.PART, VERSION), head, message.data.data))
    kind, body = pack_body(message)
    return b"".join((_HEAD.pack(kind, VERSION), *body))


def unpack_question(message: bytes, node: NodeNumber) -> Question:
    """Return a message of `node` on a stream that `node` has opened. Raises `ProtocolError`."""
    kind, body = _kind_of(message)
    if kind not in _QUESTIONS:
        raise ProtocolError(f"an asking node does not send {kind.name}")
    question: Question = unpack_body(_QUESTIONS[kind], body, node=node)
    return question


def unpack_reply(message: bytes, page: int) -> Reply:
    """Return a message, with pages of `page` bytes, on a stream that this node has opened. Raises `ProtocolError`."""
    kind, body = _kind_of(message)
    if kind == PeerKind.PUSH:
        return _unpack_push(body, page)
    if kind == PeerKind.PART:
        return _unpack_part(body, page)
    if kind not in _REPLIES:
        raise ProtocolError(f"a home node does not send {kind.name}")
    reply: Reply = unpack_body(_REPLIES[kind], body)
    return reply


def _kind_of(message: bytes) -> tuple[PeerKind, memoryview]:
    if len(message) < _HEAD.size:
        raise ProtocolError("an incomplete message")
    kind, version = _HEAD.unpack_from(message)
    if version != VERSION:
        raise ProtocolError(f"the other node uses version {version} of the protocol, this node {VERSION}")
    if kind not in PeerKind.__members__.values():
        raise ProtocolError(f"unknown kind of message: {kind}")
    return PeerKind(kind), memoryview(message)[_HEAD.size :]


def _unpack_push(body: memoryview, page: int) -> Push:
    if len(body) < _PUSH.size:
        raise ProtocolError("an incomplete push")
    number, sent, missed = _PUSH.unpack_from(body)
    end = _PUSH.size + 8 * (sent + missed)
    if len(body) < end or (len(body) - end) % page:
        raise ProtocolError("a push whose parts do not add up")
    places = np.frombuffer(body, np.int64, sent + missed, _PUSH.size)
    data = np.frombuffer(body, np.uint8, offset=end).reshape(-1, page)
    return Push(number, places[:sent], places[sent:], data)


def _unpack_part(body: memoryview, page: int) -> PushPart:
    size = len(body) - _PART.size
    if size <= 0 or size % page:
        raise ProtocolError("a part that has no pages, or an incomplete one")
    number, place, first = _PART.unpack_from(body)
    return PushPart(number, place, first, np.frombuffer(body, np.uint8, offset=_PART.size).reshape(-1, page))
