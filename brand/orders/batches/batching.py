"""Which positions of an epoch make a batch, so that the samples of a batch have about equal lengths?

    lengths by position -> windows of consecutive positions -> each window sorted, cut into batches, batches shuffled

A batch takes samples of one window only. So samples that are drawn out of order are within a bounded range of the
epoch, and a data server can hold them. The batches of an epoch depend on the lengths, the order, the limits and the
seed only: not on ranks, workers or memory. `packing` makes batches of packed rows in the same form. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.random import RandomStream, bits


@dataclass(frozen=True, slots=True, eq=False)
class PositionBatches:
    """Batches of positions, one after another."""

    positions: NDArray[np.int64]
    """The positions of the first batch, of the second, ...; shape (draws,), each position once."""
    ends: NDArray[np.int64]
    """The end of each batch in `positions`, shape (batches,)."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.concatenate((np.zeros(min(1, len(self)), np.int64), self.ends[:-1]))

    def taken(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of these batches, one batch after another, and how many each has."""
        starts, ends = self.starts[numbers], self.ends[numbers]
        parts = [self.positions[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.concatenate((np.zeros(0, np.int64), *parts)), ends - starts

    def first_from(self, number: int) -> int:
        """Return the lowest position in batch `number` and in all later ones; the number of draws if there is none."""
        start = int(self.starts[number]) if number < len(self) else len(self.positions)
        return int(self.positions[start:].min(initial=len(self.positions)))

    def sums(self, lengths: NDArray[Any]) -> NDArray[Any]:
        """Return the summed length of the samples of each batch, shape (batches,). `lengths` are those by position."""
        found: NDArray[Any] = np.add.reduceat(lengths[self.positions], self.starts)
        return found

    def padded(self, lengths: NDArray[Any]) -> NDArray[Any]:
        """Return the length of each batch if every sample is padded to the longest in it, shape (batches,)."""
        longest: NDArray[Any] = np.maximum.reduceat(lengths[self.positions], self.starts)
        padded: NDArray[Any] = longest * (self.ends - self.starts)
        return padded


def windows(draws: int, window: int) -> Iterator[tuple[int, slice]]:
    """Yield the number and the positions of each window of an epoch. The last window may be short."""
    for number, first in enumerate(range(0, draws, window)):
        yield number, slice(first, min(first + window, draws))


def by_length(
    lengths: NDArray[Any], window: int, seed: int, epoch: int, *, size: int | None = None, most: float | None = None
) -> PositionBatches:
    """Return batches of samples of similar length.

    Args:
        lengths: Length of the sample at each position, 0 or more, shape (draws,).
        window: Consecutive positions whose samples may meet in a batch. A multiple of `size`, so that only the last
            batch of the last window is short.
        seed, epoch: Fix which samples of equal length meet, and the order of the batches of a window.
        size: The most samples of a batch; None if there is no limit.
        most: The most that the longest length times the number of samples may be; None if there is no limit. No length
            is larger.
    """
    noise = bits(len(lengths), seed, RandomStream.BATCH_TIES, epoch)
    positions, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, part in windows(len(lengths), window):
        longest_first = part.start + np.lexsort((noise[part], -lengths[part]))
        count = _counts(lengths[longest_first], size, most)
        turns = np.argsort(bits(len(count), seed, RandomStream.BATCH_TURNS, epoch, number))
        positions.append(gathered(longest_first, count, turns))
        counts.append(count[turns])
    return PositionBatches(np.concatenate(positions), np.cumsum(np.concatenate(counts)))


def _counts(lengths: NDArray[Any], size: int | None, most: float | None) -> NDArray[np.int64]:
    """Return how many samples each batch takes of these lengths, which descend."""
    left, found = len(lengths), list[int]()
    if most is None:
        assert size is not None
        whole, rest = divmod(left, size)
        return np.array([size] * whole + [rest] * (rest > 0), np.int64)
    while left:
        count, longest = left if size is None else min(size, left), float(lengths[-left])
        if longest * count > most:
            count = int(most / longest)
            while longest * count > most:  # the quotient was rounded up
                count -= 1
        found.append(count)
        left -= count
    return np.array(found, np.int64)


def gathered(values: NDArray[np.int64], counts: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the runs of values, `counts` of each run, that `turns` names, in its order."""
    starts = (np.cumsum(counts) - counts)[turns]
    lengths = counts[turns]
    shift = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return values[shift + np.arange(len(shift))]
