"""Tables with an entry for each sample whose memory follows what is in use, not the number of samples.

A `SparseTable` is a plain array of zeros over fresh memory. The kernel gives it a page when something other than zero
is first written there, so indexing costs what it costs in any array, and entries that nobody uses take no memory.
`UsedBlocks` counts the entries in use, block by block, and finds those blocks whose memory can be released.
"""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from brand.reprs import Reprs

_SHIFT: Final = 10
BLOCK: Final = 1 << _SHIFT
"""Entries of a block. A page of memory has as many entries of four bytes."""
SMALL: Final = 1 << 20
"""Entries of the largest table that keeps its memory: 4 MB."""
_ONE: Final = np.int16(1)  # of the type of the table: any other one is a hundred times as slow in `ufunc.at`
_NO_HUGE_PAGES: Final = getattr(mmap, "MADV_NOHUGEPAGE", None)
_DONTNEED: Final = getattr(mmap, "MADV_DONTNEED", None)


class SparseTable(Reprs, shows="values"):
    """`count` numbers, all of them 0 at first. Reading an entry takes no memory, writing one takes that of its page."""

    def __init__(self, count: int, dtype: DTypeLike) -> None:
        kind = np.dtype(dtype)
        # A private mapping: `mmap.mmap(-1, ...)` alone makes a shared one, whose pages are not freed by DONTNEED.
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
        self._memory = mmap.mmap(-1, max(1, count * kind.itemsize), **flags)
        if _NO_HUGE_PAGES is not None:  # numpy's own arrays ask for pages of 2 MiB: one sample would take all of it
            self._memory.madvise(_NO_HUGE_PAGES)
        self.values: NDArray[Any] = np.frombuffer(self._memory, kind, count)
        """All entries, shape (count,)."""

    def release(self, first: int, end: int) -> None:
        """Set the entries `first` to `end` - 1 to 0, and free the memory of the pages that hold no other entry."""
        size, page = self.values.itemsize, mmap.PAGESIZE
        start, stop = -(-first * size // page) * page, end * size // page * page
        if end == len(self.values):
            stop = -(-end * size // page) * page
        if _DONTNEED is None or start >= stop:
            self.values[first:end] = 0
            return
        self._memory.madvise(_DONTNEED, start, stop - start)
        self.values[first : -(-start // size)] = 0
        self.values[stop // size : end] = 0


class UsedBlocks(Reprs, shows="_used"):
    """Numbers of entries in use of each block of `BLOCK` entries, in a table of `count` entries.

    A small table keeps its memory, as counting takes each draw more time than that is worth: all its blocks are in use.
    """

    def __init__(self, count: int) -> None:
        self._counts = count > SMALL
        self._used = np.full(-(-count // BLOCK), 0 if self._counts else 1, np.int16)

    def add(self, entries: NDArray[np.integer[Any]]) -> None:
        """Count distinct entries that come into use."""
        if self._counts:
            np.add.at(self._used, entries >> _SHIFT, _ONE)

    def remove(self, entries: NDArray[np.integer[Any]]) -> list[int]:
        """Count distinct entries that are used no more. Return the blocks of which none is used now."""
        if not self._counts:
            return []
        blocks = entries >> _SHIFT
        np.subtract.at(self._used, blocks, _ONE)
        empty = blocks[self._used[blocks] == 0]
        return np.unique(empty).tolist() if len(empty) else []  # only when a block becomes empty, which is rare

    def used(self) -> NDArray[np.intp]:
        """Return the blocks that have entries in use, ascending."""
        return np.flatnonzero(self._used)
