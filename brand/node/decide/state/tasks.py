"""What do decisions ask for? The instructions that a server executes, and their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, FormatError
from brand.formats.constants import ROW
from brand.node.decide.state.choosing import ChooseCached
from brand.node.memory.pages import PageCounts, pages_needed
from brand.node.wire.lease import NOT_HELD, Held
from brand.node.wire.messages import NO_CHAINS, Chains
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber
from brand.node.wire.peer_messages import Question, Reply
from brand.node.wire.prepared import DecodeSpec
from brand.node.wire.replies import Deliver as Deliver
from brand.node.wire.replies import Joined as Joined
from brand.node.wire.replies import Number as Number
from brand.node.wire.replies import Numbers as Numbers
from brand.node.wire.replies import OrderDecided as OrderDecided
from brand.node.wire.replies import PositionsDivided as PositionsDivided
from brand.orders.base.joins import Join
from brand.orders.base.plan import EpochPlan
from brand.orders.order import Order


class Rows(Protocol):
    """The source of rows of the index."""

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """Rows of the places `first` to `end` - 1. Raises `FormatError`."""
        ...

    def rows_at(self, places: NDArray[np.int64]) -> NDArray[np.void]:
        """Rows of these places. Raises `FormatError`."""
        ...


def rows_of(index: Rows, first: int, end: int, pages_of: PageCounts, page: int) -> NDArray[np.void] | None:
    """Rows for a read; None where they cannot be read, or do not agree with `pages_of`, the pages of each sample."""
    try:
        rows = index.rows(first, end)
    except FormatError:
        return None
    return rows if (pages_needed(rows["size"], page) == pages_of[first:end]).all() else None


def rows_of_each(
    index: Rows, places: NDArray[Any], pages_of: PageCounts, page: int
) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """Rows for reads of single samples, and which places have one.

    A place has none where the row cannot be read, or does not agree with `pages_of`.
    """
    try:
        rows = index.rows_at(places.astype(np.int64))
    except FormatError:
        if len(places) == 1:
            return np.empty(0, ROW), np.zeros(1, np.bool_)
        halves = [rows_of_each(index, half, pages_of, page) for half in np.array_split(places, 2)]
        return np.concatenate([rows for rows, _ in halves]), np.concatenate([known for _, known in halves])
    known = pages_needed(rows["size"], page) == pages_of[places]
    return rows[known], known


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Have the planner make the plan of an epoch, then say `PlanMade`."""

    key: tuple[RunNumber, int]
    """Number of the run, and the epoch."""
    order: Order
    joins: tuple[Join, ...] = ()
    """Where the run has joined others in this epoch."""


PIECE: Final = np.dtype(
    [
        ("chunk", "<i4"),
        ("offset", "<i8"),
        ("size", "<i8"),
        ("span", "<i4"),
        ("samples", "<i4"),
        ("cached", "?"),
    ]
)
"""A range of a chunk. It has `span` samples, and brings `samples` of them into memory.

`cached`: it is read from the cache folder, where the same bytes lie at the
same offset.
"""


@dataclass(eq=False, slots=True)
class Read:
    """Have each of `pieces` read into memory, then say `ReadEnded`.

    A stripe is one piece, and a few stripes that start together are as many. A bundle is many pieces of one sample
    each, which may lie anywhere: they start and end as one, because a decision costs the loop much the same for one
    sample as for many.
    """

    number: int
    pieces: NDArray[np.void]
    """Of dtype `PIECE`."""
    vectors: list[NDArray[np.void]]
    """The memory that the bytes of each piece go to, in order, in the layout of readv(2)."""
    places: NDArray[Any]
    """Places of the samples that the read brings into memory, piece by piece."""
    heads: NDArray[np.int32]
    """First page of each of these samples."""
    rows: NDArray[np.void]
    """Row of the index of each of them. It goes in front of the bytes once these are in memory."""
    plan: EpochPlan
    """The plan of the epoch that the read is for."""
    reserved: int = 0
    """Pages of its samples for which the queue of the cache folder has room."""
    count: int = 1
    """As how many reads under way it counts."""

    def places_of(self, piece: int) -> NDArray[Any]:
        """Places of the samples that a piece brings into memory."""
        samples = self.pieces["samples"]
        first = int(samples[:piece].sum())
        places: NDArray[Any] = self.places[first : first + int(samples[piece])]
        return places

    def of_pieces(self, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of `places` are those of some pieces; `which` has the shape (pieces,)."""
        return np.repeat(which, self.pieces["samples"])

    def part(self, number: int, which: NDArray[np.bool_]) -> Read:
        """A read of some of the pieces."""
        vectors = [vector for vector, wanted in zip(self.vectors, which.tolist(), strict=True) if wanted]
        mine = self.of_pieces(which)
        places = self.places[mine]
        return Read(number, self.pieces[which], vectors, places, self.heads[mine], self.rows[mine], self.plan)


@dataclass(frozen=True, slots=True)
class ReadFor:
    """Samples to read exactly for another node, or for a client of this one (`Fetches.reads`)."""

    node: NodeNumber
    """The node that has asked; this node itself for a client of its own."""
    number: int
    """Number of the node's question."""
    opening: int
    """Number of the node's stream (`Peer.opening`)."""
    places: NDArray[np.int64]
    size: int
    """Stored bytes of the samples."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Have samples written to the cache folder as far as their checksums are right, then say `WriteEnded`."""

    number: int
    places: NDArray[Any]
    """In rising order."""
    counts: NDArray[np.uint32]
    """Number of pages of each sample."""
    pages: NDArray[np.int32]
    """All pages, sample by sample. The samples stay in memory until the write has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Forget:
    """Have the cache folder forget samples: their bytes are wrong, or others get their room."""

    places: NDArray[Any]
    parts: bool
    """Whether the files go that have these samples: they cannot be read. All samples in them are forgotten."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A request for positions of an epoch that has to be sent to their owner, `node`."""

    node: NodeNumber
    number: int
    """Number that this node gave the epoch."""
    positions: NDArray[np.int64]
    pages: int
    """Pages that the answers will take."""


@dataclass(frozen=True, slots=True)
class DrawAnswer:
    """Answer a client's draw: for each position its place, whether its sample is in memory, and the sample's pages."""

    client: ClientNumber
    lease: int
    places: NDArray[np.int64]
    state: NDArray[np.uint8]
    """State of each sample as in `messages`: 0 absent, 1 present, 2 present and checked; 4 more where prepared."""
    counts: NDArray[np.uint32]
    """Number of pages of each present sample."""
    pages: NDArray[np.int32]
    prepared: Chains = NO_CHAINS
    """Chains of the prepared samples in the second memory, want by want."""
    joins: int = 0
    """How often the run has joined others in the epoch; where its order grows, how many positions are decided."""
    held: Held = NOT_HELD
    """How long the draw waited, and for what."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to another node, on the stream that this node opened (`asks`) or on the one that it opened."""

    node: NodeNumber
    asks: bool
    message: Question | Reply


@dataclass(frozen=True, slots=True)
class StartPreparer:
    """Start the process of a preparer, then say `PreparerReady`."""

    preparer: int


@dataclass(frozen=True, slots=True)
class EndPreparer:
    """End the process of a preparer. Nothing is said of it any more."""

    preparer: int


@dataclass(frozen=True, slots=True, eq=False)
class Prepare:
    """Have a preparer prepare samples, then say `PreparerSized`."""

    preparer: int
    number: int
    """Number of the batch."""
    wanted: int
    """Number of the want."""
    want: DecodeSpec
    chains: Chains
    """Pages of the stored samples, which stay in memory meanwhile."""


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """Have pages of a preparer's staging memory copied to the second memory, then say `PreparedFilled`."""

    preparer: int
    number: int
    """Number of the batch."""
    source: NDArray[np.intp]
    pages: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell a client why it cannot go on, and end its connection."""

    client: ClientNumber
    error: BrandError


Instruction = (
    MakePlan
    | ChooseCached
    | Read
    | ReadFor
    | Write
    | Forget
    | DrawAnswer
    | Say
    | Number
    | Numbers
    | Joined
    | OrderDecided
    | PositionsDivided
    | Deliver
    | Refuse
    | StartPreparer
    | EndPreparer
    | Prepare
    | Fill
)
