"""Replies of a server to its clients. Each reply is one class, described once, and also an instruction.

`brand.node.wire.client_messages` has the requests; LEASE has a packer of its own (`brand.node.wire.lease`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from brand.node.wire.described import BYTES, U32, U64, array, described, order_entry, several, text
from brand.node.wire.joining import JOINS
from brand.node.wire.messages import MAX_REASON, MOST_PLACES, Kind
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.node.wire.prepared import MOST_WANTS
from brand.orders.base.joins import Joins
from brand.orders.order import Order


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
