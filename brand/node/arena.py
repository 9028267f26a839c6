"""Where do samples lie in memory? In pages of one anonymous file, which clients map and nobody can find by name.

The arena is a `memfd` of fixed-size pages, so it vanishes with its last user, however that one ends. A sample takes a
chain of pages; the first begins with the sample's row of the index (32 bytes), so a client needs nothing else to check
and to unpack it. Page 0 is the sink: what a read brings and nobody wants is written there. Clients map it read-only,
and nobody can resize it (sealed).

One thread owns the bookkeeping; the bytes of a chain belong to whoever was given it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.formats.constants import ROW

ROW_BYTES: Final = ROW.itemsize
SINK: Final = 0
_SEAL_FUTURE_WRITE: Final = getattr(fcntl, "F_SEAL_FUTURE_WRITE", 0x10)

IOVEC: Final = np.dtype([("base", "<u8"), ("length", "<u8")])
"""A piece of memory, as readv(2) has it."""


class Arena:
    """Pages of shared memory, at most `limit` bytes. Raises `UsageError` where that is less than two pages."""

    def __init__(self, limit: int, page: int) -> None:
        self.page, self.count = page, limit // page
        if self.count < 2:
            raise UsageError(f"memory of {limit:,} bytes is too small: this data set needs at least {2 * page:,}")
        self.descriptor = os.memfd_create("brand", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.bytes)
        self._memory = mmap.mmap(self.descriptor, self.bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals | _SEAL_FUTURE_WRITE)
        except OSError:  # before Linux 5.1 others can only be asked not to write
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self.pages: NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8).reshape(self.count, page)
        self._address = self.pages.ctypes.data
        self._free = np.arange(self.count - 1, 0, -1, dtype=np.int32)
        self.free = len(self._free)
        """Pages that are free: the first so many of the stack."""
        self._next = np.zeros(self.count, np.int32)

    @property
    def bytes(self) -> int:
        """Size of the arena."""
        return self.count * self.page

    def take(self, counts: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Chains of so many pages (each >= 1): their first pages, and all pages one chain after the other.

        The caller has looked at `free`.
        """
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1])
        pages = self._free[self.free - total : self.free][::-1].copy()
        self.free -= total
        self._next[pages[:-1]] = pages[1:]
        return pages[ends - counts], pages

    def chains(self, heads: NDArray[np.int32], counts: NDArray[Any]) -> NDArray[np.int32]:
        """All pages of chains, one chain after the other."""
        counts = counts.astype(np.int64)
        at = np.cumsum(counts) - counts
        pages = np.empty(int(counts.sum()), np.int32)
        longest, shortest = int(counts.max(initial=0)), int(counts.min(initial=0))
        current = heads
        for step in range(longest):
            if step >= shortest:
                longer = counts > step
                current, at, counts = current[longer], at[longer], counts[longer]
            pages[at] = current
            current = self._next[current]
            at += 1
        return pages

    def give_back(self, pages: NDArray[np.int32]) -> None:
        """Free pages."""
        self._free[self.free : self.free + len(pages)] = pages
        self.free += len(pages)

    def write_rows(self, heads: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        """Put each sample's row at the beginning of its chain."""
        self.pages[heads, :ROW_BYTES] = rows.view(np.uint8).reshape(-1, ROW_BYTES)

    def vector(self, sizes: NDArray[Any], held: NDArray[np.bool_], pages: NDArray[np.int32]) -> NDArray[np.void]:
        """Pieces of memory (`IOVEC`) for samples of these sizes that lie side by side in a file.

        Those that are held go behind the rows of their chains (`pages`, one chain after the other), the others into the
        sink.
        """
        front = np.where(held, ROW_BYTES, 0)
        pieces = -(-(sizes + front) // self.page)
        ends = np.cumsum(pieces)
        starts = ends - pieces
        page = np.full(int(ends[-1]) if len(ends) else 0, SINK, np.int64)
        page[np.repeat(held, pieces)] = pages
        begin = np.zeros(len(page), np.int64)
        begin[starts[held]] = ROW_BYTES
        stop = np.full(len(page), self.page, np.int64)
        some = pieces > 0
        stop[ends[some] - 1] = (sizes + front - (pieces - 1) * self.page)[some]
        vector = np.empty(len(page), IOVEC)
        vector["base"] = self._address + page * self.page + begin
        vector["length"] = stop - begin
        return vector

    def close(self) -> None:
        """Let go of the memory; clients that mapped it keep theirs."""
        os.close(self.descriptor)
