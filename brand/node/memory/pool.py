"""The pages of samples, and the bytes in them: an allocator, and the memory behind its pages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.memory.allocator import Allocator
from brand.node.memory.page_memory import PageMemory
from brand.node.memory.pages import PageCounts
from brand.reprs import Reprs

Places = NDArray[np.integer[Any]]


class PagePool(Reprs, shows="allocator _memory"):
    """Pages for the samples of one data set; `pages_of` is the number of pages of each place's sample.

    A sample is found by its head, the first page of its chain. Methods take arrays of places and of their heads.
    """

    def __init__(self, allocator: Allocator, memory: PageMemory, pages_of: PageCounts) -> None:
        self.allocator, self._memory, self.pages_of = allocator, memory, pages_of
        self.all_pages = int(pages_of.sum(dtype=np.int64))
        """Pages of all samples together. Stored, because steps of a server need it, and there may be many samples."""
        self.mean_pages = self.all_pages / len(pages_of) if len(pages_of) else 0.0
        """Mean pages of a sample."""

    def take(self, places: Places) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Allocate pages for samples that will arrive. Returns heads, and all pages, sample by sample.

        The caller ensures that enough pages are free (`allocator.free`).
        """
        return self.allocator.take(self.pages_of[places])

    def came(self, heads: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        """Write the rows of samples whose bytes are in their pages."""
        self._memory.write_rows(heads, rows)

    def put_in(self, places: Places, rows: NDArray[np.void], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Store pages that `take_out` returned on another node, with the rows of this node. Returns heads."""
        heads, pages = self.allocator.take(self.pages_of[places])
        self._memory.put_in(pages, data)
        self._memory.write_rows(heads, rows)
        return heads

    def chains(self, places: Places, heads: NDArray[np.int32]) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Return the number of pages of each sample, and all pages, sample by sample. Places may occur twice here."""
        counts = self.pages_of[places].astype(np.uint32)
        return counts, self.allocator.chains(heads, counts)

    def take_out(self, places: Places, heads: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return a copy of the samples' pages, sample by sample, shape (pages, page size)."""
        return self._memory.take_out(self.chains(places, heads)[1])

    def give_back(self, places: Places, heads: NDArray[np.int32]) -> None:
        """Free the samples' pages."""
        self.allocator.give_back(self.chains(places, heads)[1])

    def vector(
        self, sizes: NDArray[Any], held: NDArray[np.bool_], pages: NDArray[np.int32]
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Return pieces of memory for a read; see `PageMemory.vector`."""
        return self._memory.vector(sizes, held, pages)
