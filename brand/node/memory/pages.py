"""The pages of samples, and the interface of decisions to the bytes in them: `Arena` has bytes, `NoMemory` has none.

The first page of a sample's chain begins with the sample's row of the index (`ROW_BYTES`), which has the sample's place
instead of its offset in the chunk (`are_of`). So a client can check and unpack the sample with nothing but its pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.formats.constants import ROW
from brand.node.memory.allocator import Allocator
from brand.orders.base.dtypes import count_dtype
from brand.reprs import Reprs

ROW_BYTES: Final = ROW.itemsize
SINK: Final = 0
"""The page for samples that no epoch needs."""

IOVEC: Final = np.dtype([("base", "<u8"), ("length", "<u8")])
"""A piece of memory, in the layout of readv(2)."""
SMALLEST_PAGE: Final = 128
LARGEST_PAGE: Final = 64 << 10
Places = NDArray[np.integer[Any]]
PageArray = NDArray[np.unsignedinteger[Any]]
"""Pages of each sample, in the smallest type that holds the largest count: a sum needs a larger type."""


@dataclass(frozen=True, slots=True)
class EqualPages:
    """The pages of samples that all take equally many, indexed like an array of them."""

    samples: int
    pages: int

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, places: Places | slice | int) -> PageArray:
        """Return the pages of the samples at these places, which are numbers and not a mask."""
        shape = len(range(*places.indices(self.samples))) if isinstance(places, slice) else np.shape(places)
        return np.full(shape, self.pages, count_dtype(self.pages))


PageCounts = PageArray | EqualPages
"""Pages of each sample, indexed by places."""


def all_pages(pages_of: PageCounts) -> int:
    """Return the pages of all samples together."""
    if isinstance(pages_of, EqualPages):
        return pages_of.samples * pages_of.pages
    return int(pages_of.sum(dtype=np.int64))


def most_pages(pages_of: PageCounts) -> int:
    """Return the pages of the largest sample."""
    return pages_of.pages if isinstance(pages_of, EqualPages) else int(pages_of.max(initial=0))


class PageMemory(Protocol):
    """The bytes of pages. An `Allocator` assigns pages to samples."""

    def write_rows(self, heads: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        """Write each sample's row to the beginning of its chain."""
        ...

    def vector(
        self, sizes: NDArray[Any], held: NDArray[np.bool_], pages: NDArray[np.int32]
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Return pieces of memory (`IOVEC`) for samples of these sizes, which are contiguous in a file.

        Held samples are written behind the rows of their chains (`pages`, chain by chain), all other samples into the
        sink. Also returns the number of pieces up to the end of each sample.
        """
        ...

    def take_out(self, pages: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return a copy of pages, shape (pages, page size)."""
        ...

    def put_in(self, pages: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Fill pages with `data`, shape (pages, page size)."""
        ...


@dataclass(frozen=True, slots=True)
class NoMemory:
    """Memory without bytes, for decisions whose samples do not matter: simulations and replays."""

    page: int
    """Bytes of a page."""

    def write_rows(self, heads: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        """Store nothing."""

    def vector(
        self,
        sizes: NDArray[Any],
        held: NDArray[np.bool_],  # noqa: ARG002
        pages: NDArray[np.int32],  # noqa: ARG002
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        return np.empty(0, IOVEC), np.zeros(len(sizes), np.int64)

    def take_out(self, pages: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return zeros, which take no memory."""
        return np.broadcast_to(np.uint8(0), (len(pages), self.page))

    def put_in(self, pages: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Store nothing."""


def are_of(rows: NDArray[np.void], places: Places) -> NDArray[np.bool_]:
    """Return which rows in front of samples in memory are those of these places, shape (rows,)."""
    same: NDArray[np.bool_] = rows["offset"] == places.astype(np.uint64)
    return same


def _with_places(rows: NDArray[np.void], places: Places) -> NDArray[np.void]:
    rows = rows.copy()
    rows["offset"] = places
    return rows


def page_bytes(mean_sample: float) -> int:
    """Return the bytes of a page: a power of two near a sixteenth of the mean sample.

    Larger pages waste more memory at the end of each sample; smaller pages make longer chains.
    """
    wanted = max(1.0, mean_sample / 16)
    return int(min(LARGEST_PAGE, max(SMALLEST_PAGE, 1 << round(np.log2(wanted)))))


def pages_needed(sizes: NDArray[Any], page: int) -> NDArray[np.uint32]:
    """Return the pages that samples of these stored sizes take, rows included."""
    return ((sizes.astype(np.int64) + (ROW_BYTES + page - 1)) // page).astype(np.uint32)


def arena_bytes(pages_of: PageCounts, page: int) -> int:
    """Return the memory that holds all samples at once, in bytes."""
    return (all_pages(pages_of) + 1) * page


class PagePool(Reprs, shows="allocator _memory"):
    """Pages for the samples of one data set; `pages_of` is the number of pages of each place's sample.

    A sample is found by its head, the first page of its chain. Methods take arrays of places and of their heads.
    """

    def __init__(self, allocator: Allocator, memory: PageMemory, pages_of: PageCounts) -> None:
        self.allocator, self._memory, self.pages_of = allocator, memory, pages_of
        self.all_pages, self.most_pages = all_pages(pages_of), most_pages(pages_of)
        """Pages of all samples together, and of the largest one. Stored, because steps of a server need them."""
        self.mean_pages = self.all_pages / len(pages_of) if len(pages_of) else 0.0
        """Mean pages of a sample."""

    def take(self, places: Places) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Allocate pages for samples that will arrive. Returns heads, and all pages, sample by sample.

        The caller ensures that enough pages are free (`allocator.free`).
        """
        return self.allocator.take(self.pages_of[places])

    def came(self, places: Places, heads: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        """Write the rows of samples in front of their bytes, which are in memory."""
        self._memory.write_rows(heads, _with_places(rows, places))

    def put_in(self, places: Places, rows: NDArray[np.void], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Store pages that `take_out` returned on another node, with the rows of this node. Returns heads."""
        heads, pages = self.allocator.take(self.pages_of[places])
        self._memory.put_in(pages, data)
        self.came(places, heads, rows)
        return heads

    def fill(self, pages: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Fill pages that were taken with a part of a sample, shape (pages, page size)."""
        self._memory.put_in(pages, data)

    def chains(self, places: Places, heads: NDArray[np.int32]) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Return the number of pages of each sample, and all pages, sample by sample. Places may occur twice here."""
        counts = self.pages_of[places].astype(np.uint32)
        return counts, self.allocator.chains(heads, counts)

    def take_out(self, places: Places, heads: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return a copy of the samples' pages, sample by sample, shape (pages, page size)."""
        return self._memory.take_out(self.chains(places, heads)[1])

    def part(self, place: int, head: int, first: int, end: int) -> NDArray[np.uint8]:
        """Return a copy of a sample's pages `first` to `end` - 1, shape (pages, page size)."""
        _, pages = self.chains(np.array([place]), np.array([head], np.int32))
        return self._memory.take_out(pages[first:end])

    def give_back(self, places: Places, heads: NDArray[np.int32]) -> None:
        self.allocator.give_back(self.chains(places, heads)[1])

    def vector(
        self, sizes: NDArray[Any], held: NDArray[np.bool_], pages: NDArray[np.int32]
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Return pieces of memory for a read; see `PageMemory.vector`."""
        return self._memory.vector(sizes, held, pages)
