"""What passes between the server's decisions and those who act on them: rows of the index, choices, reads, answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.node.epoch import Epoch
from brand.protocol.plan import Plan


class Rows(Protocol):
    """Where the rows of the index come from."""

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """Rows of the places `first` to `end` - 1."""
        ...

    def release_rows(self) -> None:
        """Give up memory that looking at rows took."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """What `choose_kept` is asked: which samples are kept while this plan's epoch goes on, in `room` pages."""

    plan: Plan
    stripe: int
    room: int


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
