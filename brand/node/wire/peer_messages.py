"""What do node servers say to each other? Typed messages, never pickled (docs/protocols/node-messages.md).

    u16 kind | u16 version | body

The node that opens a stream asks on it, by DRAWING, FORGET, ROOM, REQUEST and FETCH, and tells by JOINING and FRONT how
its runs share. The owner of the samples answers by PUSH, FETCHED and REFUSED. Rare messages have JSON bodies, the
others packed numbers and the pages of samples. A field with a wrong value raises `ProtocolError`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.wire.drawing import Begin, Drawing
from brand.node.wire.joining import Front, Joining, flag, joining_facts, joining_of
from brand.node.wire.messages import MAX_DRAW, MAX_NAME, MAX_REPLICAS, order_facts, unpack_json, unpack_order
from brand.node.wire.numbers import NodeNumber
from brand.protocol.order import MAX_EPOCH, Order
from brand.protocol.tickets import MAX_POSITIONS

VERSION: Final = 2
MAX_REASON: Final = 1000
MAX_ROOM: Final = 1 << 62
_HEAD: Final = struct.Struct("<HH")
_ROOM: Final = struct.Struct("<Q")
_REQUEST: Final = struct.Struct("<IQ")
_FETCH: Final = struct.Struct("<Q")
_PUSH: Final = struct.Struct("<III")
_FETCHED: Final = struct.Struct("<QQQ")
_FRONT: Final = struct.Struct("<IQQ")


class PeerKind(IntEnum):
    """Kinds of messages."""

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
class Told:
    """A DRAWING."""

    drawing: Drawing
    asks: bool
    """Whether the asking node asks for the samples of this epoch; else the owner sends them unasked."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The contents of a FORGET, or the run and epoch that a REFUSED is about."""

    name: str
    """Name of the run."""
    order: Order
    epoch: int | None
    """None: all epochs of the run."""


@dataclass(frozen=True, slots=True)
class Room:
    """A ROOM."""

    pages: int
    """Pages that the asking node has had room for in all, since the stream was opened."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A REQUEST."""

    number: int
    """Number that the asking node gave the epoch."""
    room: int
    """The pages of `Room`."""
    positions: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """A FETCH."""

    number: int
    """Number of the question."""
    places: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """A PUSH."""

    number: int
    """Number that the asking node gave the epoch."""
    places: NDArray[np.int64]
    missed: NDArray[np.int64]
    """Places that the owner will not send."""
    data: NDArray[np.uint8]
    """Pages of the samples, sample by sample, shape (pages, page size)."""


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """A FETCHED: a part of the answer to a question."""

    number: int
    """Number of the question."""
    size: int
    """Bytes of the whole answer."""
    offset: int
    """Where this part begins in the whole answer."""
    part: memoryview


@dataclass(frozen=True, slots=True)
class Refused:
    """A REFUSED."""

    about: Forgotten
    reason: str


Question = Told | Forgotten | Room | Request | Fetch | Joining | Front
"""What a node says on a stream that it has opened."""
Reply = Push | Fetched | Refused
"""What a node says on a stream that another node has opened."""


def pack(message: Question | Reply) -> bytes:
    """A message as it travels."""
    match message:
        case Told():
            return _pack_drawing(message)
        case Forgotten(name, order, epoch):
            return _json(PeerKind.FORGET, _names(name, order, epoch))
        case Room(pages):
            return _frame(PeerKind.ROOM, _ROOM.pack(pages))
        case Request(number, room, positions):
            return _frame(PeerKind.REQUEST, _REQUEST.pack(number, room), positions.tobytes())
        case Fetch(number, places):
            return _frame(PeerKind.FETCH, _FETCH.pack(number), places.tobytes())
        case Joining():
            named = _names(message.name, message.order, message.epoch)
            return _json(PeerKind.JOINING, named | joining_facts(message))
        case Front(number, position, drawn):
            return _frame(PeerKind.FRONT, _FRONT.pack(number, position, drawn))
        case Push(number, places, missed, data):
            head = _PUSH.pack(number, len(places), len(missed))
            return _frame(PeerKind.PUSH, head, places.tobytes(), missed.tobytes(), data.data)
        case Fetched(number, size, offset, part):
            return _frame(PeerKind.FETCHED, _FETCHED.pack(number, size, offset), part)
        case Refused(about, reason):
            names = _names(about.name, about.order, about.epoch)
            return _json(PeerKind.REFUSED, {**names, "reason": reason[:MAX_REASON]})


def unpack_question(message: bytes, node: NodeNumber) -> Question:
    """What `node` has said on a stream that it has opened. Raises `ProtocolError`."""
    kind, body = _kind_of(message)
    match kind:
        case PeerKind.DRAWING:
            return _unpack_drawing(body, node)
        case PeerKind.FORGET:
            return Forgotten(*_run(unpack_json(body)))
        case PeerKind.ROOM:
            if len(body) != _ROOM.size:
                raise ProtocolError(f"room of {len(body)} bytes")
            return Room(_pages(*_ROOM.unpack(body)))
        case PeerKind.REQUEST:
            positions = _array(body, _REQUEST.size, "a request")
            number, room = _REQUEST.unpack_from(body)
            return Request(number, _pages(room), positions)
        case PeerKind.FETCH:
            places = _array(body, _FETCH.size, "a fetch")
            return Fetch(_FETCH.unpack_from(body)[0], places)
        case PeerKind.JOINING:
            value = unpack_json(body)
            return joining_of(*_run(value), value)
        case PeerKind.FRONT:
            if len(body) != _FRONT.size:
                raise ProtocolError(f"a front of {len(body)} bytes")
            return Front(*_FRONT.unpack(body))
        case _:
            raise ProtocolError(f"an asking node does not send {kind.name}")


def unpack_reply(message: bytes, page: int) -> Reply:
    """What a node has said on a stream that this node has opened. Pages have `page` bytes. Raises `ProtocolError`."""
    kind, body = _kind_of(message)
    match kind:
        case PeerKind.PUSH:
            return _unpack_push(body, page)
        case PeerKind.FETCHED:
            if len(body) < _FETCHED.size:
                raise ProtocolError("half an answer")
            number, size, offset = _FETCHED.unpack_from(body)
            part = body[_FETCHED.size :]
            if offset + len(part) > size:
                raise ProtocolError("an answer beyond its end")
            return Fetched(number, size, offset, part)
        case PeerKind.REFUSED:
            value = unpack_json(body)
            return Refused(Forgotten(*_run(value)), str(value.get("reason"))[:MAX_REASON])
        case _:
            raise ProtocolError(f"an owner does not send {kind.name}")


def _kind_of(message: bytes) -> tuple[PeerKind, memoryview]:
    """Kind and body. Raises `ProtocolError`."""
    if len(message) < _HEAD.size:
        raise ProtocolError("half a message")
    kind, version = _HEAD.unpack_from(message)
    if version != VERSION:
        raise ProtocolError(f"the other node speaks version {version} of the protocol, this one {VERSION}")
    if kind not in PeerKind.__members__.values():
        raise ProtocolError(f"no message is of kind {kind}")
    return PeerKind(kind), memoryview(message)[_HEAD.size :]


def _pack_drawing(told: Told) -> bytes:
    drawing, begin = told.drawing, told.drawing.begin
    facts = {
        **_names(drawing.name, drawing.order, drawing.epoch),
        "start": begin.start,
        "replicas": begin.replicas,
        "ranks": list(begin.ranks),
        "batch": begin.batch,
        "times": begin.times,
        "front": begin.front,
        "largest": begin.largest,
        "number": drawing.number,
        "asks": told.asks,
        "turn": drawing.turn,
    }
    return _json(PeerKind.DRAWING, facts)


def _unpack_drawing(body: memoryview, node: NodeNumber) -> Told:
    value = unpack_json(body)
    name, order, epoch = _run(value)
    if epoch is None:
        raise ProtocolError("an epoch is missing")
    replicas = _whole(value, "replicas", MAX_REPLICAS, least=1)
    ranks = value.get("ranks")
    if not isinstance(ranks, list) or not 0 < len(ranks) <= replicas or len({*map(str, ranks)}) != len(ranks):
        raise ProtocolError("ranks that are no list of ranks")
    if not all(type(rank) is int and 0 <= rank < replicas for rank in ranks):
        raise ProtocolError(f"ranks are from 0 to {replicas - 1}")
    asks = flag(value, "asks")
    begin = Begin(
        _whole(value, "start", order.samples),
        replicas,
        tuple(ranks),
        _whole(value, "batch", MAX_POSITIONS),
        node,
        _whole(value, "times", 1 << 31),
        _whole(value, "front", order.samples),
        _whole(value, "largest", 1 << 31),
    )
    turn = None if value.get("turn") is None else _whole(value, "turn", 1 << 31)
    return Told(Drawing(name, turn, order, epoch, begin, _whole(value, "number", (1 << 32) - 1)), asks)


def _unpack_push(body: memoryview, page: int) -> Push:
    if len(body) < _PUSH.size:
        raise ProtocolError("half a push")
    number, sent, missed = _PUSH.unpack_from(body)
    end = _PUSH.size + 8 * (sent + missed)
    if len(body) < end or (len(body) - end) % page:
        raise ProtocolError("a push whose parts do not add up")
    places = np.frombuffer(body, np.int64, sent + missed, _PUSH.size)
    data = np.frombuffer(body, np.uint8, offset=end).reshape(-1, page)
    return Push(number, places[:sent], places[sent:], data)


def _names(name: str, order: Order, epoch: int | None) -> dict[str, Any]:
    return {"run": name, "epoch": epoch, **order_facts(order)}


def _run(value: dict[str, Any]) -> tuple[str, Order, int | None]:
    name, epoch = value.get("run"), value.get("epoch")
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise ProtocolError(f"the name of a run is text of at most {MAX_NAME} characters")
    try:
        order = unpack_order(value)
    except (KeyError, ValueError, TypeError) as error:
        raise ProtocolError(f"no order: {error}") from None
    return name, order, None if epoch is None else _whole(value, "epoch", MAX_EPOCH)


def _whole(value: dict[str, Any], name: str, most: int, *, least: int = 0) -> int:
    number = value.get(name)
    if type(number) is not int or not least <= number <= most:
        raise ProtocolError(f"{name} is {str(number)[:40]}, not a whole number from {least} to {most:,}")
    return number


def _pages(number: int) -> int:
    if number > MAX_ROOM:
        raise ProtocolError(f"room for {number:,} pages")
    return number


def _array(body: memoryview, start: int, what: str) -> NDArray[np.int64]:
    """The numbers of a body from byte `start` to the end, at least one. Raises `ProtocolError`."""
    rest = len(body) - start
    if rest < 8 or rest % 8 or rest // 8 > MAX_DRAW:
        raise ProtocolError(f"{what} of {len(body)} bytes")
    return np.frombuffer(body, np.int64, offset=start)


def _json(kind: PeerKind, value: Any) -> bytes:
    return _frame(kind, json.dumps(value).encode())


def _frame(kind: PeerKind, *parts: bytes | memoryview) -> bytes:
    return b"".join((_HEAD.pack(kind, VERSION), *parts))
