"""How do processes tell each other where a run joined others? JOINS, JOINING and FRONT (docs/protocols/shared.md).

A client and its server exchange JOINS. Nodes tell each other in a JOINING with which joins they would draw an epoch,
and in a FRONT how far their ranks have drawn it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from brand.errors import ProtocolError
from brand.node.wire.messages import Kind, frame
from brand.protocol.joins import Join, Joins
from brand.protocol.order import Order

_KNOWN: Final = struct.Struct("<IIi")
_JOINED: Final = struct.Struct("<i")


@dataclass(frozen=True, slots=True, order=True)
class Said:
    """With which joins a node would draw an epoch. The greater of two is the better one."""

    stands: bool = False
    """Whether draws may have been answered with these joins: no others are possible any more."""
    leads: bool = False
    """Whether the leader has decided them, and not the node that takes its place."""
    rows: tuple[Join, ...] = ()
    """None: the node does not know them."""


@dataclass(frozen=True, slots=True)
class Joining:
    """A JOINING."""

    name: str
    """Name of the run."""
    order: Order
    epoch: int
    said: Said
    lap: int
    """The highest lap that the run has drawn from, as far as the telling node knows; -1: none."""
    asks: bool
    """Whether the telling node does not know what the other node says."""
    draws: bool
    """Whether clients of the telling node draw the run: the other node remembers it until it hears FORGET."""


@dataclass(frozen=True, slots=True)
class Front:
    """A FRONT."""

    number: int
    """Number that the telling node gave the epoch."""
    position: int
    """Its ranks have asked for all their positions before this one."""
    drawn: int
    """Samples that its ranks have drawn of the run, in all epochs."""


def pack_known_joins(run: int, epoch: int, known: Joins) -> bytes:
    """`JOINS` of a client."""
    return frame(Kind.JOINS, _KNOWN.pack(run, epoch, known.lap), known.to_bytes())


def unpack_known_joins(body: bytes | memoryview) -> tuple[int, int, Joins]:
    """Run, epoch, and what the client knows. Raises `ProtocolError`."""
    if len(body) < _KNOWN.size:
        raise ProtocolError("half a message of joins")
    run, epoch, lap = _KNOWN.unpack_from(body)
    return run, epoch, _joins(body[_KNOWN.size :], lap)


def pack_joins(joins: Joins) -> bytes:
    """`JOINS` of a server."""
    return frame(Kind.JOINS, _JOINED.pack(joins.lap), joins.to_bytes())


def unpack_joins(body: bytes | memoryview) -> Joins:
    """Inverse of `pack_joins`. Raises `ProtocolError`."""
    if len(body) < _JOINED.size:
        raise ProtocolError("half a message of joins")
    return _joins(body[_JOINED.size :], *_JOINED.unpack_from(body))


def _joins(body: bytes | memoryview, lap: int) -> Joins:
    try:
        return Joins.from_bytes(body, lap)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def joining_facts(joining: Joining) -> dict[str, Any]:
    """A JOINING as plain values, without the names of the run and the epoch."""
    said = joining.said
    facts = {
        "stands": said.stands,
        "leads": said.leads,
        "lap": joining.lap,
        "asks": joining.asks,
        "draws": joining.draws,
    }
    return {"joins": Joins(said.rows).to_json(), **facts}


def joining_of(name: str, order: Order, epoch: int | None, value: dict[str, Any]) -> Joining:
    """Inverse of `joining_facts`. Raises `ProtocolError`."""
    stands, leads, asks, draws = (flag(value, name) for name in ("stands", "leads", "asks", "draws"))
    try:
        joins = Joins.from_json(value.get("joins"), value.get("lap"))
        joins.check_fits(order.samples, order.draws)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    if epoch is None or not order.joins:
        raise ProtocolError("joins of no epoch, or of an order that has none")
    if (stands or leads) and not joins.rows:
        raise ProtocolError("joins that are decided, and are none")
    return Joining(name, order, epoch, Said(stands, leads, joins.rows), joins.lap, asks, draws)


def flag(value: dict[str, Any], name: str) -> bool:
    """A field that is true or false. Raises `ProtocolError`."""
    found = value.get(name)
    if not isinstance(found, bool):
        raise ProtocolError(f"{name} is {str(found)[:40]}, not true or false")
    return found
