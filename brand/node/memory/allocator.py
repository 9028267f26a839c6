"""Free pages of the arena, and chains of pages: bookkeeping over arrays, without the bytes.

A sample takes a chain of pages. Page 0 is the sink: the allocator never returns it, and a read writes samples there
that no epoch needs. One thread owns an allocator.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.reprs import Reprs

LEAP: Final = 64
"""Distance of two pages of a chain that are linked directly, so that following one long chain needs few steps."""


class Allocator(Reprs, shows="count page free"):
    """Pages of `page` bytes, as many as fit into `limit` bytes. Raises `UsageError` if fewer than two fit."""

    def __init__(self, limit: int, page: int) -> None:
        self.page, self.count = page, limit // page
        if self.count < 2:
            raise UsageError(f"memory of {limit:,} bytes is too small: this data set needs at least {2 * page:,}")
        self._returned = np.empty(self.count - 1, np.int32)
        """A stack of pages that were freed. As long as memory is full, few entries of it were ever written."""
        self._top, self._fresh = 0, 1
        """Number of pages on the stack, and the first page that was never allocated. Page 0 is the sink."""
        self._next = np.zeros(self.count, np.int32)
        """The page behind each page of a chain of more than one. Chains of one page write nothing here."""
        self._leap = np.zeros(self.count, np.int32)
        """For each page of a chain that is longer than `LEAP`: the page that is `LEAP` pages later in the chain."""

    @property
    def bytes(self) -> int:
        return self.count * self.page

    @property
    def free(self) -> int:
        """Number of free pages."""
        return self._top + self.count - self._fresh

    def take(self, counts: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Allocate chains of `counts` pages (each >= 1). Returns their first pages, and all pages, chain by chain.

        The caller ensures that enough pages are `free`.
        """
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1])
        again = min(total, self._top)
        pages = np.empty(total, np.int32)
        pages[:again] = self._returned[self._top - again : self._top][::-1]
        pages[again:] = np.arange(self._fresh, self._fresh + total - again)
        self._top, self._fresh = self._top - again, self._fresh + total - again
        if total == len(counts):
            return pages.copy(), pages
        self._next[pages[:-1]] = pages[1:]
        if total > LEAP and int(counts.max()) > LEAP:
            self._leap[pages[:-LEAP]] = pages[LEAP:]
        return pages[ends - counts], pages

    def chains(self, heads: NDArray[np.int32], counts: NDArray[Any]) -> NDArray[np.int32]:
        """Return all pages of the chains that begin at `heads` and have `counts` pages, chain by chain."""
        counts = counts.astype(np.int64)
        most = int(counts.max(initial=0))
        if most <= 1:
            single: NDArray[np.int32] = heads[counts == 1]
            return single
        if most <= 2 * LEAP:
            return _walk(self._next, heads, counts)
        parts = -(-counts // LEAP)
        sizes = np.full(int(parts.sum()), LEAP)
        sizes[np.cumsum(parts) - 1] = counts - (parts - 1) * LEAP
        return _walk(self._next, _walk(self._leap, heads, parts), sizes)

    def side_by_side(self, heads: NDArray[np.int32], counts: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether the pages of each chain are contiguous and in order, shape (chains,)."""
        if int(counts.max(initial=0)) <= 1:
            return np.ones(len(heads), np.bool_)
        ends = np.cumsum(counts, dtype=np.int64)
        first, starts, total = int(heads[0]), ends - counts, int(ends[-1])
        if np.array_equal(heads - first, starts):  # one run of contiguous pages, as in a fresh arena
            after = np.arange(first + 1, first + total, dtype=np.int32)
            if np.array_equal(self._next[first : first + total - 1], after):
                return np.ones(len(heads), np.bool_)
        pages = np.arange(total)  # as if they were contiguous, which the links then confirm or deny
        pages += np.repeat(heads - starts, counts)
        next_to = self._next[np.minimum(pages, self.count - 1)] == pages + 1
        next_to[starts + counts - 1] = True
        return np.logical_and.reduceat(next_to, starts)

    def give_back(self, pages: NDArray[np.int32]) -> None:
        """Free pages. The next chains of the same length reuse contiguous pages as contiguous pages."""
        self._returned[self._top : self._top + len(pages)] = pages[::-1]
        self._top += len(pages)


def _walk(following: NDArray[np.int32], heads: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the pages that follow each other from `heads` on, `counts` of them, head by head."""
    longest_first = np.argsort(-counts, kind="stable")
    at, current = (np.cumsum(counts) - counts)[longest_first], heads[longest_first]
    pages = np.empty(int(counts.sum()), np.int32)
    reach = np.searchsorted(-counts[longest_first], -np.arange(int(counts.max(initial=0))))
    for many in reach.tolist():  # the number of chains, from the first on, that have a page at this step
        current = current[:many]
        pages[at[:many]] = current
        at += 1
        current = following[current]
    return pages
