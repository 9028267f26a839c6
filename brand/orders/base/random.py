"""How are random numbers made, so that a seed gives one order on every machine and in every version?

They are made by sorting and from the raw output of the counter-based generator Philox, whose stream numpy promises to
keep. They never use numpy's distributions, which may change. A seed and three small numbers name a stream. Any of
its words can be made without the words before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from brand.native import CORE
from brand.orders.base.dtypes import index_dtype

_LEAST_SORTED: Final = 1024
"""Keys of the smallest row for the core's sort. That sort takes equal time on every processor, but a call costs."""
BLOCK: Final = 1 << 17
_WORD: Final = (1 << 64) - 1
_SCATTERED: Final = (1 << 64) - 1
"""The step of a stream that starts `words_at`."""
_AT_ONCE: Final = 1024
"""Words that `Words` makes at a time."""


class RandomStream(IntEnum):
    """The purpose of a stream of bits. Never change or reuse a number: it fixes orders that users resume."""

    ACCESS = 1
    """The access sequence of an epoch."""
    STRIPE_ORDER = 2
    """The order in which a chunk's stripes are read."""
    STRIPE_MATES = 3
    """The order of the samples of one stripe."""
    REFILL = 4
    """`slots`: ties between chunks, or the chunk itself."""
    KEPT = 5
    """The stripes that are cached."""
    POOL = 6
    """`pool`: the order of the chunks."""
    ROUNDS = 7
    """`joader`: the elements that jobs draw in a round."""
    FOLLOW = 8
    """`shared`: the passing stripes that a job takes."""
    FOLLOW_REST = 9
    """`shared`: the order of the rest's stripes."""
    FOLLOW_MATES = 10
    """`shared`: the positions of the samples of one stripe in the rest's tape."""
    MIXED_RANKS = 11
    """A mixture: the rank that draws each position of a round."""
    BATCH_TIES = 12
    """The order of samples of equal length, and so the batches in which they meet."""
    BATCH_TURNS = 13
    """The order of the batches of a window."""
    ACCESS_HALVES = 14
    """Which samples are drawn in the first half of a part of an epoch."""
    STRIPE_KEYS = 15
    """The places of the samples of one stripe in the tape of its group."""
    SHIFTS = 16
    """`uniform`: the shifts of a round."""
    CHANCES = 17
    """The order in which a random subset is chosen, and where the choice starts."""
    STRIPE_TURNS = 18
    """The order in which the chunks of a group take turns."""


def bits(
    count: int, seed: int, stream: RandomStream, epoch: int = 0, step: int = 0, *, first: int = 0
) -> NDArray[np.uint64]:
    """Return words `first` to `first + count - 1` of a stream, uint64, shape (count,). `first` is a multiple of 4."""
    if first % 4:
        raise ValueError(f"word {first} is not the first of a block of four")
    key = np.array([seed & _WORD, (seed >> 64) & _WORD], np.uint64)
    counter = np.array([first // 4, stream, epoch, step], np.uint64)
    return Philox(key=key, counter=counter).random_raw(count)


def words_at(at: NDArray[np.int64], seed: int, stream: RandomStream, epoch: int = 0) -> NDArray[np.uint64]:
    """Return the words of a stream with these numbers, in any order: SplitMix64 from a random start.

    They are other words than those of `bits`, which are faster to make one after another.
    """
    start, more = bits(4, seed, stream, epoch, _SCATTERED)[:2]
    words = at.astype(np.uint64)
    words *= np.uint64(0x9E3779B97F4A7C15)
    words += start
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= more
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


class Words:
    """The words of a stream, one after another, for decisions that depend on earlier decisions."""

    def __init__(self, seed: int, stream: RandomStream, epoch: int = 0, step: int = 0) -> None:
        self._name = seed, stream, epoch, step
        self._made: list[int] = []
        self.used = 0
        """Words used so far."""

    def __repr__(self) -> str:
        return f"Words{self._name}"

    def next(self) -> int:
        """Return the next word, 0 to 2 ** 64 - 1."""
        at = self.used % _AT_ONCE
        if at == 0:
            self._made = bits(_AT_ONCE, *self._name, first=self.used).tolist()
        self.used += 1
        return self._made[at]

    def below(self, count: int) -> int:
        """Return a number from 0 to `count` - 1, uniform up to an error of `count` / 2 ** 64."""
        return (self.next() * count) >> 64


def low_mask(count: int) -> np.uint64:
    """Return a mask of the low bits that hold the numbers 0 to `count` - 1."""
    return np.uint64((1 << max(0, count - 1).bit_length()) - 1)


def ranked(keys: NDArray[np.uint64], mask: np.uint64) -> NDArray[np.uint64]:
    """Return, along the last axis, the numbers in the low bits in the order of the keys.

    Consumes `keys`. As each number occurs once, no two keys are equal and any sort gives the same result.
    """
    if CORE is not None and keys.shape[-1] >= _LEAST_SORTED and keys.flags.c_contiguous:
        CORE.sort(keys, keys.shape[-1])
    else:
        keys.sort(axis=-1)
    keys &= mask
    return keys


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of at most `BLOCK` that cover 0 to `count` - 1, so that temporaries of large arrays are small."""
    for first in range(0, count, BLOCK):
        yield slice(first, min(first + BLOCK, count))


def number(keys: NDArray[np.uint64]) -> np.uint64:
    """Put each key's position into its low bits, in place; return the mask of these bits."""
    mask = low_mask(len(keys))
    for part in blocks(len(keys)):
        keys[part] &= ~mask
        keys[part] |= np.arange(part.start, part.stop, dtype=np.uint64)
    return mask


def permutation(count: int, seed: int, stream: RandomStream, epoch: int = 0, step: int = 0) -> NDArray[Any]:
    """Return a random order of 0 to `count` - 1, shape (count,)."""
    keys = bits(count, seed, stream, epoch, step)
    return ranked(keys, number(keys)).astype(index_dtype(count))


def group_positions(group: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Return the positions of `group`, those of group 0 first, ascending within each group. Shape (len(group),)."""
    count = len(group)
    if not count or int(group.max()) <= np.iinfo(np.uint16).max:  # numpy sorts these by counting
        return np.argsort(group.astype(np.uint16), kind="stable").astype(index_dtype(count))
    keys = group.astype(np.uint64)
    keys <<= np.uint64(int(low_mask(count)).bit_length())
    return ranked(keys, number(keys)).astype(index_dtype(count))
