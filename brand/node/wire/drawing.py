"""Values of messages about drawing: the process or rank that draws, its first position, the epoch, and its joins."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final

from brand.errors import ProtocolError
from brand.node.wire.described import (
    U32,
    U64,
    Body,
    FieldSpec,
    described,
    inline,
    maybe,
    order_entry,
    several,
    text,
    whole,
)
from brand.node.wire.messages import AS_BEGUN, GOES_ON, MAX_COPIES, MAX_NAME, MAX_REPLICAS, UNTOLD, unpack_json
from brand.node.wire.numbers import FIRST_NODE, NO_CLIENT, ClientNumber, NodeNumber
from brand.orders.base.joins import Joins
from brand.orders.base.rank_rule import RankRule
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.order import MAX_EPOCH, Order

_LAP: Final = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Drawer:
    """The process that draws through a connection."""

    training: int
    """Process id of the training process; in another PID namespace, with the number of that namespace above it."""
    worker: int = 0
    """Number of its worker that draws; 0 if the training process draws itself."""
    workers: int = 1
    """Number of its workers; 1 if the training process draws itself."""
    connection: ClientNumber = NO_CLIENT
    """Number of the connection: each thread that draws has its own."""

    @staticmethod
    def named(training: object, worker: object, connection: ClientNumber) -> Drawer | None:
        """Return the drawing process that a client names in its HELLO, or None. Raises `ProtocolError`."""
        if worker is None or training is None:
            return None
        match worker:
            case [int() as number, int() as workers] if isinstance(training, int) and 0 <= number < workers:
                return Drawer(training, number, workers, connection)
        raise ProtocolError(f"worker {worker!r} of process {training!r}")


@described()
@dataclass(frozen=True, slots=True)
class Announcement:
    """Announces that a rank is about to draw an epoch from a position on."""

    epoch: Annotated[int, U32]
    position: Annotated[int, U64] = 0
    rank: Annotated[int, U32] = 0
    replicas: Annotated[int, U32] = 1
    batch: Annotated[int, U32] = 0
    """Samples of a batch of each rank, with `locality`; 0 if the ranks draw in turn."""
    processes: Annotated[int, U32] = 1
    """Number of processes that draw for the rank; or `GOES_ON`, or `UNTOLD`."""
    front: Annotated[int, U64] = 0
    """If the rank goes on with a new server: another server has answered its draws before this position."""
    copies: Annotated[int, U32] = 1
    """Number of processes at this server that each draw all positions of the rank: a model-parallel group."""
    spans: Annotated[int, U32] = 1
    """Number of nodes that each group has ranks on."""
    part: Annotated[int, U32] = 0
    """Which of these nodes this one is, from 0 on."""

    @property
    def seat(self) -> int:
        """The seat of the rank at this node: each rank has one at each of `spans` nodes."""
        return self.rank * self.spans + self.part

    @property
    def as_begun(self) -> bool:
        """Whether the ranks of the node draw the epoch as they have begun the run (`as_begun`)."""
        return self.replicas == AS_BEGUN

    def check(self) -> None:
        if self.as_begun and (self.rank, self.batch, self.processes) == (0, 0, GOES_ON):
            return
        if not self.rank < self.replicas <= MAX_REPLICAS or MAX_REPLICAS < self.processes != UNTOLD:
            raise ProtocolError(f"rank {self.rank} of {self.replicas}, shared by {self.processes} processes")
        if not 1 <= self.copies <= MAX_COPIES:
            raise ProtocolError(f"{self.copies} ranks of a group: there are 1 to {MAX_COPIES}")
        if not self.part < self.spans or self.replicas * self.spans > MAX_REPLICAS:
            raise ProtocolError(f"node {self.part} of {self.spans} nodes of a group, and {self.replicas} groups")
        if self.front and self.processes != GOES_ON:
            raise ProtocolError(f"rank {self.rank} begins epoch {self.epoch}, and has fetched from it")


def as_begun(epoch: int) -> Announcement:
    """Return the announcement of a process that comes to a later epoch of a member of a mixture.

    A worker process does not know how the positions are divided among ranks. Its server does.
    """
    return Announcement(epoch, replicas=AS_BEGUN, processes=GOES_ON)


def _rule(name: str, value: Any) -> RankRule:
    from brand.orders.batch_ranks import BatchRanks  # most runs do without these
    from brand.orders.mixed_batch_ranks import MixedBatchRanks
    from brand.orders.mixtures.member_ranks import MemberRanks

    kind: Any = MemberRanks if "limits" not in value else MixedBatchRanks if "order" in value else BatchRanks
    try:
        return kind.from_json(value)  # type: ignore[no-any-return]
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError(f"{name}: {error}") from None


def _packed_rule(name: str, body: Body) -> RankRule | None:
    return _rule(name, unpack_json(body)) if len(body) else None


RULE: Final = FieldSpec(
    _packed_rule, lambda rule: b"" if rule is None else json.dumps(rule.to_json()).encode(), rest=True
)
"""A rule that divides positions among ranks, as JSON; empty if they draw in turn."""


@described(json_body=True)
@dataclass(frozen=True, slots=True)
class Begin:
    """Announces that ranks are about to draw an epoch from position `start` on."""

    start: Annotated[int, whole(MAX_POSITIONS)]
    replicas: Annotated[int, whole(MAX_REPLICAS, 1)]
    ranks: Annotated[tuple[int, ...], several(whole(MAX_REPLICAS), MAX_REPLICAS, least=1)]
    batch: Annotated[int, whole(MAX_POSITIONS)] = 0
    """Samples of a batch of each rank, with `locality`; 0 if the ranks draw in turn."""
    node: NodeNumber = FIRST_NODE
    """The node of the ranks."""
    times: Annotated[int, whole(1 << 31)] = 1
    """Number of times in a row that the ranks have begun this epoch; 0 if it is their next epoch."""
    front: Annotated[int, whole(MAX_POSITIONS)] = 0
    """The ranks have drawn all their positions before this position."""
    largest: Annotated[int, whole(1 << 31)] = 0
    """Pages of the largest sample that can be sent to the node of the ranks."""
    rule: Annotated[RankRule | None, maybe(FieldSpec(_rule, lambda rule: rule.to_json()))] = None
    """The rule by which the ranks divide the positions; None if they draw in turn or with `locality`."""
    spans: Annotated[int, whole(MAX_REPLICAS, 1)] = 1
    """Number of nodes that each model-parallel group has ranks on. `ranks` are seats (`Announcement.seat`)."""

    @property
    def seats(self) -> int:
        return self.replicas * self.spans

    def check(self) -> None:
        if len(set(self.ranks)) < len(self.ranks) or max(self.ranks) >= self.seats:
            raise ProtocolError(f"ranks must be distinct numbers from 0 to {self.seats - 1}")
        if self.rule is not None and (self.rule.replicas != self.replicas or self.batch):
            raise ProtocolError(f"a rule for {self.rule.replicas} ranks, and there are {self.replicas}")

    def same_as(self, other: Begin) -> bool:
        """Return whether both divide the same positions among equally many ranks.

        With a rule, ranks may begin at different positions: some may be in the next epoch of the mixture.
        """
        if self.rule is not None and other.rule is not None:
            return self.spans == other.spans and self.rule.agrees_with(other.rule)
        mine, theirs = ((one.start, one.replicas, one.batch, one.rule, one.spans) for one in (self, other))
        return mine == theirs

    def conflict(self, epoch: int, other: Begin) -> str | None:
        """Return why the ranks of this begin and of another begin of the epoch cannot draw together; None if they can.

        Ranks that have begun the epoch more often than others may be a step ahead of these, so the two do not conflict.
        Nor do ranks with a later rule, to which the others will come.
        """
        rules = self.rule, other.rule
        if self.times != other.times or self.same_as(other):
            return None
        if rules[0] is not None and rules[1] is not None and rules[0].since != rules[1].since:
            return None
        return (
            f"nodes {self.node} and {other.node} disagree: node {self.node} begins epoch {epoch} at position "
            f"{self.start:,} of {self.replicas} ranks, node {other.node} at position {other.start:,} of "
            f"{other.replicas} ranks; give all ranks the same sampler and state"
        )


@described(json_body=True)
@dataclass(frozen=True, slots=True)
class Drawing:
    """Tells other nodes about an epoch that this node's ranks draw."""

    name: Annotated[str, text(MAX_NAME, key="run")]
    turn: Annotated[int | None, maybe(whole(1 << 31))]
    order: Annotated[Order, order_entry()]
    epoch: Annotated[int, whole(MAX_EPOCH)]
    begin: Annotated[Begin, inline(Begin)]
    number: Annotated[int, U32]
    """Distinguishes this epoch from the same epoch begun again; 0 if the node cannot receive its samples yet."""

    def check(self) -> None:
        if max(self.begin.start, self.begin.front) > self.order.samples:
            raise ProtocolError(f"an epoch has {self.order.samples:,} positions")


def _joins(name: str, data: Body) -> Joins:
    if len(data) < _LAP.size:
        raise ProtocolError(f"{name} of {len(data)} bytes")
    try:
        return Joins.from_bytes(data[_LAP.size :], *_LAP.unpack_from(data))
    except ValueError as error:
        raise ProtocolError(str(error)) from None


JOINS: Final = FieldSpec(_joins, lambda joins: _LAP.pack(joins.lap) + joins.to_bytes(), rest=True)
"""`Joins`: i32 highest lap, then the rows."""
