"""The events from outside on which a node decides: from clients, threads and other nodes.

Messages of clients are stimuli as they are (`brand.node.wire.client_messages`), except those of each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError
from brand.node.decide.state.instructions import Read, ReadFor, Write
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
from brand.orders.base.placement import CachedUnits
from brand.orders.base.plan import EpochPlan, OpenReads, PlanWindow, PlanWindows


@dataclass(frozen=True, slots=True, eq=False)
class ClientDraws:
    """A client asks for positions of an epoch."""

    client: ClientNumber
    key: Key
    positions: NDArray[np.int64]
    drawer: Drawer | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ClientTakes:
    """A client has copied cached samples itself, at these positions of an epoch."""

    client: ClientNumber
    key: Key
    positions: NDArray[np.int64]
    right: NDArray[np.int64]
    """Places of samples whose bytes in memory have the right checksums, as the client has found."""
    drawer: Drawer | None = None


@dataclass(frozen=True, slots=True)
class ClientLeaves:
    """A client has closed its connection, or has ended."""

    client: ClientNumber


@dataclass(frozen=True, slots=True, eq=False)
class PlanMade:
    """The planner has made a plan. `read_of` is `read_of_sample(plan)`. None if the plan is made in windows."""

    key: Key
    plan: EpochPlan | PlanWindows
    read_of: NDArray[Any] | None
    joins: tuple[Join, ...] = ()
    """The joins of `MakePlan`."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowMade:
    """The planner has made a window of the plan of an epoch."""

    key: Key
    number: int
    """Number of the epoch."""
    window: PlanWindow
    open_reads: OpenReads | None
    """The reads that are due before the window, if it is the first one."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptChosen:
    """The planner has chosen the samples of the memory cache and of the cache folders.

    `mask`, if it is an array, and `cached`, the folder of each sample, have the shape (samples,). None if nothing
    changes.
    """

    number: int
    mask: NDArray[np.bool_] | CachedUnits | None
    cached: NDArray[np.int8] | None = None
    since: int | None = None
    """`ChooseCached.since`: the epoch with which the eviction of samples from the folders begins."""
    whole_unit: int = 1
    """`ChooseCached.whole_unit`: samples that a miss reads."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadEnded:
    """A read has ended."""

    read: Read
    failed: tuple[int, ...] = ()
    """Numbers of its pieces that failed."""
    left: tuple[int, ...] = ()
    """Numbers of its pieces that were left in the page cache: clients have them already."""
    chunks: tuple[int, ...] = ()
    """Numbers of chunks that the page cache holds: those of these pieces, and those that the plan reads next."""
    seconds: tuple[float, ...] = ()
    """Seconds that each piece took, 0 if it failed or was left. Empty if there is no choice of sources to measure for.
    """


@dataclass(frozen=True, slots=True, eq=False)
class WriteEnded:
    """A write to a cache folder has ended."""

    write: Write
    held: NDArray[np.bool_]
    """Whether the folder holds each of its samples now."""
    stopped: str
    """Why nothing more can be written. Empty if it can."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadForEnded:
    """A read for a node has ended, with `data` in the format of `pack_samples`."""

    read: ReadFor
    data: bytes
    error: BrandError | None = None
    """The error of a sample that a client of this node asked for. For another node, such a sample is left out."""


@dataclass(frozen=True, slots=True)
class PreparerReady:
    """The process of a decode worker has started."""

    preparer: int


@dataclass(frozen=True, slots=True, eq=False)
class PreparerSized:
    """A decode worker has decoded a batch, to samples of these sizes in bytes (`brand.node.wire.decoding`)."""

    preparer: int
    number: int
    sizes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PreparedFilled:
    """The samples of a batch are in the decoded memory."""

    number: int


@dataclass(frozen=True, slots=True)
class PreparerEnded:
    """The process of a decode worker has ended."""

    preparer: int


@dataclass(frozen=True, slots=True)
class StreamOpens:
    """A stream is open. `asks`: whether this node asks on it, or the other node."""

    node: NodeNumber
    asks: bool


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """An open stream has ended."""

    node: NodeNumber
    asks: bool


@dataclass(frozen=True, slots=True)
class NodeRefuses:
    """Another node reports why it can never work with this one."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class NodeSays:
    """Another node has sent a message."""

    node: NodeNumber
    message: Question | Reply


OfBatches = ClientDraws | ClientTakes | ClientReleases
OfClients = ClientRegisters | ClientBegins | ClientDivides | ClientFetches | ClientJoins | ClientOrders | ClientLeaves
OfThreads = PlanMade | WindowMade | KeptChosen | ReadEnded | WriteEnded | ReadForEnded
OfDecoding = ClientPrepares | PreparerReady | PreparerSized | PreparedFilled | PreparerEnded
OfNodes = StreamOpens | StreamEnds | NodeRefuses | NodeSays
Stimulus = OfBatches | OfClients | OfThreads | OfDecoding | OfNodes
