"""Messages about the points at which a run joined other runs: JOINS, JOINING and FRONT (docs/protocols/shared.md).

A client and its server exchange JOINS. A node tells other nodes in a JOINING the joins with which it would draw an
epoch, and in a FRONT how far its ranks have drawn the epoch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final

from brand.errors import ProtocolError
from brand.node.wire.described import FLAG, U32, U64, Body, FieldSpec, described, order_entry, text, whole
from brand.node.wire.messages import MAX_NAME, PeerKind
from brand.orders.base.joins import MAX_LAP, Join, Joins
from brand.orders.order import MAX_EPOCH, Order

_LAP: Final = struct.Struct("<i")


def _joins(name: str, data: Body) -> Joins:
    if len(data) < _LAP.size:
        raise ProtocolError(f"{name} of {len(data)} bytes")
    try:
        return Joins.from_bytes(data[_LAP.size :], *_LAP.unpack_from(data))
    except ValueError as error:
        raise ProtocolError(str(error)) from None


JOINS: Final = FieldSpec(_joins, lambda joins: _LAP.pack(joins.lap) + joins.to_bytes(), rest=True)
"""`Joins`: i32 highest lap, then the rows."""


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
    # `stands` and `leads` are the keys of the message (docs/protocols/node-messages.md).
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
        """Raise `ProtocolError` if the order cannot have these joins."""
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
