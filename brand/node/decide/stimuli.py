"""What happens to a node? All that its decisions learn from outside: from clients, threads and other nodes.

Messages of clients are stimuli as they are (`brand.node.wire.client_messages`), but for those of each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError
from brand.node.decide.state.tasks import Read, ReadFor, Write
from brand.node.wire.client_messages import ClientBegins as ClientBegins
from brand.node.wire.client_messages import ClientDivides as ClientDivides
from brand.node.wire.client_messages import ClientFetches as ClientFetches
from brand.node.wire.client_messages import ClientJoins as ClientJoins
from brand.node.wire.client_messages import ClientOrders as ClientOrders
from brand.node.wire.client_messages import ClientPrepares as ClientPrepares
from brand.node.wire.client_messages import ClientRegisters as ClientRegisters
from brand.node.wire.client_messages import ClientReleases as ClientReleases
from brand.node.wire.drawing import Drawer
from brand.node.wire.numbers import ClientNumber, Key, NodeNumber
from brand.node.wire.peer_messages import Question, Reply
from brand.orders.base.joins import Join
from brand.orders.base.plan import EpochPlan


@dataclass(frozen=True, slots=True, eq=False)
class ClientDraws:
    """A client asks for positions of an epoch."""

    client: ClientNumber
    key: Key
    positions: NDArray[np.int64]
    drawer: Drawer | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ClientTakes:
    """A client has taken kept samples by itself, at these positions of an epoch."""

    client: ClientNumber
    key: Key
    positions: NDArray[np.int64]
    right: NDArray[np.int64]
    """Places of samples whose checksums it has found right, in the bytes that are in memory."""
    drawer: Drawer | None = None


@dataclass(frozen=True, slots=True)
class ClientLeaves:
    """A client is gone: it has closed its connection, or has ended."""

    client: ClientNumber


@dataclass(frozen=True, slots=True, eq=False)
class PlanMade:
    """The planner has made a plan; `read_of` is `read_of_sample(plan)`."""

    key: Key
    plan: EpochPlan
    read_of: NDArray[Any]
    joins: tuple[Join, ...] = ()
    """Those of `MakePlan`."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptChosen:
    """The planner has chosen which samples are kept, and which have a place in the cache folder, shape (samples,).

    None: nothing changes.
    """

    number: int
    """Number of the choice."""
    mask: NDArray[np.bool_] | None
    cached: NDArray[np.bool_] | None = None
    since: int | None = None
    """`Choice.since`: with which epoch samples begin to leave the folder."""
    whole_unit: int = 1
    """`Choice.whole_unit`: samples that a miss reads."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadEnded:
    """A read has ended."""

    read: Read
    failed: tuple[int, ...] = ()
    """Numbers of its pieces that failed."""
    left: tuple[int, ...] = ()
    """Numbers of its pieces that the page cache holds and that were left there: clients have them already."""
    chunks: tuple[int, ...] = ()
    """Numbers of chunks that the page cache holds: those of these pieces, and those that the plan reads next."""


@dataclass(frozen=True, slots=True, eq=False)
class WriteEnded:
    """A write to the cache folder has ended."""

    write: Write
    held: NDArray[np.bool_]
    """Which of its samples the folder holds now."""
    stopped: str
    """Why nothing more can be written; empty while it can."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadForEnded:
    """A read for a node has ended, with `data` as `pack_samples` makes it."""

    read: ReadFor
    data: bytes
    error: BrandError | None = None
    """What was wrong with a sample that a client of this node wants. For another node, such a sample is left out."""


@dataclass(frozen=True, slots=True)
class PreparerReady:
    """The process of a preparer has started."""

    preparer: int


@dataclass(frozen=True, slots=True, eq=False)
class PreparerSized:
    """A preparer has prepared a batch, to samples of these sizes in bytes (`brand.node.wire.preparer`)."""

    preparer: int
    number: int
    sizes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PreparedFilled:
    """The samples of a batch are in the second memory."""

    number: int


@dataclass(frozen=True, slots=True)
class PreparerEnded:
    """The process of a preparer has ended."""

    preparer: int


@dataclass(frozen=True, slots=True)
class StreamOpens:
    """A stream is open. `asks`: this node asks on it; else the other node does."""

    node: NodeNumber
    asks: bool


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """An open stream has ended."""

    node: NodeNumber
    asks: bool


@dataclass(frozen=True, slots=True)
class NodeRefuses:
    """Another node says why it can never work with this one."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class NodeSays:
    """Another node has sent a message."""

    node: NodeNumber
    message: Question | Reply


Stimulus = (
    ClientRegisters
    | ClientBegins
    | ClientDraws
    | ClientTakes
    | ClientReleases
    | ClientDivides
    | ClientFetches
    | ClientJoins
    | ClientOrders
    | ClientPrepares
    | ClientLeaves
    | PlanMade
    | KeptChosen
    | ReadEnded
    | WriteEnded
    | ReadForEnded
    | PreparerReady
    | PreparerSized
    | PreparedFilled
    | PreparerEnded
    | StreamOpens
    | StreamEnds
    | NodeRefuses
    | NodeSays
)
