"""The pages of samples, and the interface of decisions to the bytes in them: `Arena` has bytes, `NoMemory` has none.

The first page of a sample's chain begins with the sample's row of the index (`ROW_BYTES`), which has the sample's place
instead of its offset in the chunk (`are_of`). So a client can check and unpack the sample with nothing but its pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError
from brand.formats.constants import ROW
from brand.node.memory.allocator import Allocator
from brand.orders.base.dtypes import count_dtype
from brand.reprs import Reprs

ROW_BYTES: Final = ROW.itemsize
SINK: Final = 0
"""The page for samples that no epoch needs."""

IOVEC: Final = np.dtype([("base", "<u8"), ("length", "<u8")])
"""A piece of memory, in the layout of readv(2)."""
_NEIGHBOURS: Final = 16
"""Samples of a run of neighbours, on average, whose rows are read run by run."""
_FEW: Final = 1024
"""Samples whose equal numbers of pages are stored once, as each draw and read needs them several times."""
SMALLEST_PAGE: Final = 128
LARGEST_PAGE: Final = 64 << 10
Places = NDArray[np.integer[Any]]
PageArray = NDArray[np.unsignedinteger[Any]]
"""Pages of each sample, in the smallest type that holds the largest count: a sum needs a larger type."""


class EqualPages(Reprs, shows="samples pages"):
    """The pages of samples that all take equally many, indexed like an array of them."""

    def __init__(self, samples: int, pages: int) -> None:
        self.samples, self.pages = samples, pages
        self._few = np.full(_FEW, pages, count_dtype(pages))
        self._few.flags.writeable = False

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, places: Places | slice | int) -> PageArray:
        """Return the pages of the samples at these places, which are numbers and not a mask. They may be read-only."""
        if isinstance(places, np.ndarray) and places.ndim == 1 and len(places) <= _FEW:
            return self._few[: len(places)]
        shape = len(range(*places.indices(self.samples))) if isinstance(places, slice) else np.shape(places)
        return np.full(shape, self.pages, self._few.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class IndexedPages:
    """The pages of samples that are looked up in the index, indexed like an array of them."""

    rows: Callable[[int, int], NDArray[np.void]]
    """Returns the rows of the places from a first one to the one before an end. Raises `FormatError`."""
    rows_at: Callable[[NDArray[np.int64]], NDArray[np.void]]
    """Returns the rows of these places. Raises `FormatError`."""
    samples: int
    page: int
    """Bytes of a page."""
    largest: int
    """The largest raw size of a sample."""
    most: int
    """The most pages of a sample."""
    total: int
    """The most pages that all samples can take."""

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, places: Places | slice | int) -> PageArray:
        """Return the pages of the samples at these places, which are numbers and not a mask.

        A row that cannot be read counts as that of an empty sample, as an impossible one does (`possible_sizes`).
        """
        if isinstance(places, slice):
            first, end, _ = places.indices(self.samples)
            return self._run(first, max(first, end))
        wanted = np.asarray(places, np.int64)
        flat = wanted.ravel()
        ends = np.append(np.flatnonzero(np.diff(flat) != 1) + 1, len(flat))
        # Neighbours are read together, and by the descriptor: taking each from the mapped file would map all its pages.
        if len(flat) >= _NEIGHBOURS * len(ends):
            runs = zip([0, *ends.tolist()], ends.tolist(), strict=False)
            found = [self._run(int(flat[first]), int(flat[end - 1]) + 1) for first, end in runs]
            return np.concatenate(found).reshape(wanted.shape)
        try:
            return self._pages(self.rows_at(flat)).reshape(wanted.shape)
        except FormatError:
            return np.ones(wanted.shape, count_dtype(self.most))

    def _run(self, first: int, end: int) -> PageArray:
        try:
            return self._pages(self.rows(first, end))
        except FormatError:
            return np.ones(end - first, count_dtype(self.most))

    def _pages(self, rows: NDArray[np.void]) -> PageArray:
        return pages_needed(possible_sizes(rows, self.largest), self.page).astype(count_dtype(self.most))


PageCounts = PageArray | EqualPages | IndexedPages
"""Pages of each sample, indexed by places."""


def all_pages(pages_of: PageCounts) -> int:
    """Return the pages of all samples together; of `IndexedPages`, the most that they can be."""
    match pages_of:
        case EqualPages():
            return pages_of.samples * pages_of.pages
        case IndexedPages():
            return pages_of.total
    return int(pages_of.sum(dtype=np.int64))


def most_pages(pages_of: PageCounts) -> int:
    """Return the pages of the largest sample, or more."""
    match pages_of:
        case EqualPages():
            return pages_of.pages
        case IndexedPages():
            return pages_of.most
    return int(pages_of.max(initial=0))


def possible_sizes(rows: NDArray[np.void], largest: int) -> NDArray[np.uint32]:
    """Return the stored sizes of rows of the index; 0 for a row with impossible sizes.

    No memory is allocated for its sample, which is not read ahead.
    """
    possible = (rows["size"] <= rows["raw_size"]) & (rows["raw_size"] <= largest)
    sizes: NDArray[np.uint32] = np.where(possible, rows["size"], 0)
    return sizes


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
        indexed = isinstance(pages_of, IndexedPages)
        self._length = np.zeros(allocator.count if indexed else 0, count_dtype(self.most_pages))
        """The pages of each sample in memory, at its head, so that the index is not asked for them."""

    def take(self, places: Places) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Allocate pages for samples that will arrive. Returns heads, and all pages, sample by sample.

        The caller ensures that enough pages are free (`allocator.free`).
        """
        counts = self.pages_of[places]
        heads, pages = self.allocator.take(counts)
        if len(self._length):
            self._length[heads] = counts
        return heads, pages

    def counts(self, places: Places, heads: NDArray[np.int32]) -> PageArray:
        """Return the number of pages of each of some samples in memory."""
        return self._length[heads] if len(self._length) else self.pages_of[places]

    def total(self, places: Places, heads: NDArray[np.int32]) -> int:
        """Return the number of pages of some samples in memory together."""
        if isinstance(self.pages_of, EqualPages):
            return len(places) * self.pages_of.pages
        return int(self.counts(places, heads).sum(dtype=np.int64))

    def came(self, places: Places, heads: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        """Write the rows of samples in front of their bytes, which are in memory."""
        self._memory.write_rows(heads, _with_places(rows, places))

    def put_in(self, places: Places, rows: NDArray[np.void], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Store pages that `take_out` returned on another node, with the rows of this node. Returns heads."""
        heads, pages = self.take(places)
        self._memory.put_in(pages, data)
        self.came(places, heads, rows)
        return heads

    def fill(self, pages: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Fill pages that were taken with a part of a sample, shape (pages, page size)."""
        self._memory.put_in(pages, data)

    def chains(self, places: Places, heads: NDArray[np.int32]) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Return the number of pages of each sample, and all pages, sample by sample. Places may occur twice here."""
        counts = self.counts(places, heads).astype(np.uint32)
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
