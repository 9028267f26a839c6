"""Which decoded samples are in memory, in which pages, and which of them are clients copying?

Decoded samples have pages of their own, in a second memory. A `DecodedStore` has those of one decode spec, by place. A
sample is stored until its space is needed (`free`), because the same bytes always decode to the same values. Methods
take arrays of distinct places. One thread owns a `PreparedMemory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.memory.allocator import Allocator
from brand.node.memory.pages import Places
from brand.node.memory.tables import SparseTable
from brand.reprs import Reprs

Mask = NDArray[np.bool_]

RAW, MAKING, MADE, NEVER = range(4)
"""States of a sample in a `DecodedStore`: not decoded, being decoded, in memory, never to be decoded."""
LARGEST_SHARE: Final = 4
"""A decoded sample takes at most `1 / LARGEST_SHARE` of the memory."""


class DecodedStore:
    """The decoded samples of one decode spec, of a data set of `samples` samples, in the pages of `allocator`."""

    def __init__(self, allocator: Allocator, samples: int) -> None:
        self._allocator = allocator
        self._state, self._head, self._count, self._leases = (
            SparseTable(samples, dtype).values for dtype in (np.uint8, np.int32, np.uint32, np.int32)
        )

    def __repr__(self) -> str:
        raw, making, made, never = np.bincount(self._state, minlength=4).tolist()
        return f"DecodedStore({raw} raw, {making} being made, {made} made, {never} never)"

    @property
    def used(self) -> bool:
        """Whether a sample is being decoded or copied."""
        return bool((self._state == MAKING).any() or self._leases.any())

    def states(self, places: Places) -> NDArray[np.uint8]:
        states: NDArray[np.uint8] = self._state[places]
        return states

    def all(self, state: int) -> NDArray[np.intp]:
        return np.flatnonzero(self._state == state)

    def starts(self, places: Places) -> None:
        self._state[places] = MAKING

    def stops(self, places: Places, *, never: bool = False) -> None:
        """Mark these samples as not being decoded any more; with `never`, never again."""
        self._state[places] = NEVER if never else RAW

    def put(self, places: Places, heads: NDArray[np.int32], counts: NDArray[Any]) -> None:
        self._state[places] = MADE
        self._head[places], self._count[places] = heads, counts

    def lease(self, places: Places) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Lease samples to a client. Returns the number of pages of each, and all pages, sample by sample."""
        self._leases[places] += 1
        return self._count[places], self._allocator.chains(self._head[places], self._count[places])

    def release(self, places: Places) -> int:
        """Release samples that a client has copied. Returns their number of pages."""
        self._leases[places] -= 1
        return int(self._count[places].sum())

    def copied(self, places: Places) -> Mask:
        return self._leases[places] > 0

    def pages(self, places: Places) -> NDArray[np.int64]:
        return self._count[places].astype(np.int64)

    def free(self, places: Places) -> None:
        self._allocator.give_back(self._allocator.chains(self._head[places], self._count[places]))
        self._state[places] = RAW


class PreparedMemory(Reprs, shows="allocator _shelves"):
    """The second memory of a server: stores of decoded samples by the numbers of decode specs."""

    def __init__(self, allocator: Allocator, samples: int) -> None:
        self.allocator, self._samples = allocator, samples
        self._shelves: dict[int, DecodedStore] = {}
        self.released = 0
        """Pages of decoded samples that clients have copied since all evictable samples were evicted (`looked`)."""

    def __getitem__(self, want: int) -> DecodedStore:
        return self._shelves[want]

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._shelves))

    @property
    def largest(self) -> int:
        return max(1, (self.allocator.count - 1) // LARGEST_SHARE)

    def add(self, want: int) -> None:
        self._shelves[want] = DecodedStore(self.allocator, self._samples)

    def remove(self, want: int) -> None:
        """Forget all decoded samples of a decode spec; none is being decoded or copied."""
        self._shelves[want].free(self._shelves[want].all(MADE))
        del self._shelves[want]

    def release(self, want: int, places: Places) -> None:
        self.released += self._shelves[want].release(places)

    def looked(self) -> None:
        self.released = 0
