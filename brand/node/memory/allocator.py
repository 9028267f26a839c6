"""Which pages of the arena are free, and which belong together? Bookkeeping over arrays; the bytes lie elsewhere.

A sample takes a chain of pages. Page 0 is the sink: the allocator never gives it out, and a read writes samples there
that no epoch wants. One thread owns an allocator.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.reprs import Reprs

LEAP: Final = 64
"""Pages of a chain between two that are linked directly, so that one long chain costs few steps."""


class Allocator(Reprs, shows="count page free"):
    """Pages of `page` bytes, as many as fit into `limit` bytes. Raises `UsageError` where fewer than two fit."""

    def __init__(self, limit: int, page: int) -> None:
        self.page, self.count = page, limit // page
        if self.count < 2:
            raise UsageError(f"memory of {limit:,} bytes is too small: this data set needs at least {2 * page:,}")
        self._free = np.arange(self.count - 1, 0, -1, dtype=np.int32)
        self.free = len(self._free)
        """Number of free pages: the first `free` entries of the stack."""
        self._next = np.zeros(self.count, np.int32)
        self._leap = np.zeros(self.count, np.int32)
        """For each page of a chain that is longer than `LEAP`: the page that comes `LEAP` pages later in it."""

    @property
    def bytes(self) -> int:
        return self.count * self.page

    def free_pages(self) -> NDArray[np.int32]:
        """Numbers of the free pages, in no order."""
        return self._free[: self.free]

    def take(self, counts: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Take chains of `counts` pages (each >= 1). Returns their first pages, and all pages, chain by chain.

        The caller makes sure that enough pages are `free`.
        """
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1])
        pages = self._free[self.free - total : self.free][::-1].copy()
        self.free -= total
        self._next[pages[:-1]] = pages[1:]
        if total > LEAP and int(counts.max()) > LEAP:
            self._leap[pages[:-LEAP]] = pages[LEAP:]
        return pages[ends - counts], pages

    def chains(self, heads: NDArray[np.int32], counts: NDArray[Any]) -> NDArray[np.int32]:
        """All pages of the chains that begin at `heads` and have `counts` pages, chain by chain."""
        counts = counts.astype(np.int64)
        if int(counts.max(initial=0)) <= 2 * LEAP:
            return _walk(self._next, heads, counts)
        parts = -(-counts // LEAP)
        sizes = np.full(int(parts.sum()), LEAP)
        sizes[np.cumsum(parts) - 1] = counts - (parts - 1) * LEAP
        return _walk(self._next, _walk(self._leap, heads, parts), sizes)

    def side_by_side(self, heads: NDArray[np.int32], counts: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether the pages of each chain lie side by side, in order, shape (chains,)."""
        if not len(heads):
            return np.ones(0, np.bool_)
        ends = np.cumsum(counts, dtype=np.int64)
        first, starts, total = int(heads[0]), ends - counts, int(ends[-1])
        if np.array_equal(heads - first, starts):  # one run, as memory gives it at first
            after = np.arange(first + 1, first + total, dtype=np.int32)
            if np.array_equal(self._next[first : first + total - 1], after):
                return np.ones(len(heads), np.bool_)
        pages = np.arange(total)  # as if they did: the page after each one says whether
        pages += np.repeat(heads - starts, counts)
        next_to = self._next[np.minimum(pages, self.count - 1)] == pages + 1
        next_to[starts + counts - 1] = True
        return np.logical_and.reduceat(next_to, starts)

    def give_back(self, pages: NDArray[np.int32]) -> None:
        """Free pages. Chains whose pages lie side by side are taken so again, where their length is the same."""
        self._free[self.free : self.free + len(pages)] = pages[::-1]
        self.free += len(pages)


def _walk(following: NDArray[np.int32], heads: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """The pages that come after each other from `heads` on, `counts` of them, head by head."""
    longest_first = np.argsort(-counts, kind="stable")
    at, current = (np.cumsum(counts) - counts)[longest_first], heads[longest_first]
    pages = np.empty(int(counts.sum()), np.int32)
    reach = np.searchsorted(-counts[longest_first], -np.arange(int(counts.max(initial=0))))
    for many in reach.tolist():  # so many chains have a page at this step: the first ones
        current = current[:many]
        pages[at[:many]] = current
        at += 1
        current = following[current]
    return pages
