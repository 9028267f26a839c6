"""What passes between the server's decisions and those who act on them: rows of the index, draws, choices, reads,
answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError
from brand.node.account import Drawer
from brand.node.epoch import Epoch
from brand.node.members import Owners
from brand.node.pages import pages_needed
from brand.protocol.plan import Plan, choose_kept


class Rows(Protocol):
    """Where the rows of the index come from."""

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """Rows of the places `first` to `end` - 1. Raises `FormatError`."""
        ...

    def rows_at(self, places: NDArray[np.int64]) -> NDArray[np.void]:
        """Rows of these places. Raises `FormatError`."""
        ...


def rows_of(index: Rows, first: int, end: int, pages_of: NDArray[np.uint32], page: int) -> NDArray[np.void] | None:
    """Rows for a read; None where they cannot be read, or need other pages than memory was divided by."""
    try:
        rows = index.rows(first, end)
    except FormatError:
        return None
    return rows if (pages_needed(rows["size"], page) == pages_of[first:end]).all() else None


@dataclass(eq=False, slots=True)
class Draw:
    """Positions of an epoch that a client waits for."""

    client: int
    key: tuple[int, int]
    """Number of the run, and the epoch."""
    positions: NDArray[np.int64]
    since_s: float
    drawer: Drawer | None = None
    """The process behind the client, where that is known."""
    asked_of: Epoch | None = None
    """The epoch whose planned requests for this draw have been made."""
    asked_s: float = 0.0
    """When they were made: since then other nodes can know that the draw waits."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What `kept` is asked: which samples are kept while this plan's epoch goes on, in `room` pages?"""

    plan: Plan
    unit: int
    """Samples of a chunk that are kept together."""
    seed: int
    room: int
    owners: Owners

    def kept(self, pages_of: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Samples that this node owns, as many as fit. Shape (samples,)."""
        if self.owners.of_chunk is None:
            return choose_kept(self.plan, pages_of, self.room, self.unit, self.seed)
        mine = self.owners.mine(np.arange(len(pages_of)))
        return choose_kept(self.plan, np.where(mine, pages_of, 0), self.room, self.unit, self.seed) & mine


@dataclass(eq=False, slots=True)
class Read:
    """One read to do: `size` bytes at `offset` of a chunk, into the pieces of `vector`."""

    chunk: int
    offset: int
    size: int
    vector: NDArray[np.void]
    forget: bool
    places: NDArray[Any]
    heads: NDArray[np.int32]
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Request:
    """Positions of an epoch, by its number here, for which an owner is to be asked."""

    node: int
    number: int
    positions: NDArray[np.int64]
    pages: int
    """What the answers will take."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a draw gets: for each position its place, whether it is in memory and checked, and its pages."""

    client: int
    lease: int
    places: NDArray[np.int64]
    state: NDArray[np.uint8]
    """As in `messages`: 0 absent, 1 present, 2 present and checked."""
    counts: NDArray[np.uint32]
    """Pages of each sample that is present."""
    pages: NDArray[np.int32]
