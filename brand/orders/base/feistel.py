"""Which number is at a position of a random order of 0 to N - 1, and at which position is a number? Without a table.

The numbers fill the rows of a grid of about sqrt(N) rows and columns. A round shifts each number within its column,
by a random distance that the column fixes. The next round shifts it within its row, by one that the row fixes. A shift
can be undone, so the rounds together are a random order of the cells (a Feistel network). The distances are real random
numbers, `ROUNDS` tables of about sqrt(N): 2 MB for a billion.

The last row may have cells behind N - 1, fewer than a row has. A number that is moved to one of them goes through the
rounds again, until it is at another cell (cycle walking).

A network is no exact shuffle: a few shifts do not make all arrangements. The closest look that is known counts pairs of
numbers of one column that are as many rows apart as their positions. In an epoch of N numbers chance expects N / 2 of
them. More are found: sqrt(N / 2) standard deviations after 4 rounds, 0.7 after 6, and 0.7 / sqrt(N) after 8.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import index_dtype
from brand.orders.base.random import RandomStream, bits
from brand.orders.base.tickets import MAX_POSITIONS
from brand.reprs import Reprs

ROUNDS: Final = 8
"""Shifts, by turns within a column and within a row. It fixes orders that users resume."""
_AT_ONCE: Final = 1 << 15
"""Numbers that are moved together: their temporaries fit in the processor's cache."""
_SIGN: Final = 63


class FeistelNetwork(Reprs, shows="count"):
    """A random order of 0 to `count` - 1, at any positions and of any numbers. `count` is at most `MAX_POSITIONS`."""

    def __init__(self, count: int, seed: int, stream: RandomStream, epoch: int = 0) -> None:
        assert 1 <= count <= MAX_POSITIONS, "a row has too many numbers for the distances of one word"
        self.count = count
        rows = math.isqrt(count - 1) + 1
        self._sizes = rows, -(-count // rows)
        """Numbers of a column, and of a row."""
        words = bits(ROUNDS // 2 * sum(self._sizes), seed, stream, epoch)
        self._shifts: list[NDArray[np.int64]] = []
        """The distances of each round, less the numbers of a column or row: whatever is below 0 then wraps around."""
        for number in range(ROUNDS):
            size, of = self._sizes[number % 2], self._sizes[1 - number % 2]
            mine, words = words[:of], words[of:]
            distance = (mine >> np.uint64(16)) * np.uint64(size) >> np.uint64(48)
            self._shifts.append(distance.astype(np.int64) - size)

    def numbers(self, positions: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the number at each of these positions, shape (positions,)."""
        return self._walked(positions, back=False)

    def positions(self, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the position of each of these numbers, shape (numbers,)."""
        return self._walked(numbers, back=True)

    def _walked(self, given: NDArray[np.integer[Any]], *, back: bool) -> NDArray[Any]:
        found = np.empty(len(given), index_dtype(self.count))
        for first in range(0, len(given), _AT_ONCE):
            some = given[first : first + _AT_ONCE].astype(np.int64)
            moved = self._moved(some, back=back)
            while len(outside := np.flatnonzero(moved >= self.count)):
                moved[outside] = self._moved(moved[outside], back=back)
            found[first : first + _AT_ONCE] = moved
        return found

    def _moved(self, cells: NDArray[np.int64], *, back: bool) -> NDArray[np.int64]:
        """Return where all rounds move each of these cells, or if `back` from where they move it there."""
        _, columns = self._sizes
        row = cells // columns
        at = row, cells - row * columns
        for number in reversed(range(ROUNDS)) if back else range(ROUNDS):
            moving, by, size = at[number % 2], at[1 - number % 2], self._sizes[number % 2]
            shift = self._shifts[number].take(by)
            if back:
                moving -= shift
                moving -= size
            else:
                moving += shift
            moving += (moving >> _SIGN) & size
        return at[0] * columns + at[1]
