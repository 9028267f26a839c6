"""Which reads of single samples also load neighbours, and which ones?

If the storage needs longer for the samples of a unit one by one than for all of them at once, a miss in a unit that has
a place in the cache folder also loads the samples around it that have not been read yet: in the first epoch, the whole
unit. Samples that are not due yet are written to the folder, and read from it when they are. The first epoch then takes
as long as the storage needs for its bytes, not for that many operations. No byte is read twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.memory.pages import PageCounts

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """The units of some misses, in the order of their first misses."""

    first: NDArray[np.intp]
    """Index of the first miss in each unit, shape (units,)."""
    unit_of: NDArray[np.int64]
    """Index of the unit of each miss, shape (misses,)."""
    places: NDArray[np.int64]
    """The places of each unit, shape (units, samples of a unit)."""
    there: Mask
    """Whether each of these places exists, same shape. The last unit of a chunk may be short."""


@dataclass(frozen=True, slots=True, eq=False)
class Wholes:
    """Reads of neighbouring samples, in the order of their first misses."""

    first: NDArray[np.intp]
    """Index of the first miss of each read, ascending, shape (reads,)."""
    read_of: NDArray[np.int64]
    """Index of the read that loads each miss, shape (misses,). -1 if it is read alone."""
    places: NDArray[np.int64]
    """The places of the unit of each read, shape (reads, samples of a unit)."""
    brings: Mask
    """Whether the read loads each of these places. They are neighbours."""

    def pages(self, pages_of: PageCounts) -> NDArray[np.int64]:
        """Return the pages that each read takes, shape (reads,)."""
        found: NDArray[np.int64] = np.where(self.brings, pages_of[self.places], 0).sum(axis=1, dtype=np.int64)
        return found

    def pages_at(self, misses: NDArray[Any], pages_of: PageCounts) -> NDArray[np.int64]:
        """Return the pages that each miss takes, shape (misses,). The first miss of a read takes the pages of the
        whole read.
        """
        needed = np.where(self.read_of < 0, pages_of[misses], 0).astype(np.int64)
        needed[self.first] = self.pages(pages_of)
        return needed

    def of(self, which: Mask) -> Wholes:
        """Return some of the reads. `which` has the shape (reads,)."""
        number = np.full(len(which) + 1, -1, np.int64)
        number[:-1][which] = np.arange(np.count_nonzero(which))
        return Wholes(self.first[which], number[self.read_of], self.places[which], self.brings[which])

    def upto(self, count: int) -> Wholes:
        """Return the reads of the first `count` misses."""
        found = self.of(self.first < count)
        return Wholes(found.first, found.read_of[:count], found.places, found.brings)


def units_of(misses: NDArray[Any], wanted: Mask, unit: int, chunk_size: int, samples: int) -> Units:
    """Return the units of the misses that are `wanted`. Other misses are in unit -1, unless they are in one of these
    units.
    """
    start = misses // chunk_size * chunk_size + misses % chunk_size // unit * unit
    begin, first, number = np.unique(start, return_index=True, return_inverse=True)
    found = np.zeros(len(begin), np.bool_)
    found[number[wanted]] = True
    by_first = np.argsort(first, kind="stable")
    by_first = by_first[found[by_first]]
    rank = np.full(len(begin), -1, np.int64)
    rank[by_first] = np.arange(len(by_first))
    begin = begin[by_first].astype(np.int64)
    end = np.minimum(np.minimum(begin + unit, begin // chunk_size * chunk_size + chunk_size), samples)
    places = begin[:, None] + np.arange(unit)
    return Units(first[by_first], rank[number], np.minimum(places, samples - 1), places < end[:, None])


def around_misses(units: Units, misses: NDArray[Any], free: Mask) -> Wholes:
    """Return the reads of the first miss of each unit: the `free` samples around it, up to the first that is not free.

    `free` has the shape of `units.places`. A read of the miss alone is left out.
    """
    free = free & units.there
    column, columns = (misses[units.first] - units.places[:, 0])[:, None], np.arange(free.shape[1])
    before = np.where(~free & (columns < column), columns, -1).max(axis=1, initial=-1)[:, None]
    behind = np.where(~free & (columns > column), columns, len(columns)).min(axis=1, initial=len(columns))[:, None]
    brings = (columns > before) & (columns < behind)
    read_of, inside = units.unit_of.copy(), np.flatnonzero(units.unit_of >= 0)
    unit = units.unit_of[inside]
    read_of[inside[~brings[unit, misses[inside] - units.places[unit, 0]]]] = -1
    found = Wholes(units.first, read_of, units.places, brings)
    return found.of(np.count_nonzero(brings, axis=1) > 1)


def pieces_of(misses: NDArray[Any], wholes: Wholes | None) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return all places that the reads of these misses load, ascending, and the index at which each piece begins.

    A piece is a miss that is read alone, or the samples of a read of several.
    """
    if wholes is None or not len(wholes.first):
        return np.sort(misses).astype(np.int64), np.arange(len(misses))
    alone = misses[wholes.read_of < 0].astype(np.int64)
    places = np.concatenate((alone, wholes.places[wholes.brings]))
    piece = np.concatenate((alone, np.repeat(wholes.places[:, 0], np.count_nonzero(wholes.brings, axis=1))))
    # A miss that is read alone may be in the unit of a read, so its piece has a number of its own.
    piece[len(alone) :] = -1 - piece[len(alone) :]
    order = np.argsort(places, kind="stable")
    apart = np.diff(piece[order]) != 0
    return places[order], np.concatenate(([0], np.flatnonzero(apart) + 1))
