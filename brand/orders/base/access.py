"""From which group is each position of an epoch drawn? Any part of the sequence, without the parts before it.

The sequence is a random arrangement of a multiset: each group occurs as often as it has samples, and every arrangement
is equally likely. It is made in parts. Think of a random bit for each sample: the samples with a 1 are drawn in the
first half of the epoch, the others in the second half. So the number of draws of a group in the first half is the
number of ones in as many random bits as the group has samples. Each half is divided again in the same way, down to
parts of about `PART` positions, and the draws of a part are shuffled. The parts differ a little in size.

The part of a position is found on one way down the tree of halves, with two random bits a sample. That also tells how
often each group is drawn before the part, and nothing else of the parts before it matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.random import RandomStream, bits, permutation
from brand.reprs import Reprs

PART: Final = 1 << 20
"""Positions of a part on average, at most. It fixes orders that users resume."""
_WORD: Final = 64
"""Bits of a word."""
_AT_ONCE: Final = 1 << 18
"""Random words that are made at a time: they fit in the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class SequencePart:
    """A part of an access sequence."""

    number: int
    first: int
    """Its first position in the epoch."""
    before: NDArray[np.int64]
    """How often each group is drawn before the part, shape (groups,)."""
    counts: NDArray[np.int64]
    """How often each group is drawn in the part, shape (groups,)."""

    @property
    def end(self) -> int:
        return self.first + int(self.counts.sum())


class GroupSequence(Reprs, shows="draws depth"):
    """The access sequence of an epoch. `sizes`: how often each group is drawn, shape (groups,)."""

    def __init__(self, sizes: NDArray[np.int64], seed: int, epoch: int) -> None:
        self._sizes, self._seed, self._epoch = sizes, seed, epoch
        self.draws = int(sizes.sum())
        self.depth = max(0, -(-self.draws // PART) - 1).bit_length()
        """Levels of the tree: the sequence has 2 ** `depth` parts."""
        self._halves: dict[int, NDArray[np.int64]] = {}
        """How often each group is drawn in the first half of each node of the last way down, by the node's number."""

    def part(self, number: int) -> SequencePart:
        """Return a part by its number, from 0 to 2 ** `depth` - 1."""
        return self._down(lambda level, _: bool(number >> (self.depth - 1 - level) & 1))

    def part_at(self, position: int) -> SequencePart:
        """Return the part with a position, from 0 to `draws` - 1."""
        return self._down(lambda _, middle: position >= middle)

    def groups(self, part: SequencePart) -> NDArray[Any]:
        """Return the group of each position of a part, shape (draws of the part,)."""
        order = permutation(part.end - part.first, self._seed, RandomStream.ACCESS, self._epoch, part.number)
        found: NDArray[Any] = np.repeat(np.arange(len(part.counts), dtype=np.int32), part.counts)[order]
        return found

    def _down(self, is_second: Callable[[int, int], bool]) -> SequencePart:
        """Return the part to which a way down leads. `is_second` gets a level, and the first position of the second
        half there."""
        node, first, counts, before, halves = 1, 0, self._sizes, np.zeros_like(self._sizes), {}
        for level in range(self.depth):
            half = self._halves.get(node)
            halves[node] = half = self._first_half(node, counts) if half is None else half
            middle = first + int(half.sum())
            second = is_second(level, middle)
            if second:
                first, counts, before = middle, counts - half, before + half
            else:
                counts = half
            node = 2 * node + second
        self._halves = halves
        return SequencePart(node - (1 << self.depth), first, before, counts)

    def _first_half(self, node: int, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of so many samples of each group are drawn in the first half of a node: a bit for each."""
        quads = -(-counts // (4 * _WORD))  # the generator makes four words at a time
        ends = np.cumsum(quads)
        found = np.zeros_like(counts)
        first = 0
        while first < len(counts):
            start = int(ends[first] - quads[first])
            last = max(first + 1, int(np.searchsorted(ends, start + _AT_ONCE // 4, "right")))
            some = slice(first, last)
            words = bits(
                4 * int(ends[last - 1] - start),
                self._seed,
                RandomStream.ACCESS_HALVES,
                self._epoch,
                node,
                first=4 * start,
            )
            at = 4 * (ends[some] - start)
            for behind in range(1, 5):  # the bits behind the last sample of a group count for nothing
                there = quads[some] > 0
                used = np.clip(counts[some] - (4 * quads[some] - behind) * _WORD, 0, _WORD)[there]
                words[at[there] - behind] &= _LOW[used]
            ones = np.zeros(len(words) + 1, np.int64)
            np.cumsum(np.bitwise_count(words), out=ones[1:])
            found[some] = ones[at] - ones[at - 4 * quads[some]]
            first = last
        return found


_LOW: Final = np.array([(1 << used) - 1 for used in range(_WORD + 1)], np.uint64)
"""Words whose low bits are ones."""
