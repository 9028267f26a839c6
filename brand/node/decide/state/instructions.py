"""The instructions that a server executes for the decisions, and their fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, FormatError
from brand.formats.constants import ROW
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.windowed import NextWindow
from brand.node.memory.pages import PageCounts, pages_needed
from brand.node.wire.client_messages import Deliver, Joined, Number, Numbers, OrderDecided, PositionsDivided
from brand.node.wire.decoding import DecodeSpec
from brand.node.wire.draw_messages import Lease
from brand.node.wire.messages import Chains
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber
from brand.node.wire.peer_messages import Question, Reply
from brand.orders.base.joins import Join
from brand.orders.base.plan import EpochPlan
from brand.orders.base.rank_rule import EpochRanks
from brand.orders.order import Order

PIECE: Final = np.dtype(
    [("chunk", "<i4"), ("offset", "<i8"), ("size", "<i8"), ("span", "<i4"), ("samples", "<i4"), ("folder", "i1")]
)
"""A range of a chunk. It has `span` samples, and `samples` of them are loaded into memory.

`folder`: the cache folder from which it is read, where the same bytes are at the same offset. 0: from the storage.
"""


class Rows(Protocol):
    """The source of rows of the index."""

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """Return the rows of the places `first` to `end` - 1. Raises `FormatError`."""

    def rows_at(self, places: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the rows of these places. Raises `FormatError`."""


def rows_of(index: Rows, first: int, end: int, pages_of: PageCounts, page: int) -> NDArray[np.void] | None:
    """Return the rows for a read. `pages_of` has the pages of each sample.

    Returns None if the rows cannot be read, or do not agree with `pages_of`.
    """
    try:
        rows = index.rows(first, end)
    except FormatError:
        return None
    return rows if (pages_needed(rows["size"], page) == pages_of[first:end]).all() else None


def rows_of_each(
    index: Rows, places: NDArray[Any], pages_of: PageCounts, page: int
) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """Return the rows for reads of single samples, and a mask of the places that have a row.

    A place has no row if the row cannot be read, or does not agree with `pages_of`.
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
    """Have the planner make the plan of an epoch, then report `PlanMade`."""

    key: tuple[RunNumber, int]
    """Number of the run, and the epoch."""
    order: Order
    joins: tuple[Join, ...] = ()
    """Joins of the run with other runs in this epoch."""
    in_windows: bool = False
    """Whether the epoch takes its plan in windows, if the order has such."""
    ruled: EpochRanks | None = field(default=None, compare=False)
    """The ranks of its positions, if they are found by a rule, which takes time for planned batches."""


@dataclass(frozen=True, slots=True)
class MakeWindow:
    """Have the planner make a window of the plan of an active epoch, then report `WindowMade`."""

    key: tuple[RunNumber, int]
    number: int
    """Number of the epoch."""
    window: NextWindow


@dataclass(eq=False, slots=True)
class Read:
    """Have each of `pieces` read into memory, then report `ReadEnded`.

    A stripe is one piece, and a few stripes that start together are as many pieces. A bundle is many pieces of one
    sample each, at any places, which start and end together: a decision on many samples costs as much as on one.
    """

    number: int
    pieces: NDArray[np.void]
    """Array of dtype `PIECE`."""
    vectors: list[NDArray[np.void]]
    """The memory that the bytes of each piece are read into, in order, in the layout of readv(2)."""
    places: NDArray[Any]
    """Places of the samples that the read loads into memory, piece by piece."""
    heads: NDArray[np.int32]
    """First page of each of these samples."""
    rows: NDArray[np.void]
    """Row of the index of each of these samples. It is stored in front of the bytes once these are in memory."""
    plan: EpochPlan
    """The plan of the epoch that the read is for."""
    reserved: int = 0
    """Pages of its samples that are reserved in the queue of the cache folder."""
    count: int = 1
    """Number of reads under way that it counts as."""

    def places_of(self, piece: int) -> NDArray[Any]:
        """Return the places of the samples that a piece loads into memory."""
        samples = self.pieces["samples"]
        first = int(samples[:piece].sum())
        places: NDArray[Any] = self.places[first : first + int(samples[piece])]
        return places

    def of_pieces(self, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask of `places` for some pieces. `which` has the shape (pieces,)."""
        return np.repeat(which, self.pieces["samples"])

    def part(self, number: int, which: NDArray[np.bool_]) -> Read:
        """Return a read of some of the pieces."""
        vectors = [vector for vector, wanted in zip(self.vectors, which.tolist(), strict=True) if wanted]
        mine = self.of_pieces(which)
        places = self.places[mine]
        return Read(number, self.pieces[which], vectors, places, self.heads[mine], self.rows[mine], self.plan)


@dataclass(frozen=True, slots=True)
class ReadFor:
    """Have samples read one by one for another node, or for a client of this node (`Fetches.reads`)."""

    node: NodeNumber
    """The node that has asked. This node itself if a client of its own has."""
    number: int
    """Number of the node's question."""
    opening: int
    """Number of the node's stream (`Peer.opening`)."""
    places: NDArray[np.int64]
    size: int
    """Stored bytes of the samples."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Have samples written to a cache folder if their checksums are right, then report `WriteEnded`."""

    number: int
    folder: int
    """Number of the folder, from 1 on."""
    places: NDArray[Any]
    """Places in ascending order."""
    counts: NDArray[np.uint32]
    """Number of pages of each sample."""
    pages: NDArray[np.int32]
    """All pages, sample by sample. The samples remain in memory until the write has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Forget:
    """Have a cache folder forget samples, because their bytes are wrong or their space is needed."""

    folder: int
    """Number of the folder, from 1 on."""
    places: NDArray[Any]
    parts: bool
    """Whether to remove the files of these samples, because they cannot be read. All their samples are forgotten."""


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
    """Answer a client's draw."""

    client: ClientNumber
    lease: Lease


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to another node, on the stream that this node opened (`asks`) or on that of the other node."""

    node: NodeNumber
    asks: bool
    message: Question | Reply


@dataclass(frozen=True, slots=True)
class StartPreparer:
    """Start the process of a decode worker, then report `PreparerReady`."""

    preparer: int


@dataclass(frozen=True, slots=True)
class EndPreparer:
    """End the process of a decode worker. Nothing more is reported about it."""

    preparer: int


@dataclass(frozen=True, slots=True, eq=False)
class Prepare:
    """Have a decode worker decode samples, then report `PreparerSized`."""

    preparer: int
    number: int
    """Number of the batch."""
    wanted: int
    """Number of the decode spec."""
    want: DecodeSpec
    chains: Chains
    """Pages of the stored samples, which remain in memory meanwhile."""


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """Have pages of a decode worker's staging memory copied to the decoded memory, then report `PreparedFilled`."""

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


ForThreads = MakePlan | MakeWindow | ChooseCached | Read | ReadFor | Write | Forget
ForDecodeWorkers = StartPreparer | EndPreparer | Prepare | Fill
ForClients = DrawAnswer | Number | Numbers | Joined | OrderDecided | PositionsDivided | Deliver | Refuse
Instruction = ForThreads | ForDecodeWorkers | ForClients | Say
