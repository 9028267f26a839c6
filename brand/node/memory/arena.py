"""The memory that holds the bytes of samples: one anonymous file, which clients map and no process can find by name.

The arena is an anonymous file of fixed-size pages (memfd), so it vanishes with the last process that uses it, however
that process ends. Clients map it read-only, and no process can resize it (sealed). An `Allocator` assigns each chain of
pages to one thread, and that thread owns the bytes of the chain.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.anonymous import anonymous_file, seal
from brand.node.memory.pages import IOVEC, ROW_BYTES, SINK
from brand.reprs import Reprs


class Arena(Reprs, shows="pages _page descriptor"):
    """Shared memory of `count` pages of `page` bytes: the `PageMemory` of a server."""

    def __init__(self, count: int, page: int) -> None:
        self._page = page
        descriptor = anonymous_file("brand", count * page)
        try:
            self._memory = mmap.mmap(descriptor, count * page)
        except BaseException:
            os.close(descriptor)
            raise
        # A client of a shorter file would crash at its next access (SIGBUS). This mapping is older than the seals, so
        # it remains writable.
        self.descriptor = seal(descriptor, writers=False)
        self.pages: NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8).reshape(count, page)
        """All pages, shape (count, page)."""
        self._address = self.pages.ctypes.data

    def write_rows(self, heads: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        self.pages[heads, :ROW_BYTES] = rows.view(np.uint8).reshape(-1, ROW_BYTES)

    def vector(
        self, sizes: NDArray[Any], held: NDArray[np.bool_], pages: NDArray[np.int32]
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Return pieces of memory as `PageMemory.vector` does. A held sample whose pages are contiguous is one piece.

        Raises IndexError if a page does not exist, or the number of pages is wrong: reads write to these addresses.
        """
        front = np.where(held, ROW_BYTES, 0)
        counts = -(-(sizes + front) // self._page)
        exist = not len(pages) or 0 <= pages.min() <= pages.max() < len(self.pages)
        if not exist or len(pages) != int(counts[held].sum()):
            raise IndexError("samples would be read into pages that do not exist")
        if held.all() and (whole := self._whole(sizes, counts, pages)) is not None:
            return whole, np.arange(1, len(sizes) + 1)
        ends = np.cumsum(counts)
        starts = ends - counts
        page = np.full(int(ends[-1]) if len(ends) else 0, SINK, np.int64)
        page[np.repeat(held, counts)] = pages
        begin = np.zeros(len(page), np.int64)
        begin[starts[held]] = ROW_BYTES
        stop = np.full(len(page), self._page, np.int64)
        some = counts > 0
        stop[ends[some] - 1] = (sizes + front - (counts - 1) * self._page)[some]
        vector = np.empty(len(page), IOVEC)
        vector["base"] = self._address + page * self._page + begin
        vector["length"] = stop - begin
        return vector, ends

    def _whole(self, sizes: NDArray[Any], counts: NDArray[Any], pages: NDArray[np.int32]) -> NDArray[np.void] | None:
        """Return a piece for each sample, all of them held; None if the pages of one are not contiguous."""
        starts = np.cumsum(counts) - counts
        apart = np.diff(pages) != 1
        apart[starts[1:] - 1] = False
        if apart.any():
            return None
        vector = np.empty(len(sizes), IOVEC)
        vector["base"] = self._address + pages[starts] * np.int64(self._page) + ROW_BYTES
        vector["length"] = sizes
        return vector

    def take_out(self, pages: NDArray[np.int32]) -> NDArray[np.uint8]:
        return self.pages[pages]

    def put_in(self, pages: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        self.pages[pages] = data

    def close(self) -> None:
        """Unmap the memory. Clients that have mapped it keep their view of it."""
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class Arenas:
    """All memory that a server shares with its clients."""

    samples: Arena
    prepared: Arena | None = None
    """For decoded samples."""
    directory: Arena | None = None
    """For the entries of a `Directory`."""

    @property
    def descriptors(self) -> list[int]:
        """Open files of those that exist, in this order."""
        return [each.descriptor for each in (self.samples, self.prepared, self.directory) if each is not None]

    def close(self) -> None:
        for each in (self.samples, self.prepared, self.directory):
            if each is not None:
                each.close()
