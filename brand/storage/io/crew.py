"""Which threads copy the samples of one fetch? The fetching thread, and a few more if there is much to copy.

One thread copies some GB a second, less than the memory bandwidth of most machines. The kernel, numpy and xxhash copy
and check without the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import wait
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from brand.errors import NoThreadError
from brand.reprs import Reprs
from brand.starting import ThreadPool

MOST: Final = 4
"""Maximum threads of a crew."""
PART_BYTES: Final = 2 << 20
"""Minimum bytes that a thread copies."""

_T = TypeVar("_T")


class Crew(Reprs, shows="threads _pool"):
    """The threads of one connection. They start when they are first needed. Not for use after a fork."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = min(MOST, os.cpu_count() or 1) if threads is None else threads
        self._pool: ThreadPool | None = None

    def parts(self, sizes: NDArray[np.integer[Any]]) -> list[slice]:
        """Return the pieces of these sizes that each thread copies: at most `threads` slices, of about equal bytes."""
        ends = np.cumsum(sizes, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        count = max(1, min(self.threads, total // PART_BYTES))
        cuts = np.searchsorted(ends, np.arange(1, count) * total / count) + 1
        bounds = [0, *np.minimum(cuts, len(ends)).tolist(), len(ends)]
        return [slice(first, end) for first, end in pairwise(bounds) if first < end]

    def even(self, pieces: int, size: int) -> list[slice]:
        """Return the same as `parts`, for this many pieces of `size` bytes each."""
        count = max(1, min(self.threads, pieces * size // PART_BYTES))
        bounds = [pieces * number // count for number in range(count + 1)]
        return [slice(first, end) for first, end in pairwise(bounds)]

    def each(self, do: Callable[[int, slice], _T], parts: list[slice]) -> list[_T]:
        """Call `do(number, part)` for each slice, all at the same time. Return the results, in order."""
        if len(parts) < 2:
            return [do(number, part) for number, part in enumerate(parts)]
        if self._pool is None:
            self._pool = ThreadPool(self.threads - 1, "brand-copy")
        try:
            others = [self._pool.submit(do, number, part) for number, part in enumerate(parts[1:], 1)]
        except NoThreadError:  # for the first of them, or for none
            self._pool = None  # with the queued part
            return [do(number, part) for number, part in enumerate(parts)]
        try:
            first = do(0, parts[0])
        finally:
            wait(others)  # before the caller may release the memory that the threads copy into
        return [first, *(other.result() for other in others)]
