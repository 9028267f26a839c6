"""Which operations load the absent samples of the next reads? Pure.

A read of a plan spans neighbouring samples of one chunk: a stripe. The loop needs about the same time for a decision on
one stripe as on a few. The next few can therefore start as one read, with an operation for each. Reading unneeded bytes
takes time, and so does a further operation: a job that draws a subset of the data set needs a few samples of each
stripe, and the gaps between them may be most of it.

If the storage needs longer for the samples of a unit one by one than for all of them at once, a miss in a unit that has
a place in the cache folder also loads the samples around it that have not been read yet: in the first epoch, the whole
unit. Samples that are not due yet are written to the folder, and read from it when they are. The first epoch then takes
as long as the storage needs for its bytes, not for that many operations. No byte is read twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Epoch, to_read
from brand.node.decide.state.instructions import PIECE, Rows
from brand.node.memory.pages import PageCounts
from brand.node.memory.residents import Residents
from brand.orders.base.plan import EpochPlan

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """Facts about the storage for decisions."""

    busy_bytes: int = 0
    """Bytes in flight that keep the storage busy. 0 if they are not known."""
    gap_bytes: int = 1 << 40
    """Bytes that the storage reads in the time of one more operation. The default is larger than any gap."""


NOTHING_KNOWN: Final = StorageFacts()


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """The stored data set that a server serves."""

    index: Rows
    chunk_size: int
    storage: StorageFacts = NOTHING_KNOWN


def cut_at_gaps(
    sizes: NDArray[np.int64], held: NDArray[np.bool_], most: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the beginnings and ends of the operations of a read, each shape (operations,).

    The read covers neighbouring samples of these sizes. `held` is a mask of the samples to load: the first and the last
    one, and any others. A gap of more than `most` bytes separates two operations. A smaller gap is read.
    """
    at = np.flatnonzero(held)
    ends = np.cumsum(sizes)
    gaps = (ends - sizes)[at[1:]] - ends[at[:-1]]
    cuts = np.flatnonzero(gaps > most)
    return at[np.append(0, cuts + 1)], at[np.append(cuts, len(at) - 1)] + 1


@dataclass(frozen=True, slots=True, eq=False)
class Stripe:
    """Neighbouring samples of one chunk, some of which are to be loaded into memory."""

    first: int
    """Place of the first sample."""
    rows: NDArray[np.void]
    """Rows of the index of all samples."""
    absent: NDArray[np.intp]
    """Places of the samples to load, ascending, at least one."""
    passed: NDArray[np.intp]
    """Places that other jobs will draw, ascending: loaded as well if an operation reads their bytes in any case."""


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """The operations that read some stripes."""

    pieces: NDArray[np.void]
    """Array of dtype `PIECE`. `folder` is not set."""
    rows: NDArray[np.void]
    """Rows of the index of all samples in these pieces, piece by piece."""
    held: NDArray[np.bool_]
    """Whether each of these samples is loaded into memory."""
    places: NDArray[np.intp]
    """Places of the samples that are loaded."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """End of the samples of each piece in `rows`."""
        return np.cumsum(self.pieces["span"], dtype=np.int64)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Index of the first sample of each piece among the samples that are loaded into memory."""
        samples = self.pieces["samples"].astype(np.int64)
        return np.cumsum(samples) - samples


def span_of(plan: EpochPlan, number: int, absent: NDArray[np.intp]) -> tuple[int, int]:
    """Return the first place that a read of a plan spans to load `absent`, and the place after the last."""
    return (int(absent[0]), int(absent[-1]) + 1) if plan.narrows else plan.places_read(number)


def operations_of(stripes: Sequence[Stripe], chunk_size: int, gap_bytes: int | None) -> Operations:
    """Return the operations that load the absent samples of stripes, and those that they pass.

    `gap_bytes`: larger gaps between samples to load are not read (`cut_at_gaps`). None: a stripe is one operation.
    """
    rows = np.concatenate([stripe.rows for stripe in stripes])
    lengths = np.array([len(stripe.rows) for stripe in stripes])
    ends = np.cumsum(lengths)
    starts, chunks = ends - lengths, np.array([stripe.first // chunk_size for stripe in stripes])
    held, passed = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    begins = [start - stripe.first for stripe, start in zip(stripes, starts.tolist(), strict=True)]
    held[np.concatenate([stripe.absent + begin for stripe, begin in zip(stripes, begins, strict=True)])] = True
    passed[np.concatenate([stripe.passed + begin for stripe, begin in zip(stripes, begins, strict=True)])] = True
    places = np.arange(len(rows)) - np.repeat(begins, lengths)
    if gap_bytes is not None:
        sizes = rows["size"].astype(np.int64)
        spans = [slice(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        cuts = [cut_at_gaps(sizes[span], held[span], gap_bytes) for span in spans]
        chunks = np.repeat(chunks, [len(found) for found, _ in cuts])
        bounds = [(found + span.start).T for found, span in zip(map(np.stack, cuts), spans, strict=True)]
        inside = np.concatenate([np.arange(*pair) for pair in np.concatenate(bounds).tolist()])
        lengths = np.diff(np.concatenate(bounds), axis=1)[:, 0]
        rows, held, passed, places = rows[inside], held[inside], passed[inside], places[inside]
    held |= passed
    firsts = np.cumsum(lengths) - lengths
    pieces = np.zeros(len(lengths), PIECE)
    pieces["chunk"], pieces["offset"], pieces["span"] = chunks, rows["offset"][firsts], lengths
    pieces["size"] = np.add.reduceat(rows["size"], firsts, dtype=np.int64)
    pieces["samples"] = np.add.reduceat(held, firsts, dtype=np.int32)
    return Operations(pieces, rows, held, places[held])


def leave_chunks(residents: Residents, epoch: Epoch, chunks: tuple[int, ...]) -> None:
    """Leave the samples of these chunks to the page cache, which holds them, as far as their reads have not begun.

    Clients take these samples from the page cache, so the queue skips their reads. If a sample of a chunk is in memory,
    the chunk's reads find it there.
    """
    size, numbers = epoch.plan.mapping.chunk_size, np.array(chunks)
    places = (numbers[:, None] * size + np.arange(size)).ravel()
    places = places[places < len(residents.pages_of)]
    due = places[to_read(epoch, places)]
    present = residents.present(due)
    left = due[~present]
    residents.left.leave(left)
    epoch.states.release(left)
    epoch.reads.pass_over(np.setdiff1d(numbers, due[present] // size))


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
class UnitReads:
    """Reads of neighbouring samples, in the order of their first misses."""

    first: NDArray[np.intp]
    """Index of the first miss of each read, ascending, shape (reads,)."""
    read_of: NDArray[np.int64]
    """Index of the read that loads each miss, shape (misses,). -1 if it is read alone."""
    places: NDArray[np.int64]
    """The places of the unit of each read, shape (reads, samples of a unit)."""
    loads: Mask
    """Whether the read loads each of these places. They are neighbours."""

    def pages(self, pages_of: PageCounts) -> NDArray[np.int64]:
        """Return the pages that each read takes, shape (reads,)."""
        found: NDArray[np.int64] = np.where(self.loads, pages_of[self.places], 0).sum(axis=1, dtype=np.int64)
        return found

    def pages_at(self, misses: NDArray[Any], pages_of: PageCounts) -> NDArray[np.int64]:
        """Return the pages of each miss, shape (misses,). The first miss of a read takes those of the whole read."""
        needed = np.where(self.read_of < 0, pages_of[misses], 0).astype(np.int64)
        needed[self.first] = self.pages(pages_of)
        return needed

    def of(self, which: Mask) -> UnitReads:
        """Return some of the reads. `which` has the shape (reads,)."""
        number = np.full(len(which) + 1, -1, np.int64)
        number[:-1][which] = np.arange(np.count_nonzero(which))
        return UnitReads(self.first[which], number[self.read_of], self.places[which], self.loads[which])

    def upto(self, count: int) -> UnitReads:
        """Return the reads of the first `count` misses."""
        found = self.of(self.first < count)
        return UnitReads(found.first, found.read_of[:count], found.places, found.loads)


def units_of(misses: NDArray[Any], wanted: Mask, unit: int, chunk_size: int, samples: int) -> Units:
    """Return the units of the `wanted` misses. Other misses are in unit -1, unless they are in one of these units."""
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


def around_misses(units: Units, misses: NDArray[Any], free: Mask) -> UnitReads:
    """Return the reads of the first miss of each unit: the `free` samples around it, up to the first that is not free.

    `free` has the shape of `units.places`. A read of the miss alone is left out.
    """
    free = free & units.there
    column, columns = (misses[units.first] - units.places[:, 0])[:, None], np.arange(free.shape[1])
    before = np.where(~free & (columns < column), columns, -1).max(axis=1, initial=-1)[:, None]
    behind = np.where(~free & (columns > column), columns, len(columns)).min(axis=1, initial=len(columns))[:, None]
    loads = (columns > before) & (columns < behind)
    read_of, inside = units.unit_of.copy(), np.flatnonzero(units.unit_of >= 0)
    unit = units.unit_of[inside]
    read_of[inside[~loads[unit, misses[inside] - units.places[unit, 0]]]] = -1
    found = UnitReads(units.first, read_of, units.places, loads)
    return found.of(np.count_nonzero(loads, axis=1) > 1)


def pieces_of(misses: NDArray[Any], unit_reads: UnitReads | None) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return all places that the reads of these misses load, ascending, and the index at which each piece begins.

    A piece is a miss that is read alone, or the samples of a read of several.
    """
    if unit_reads is None or not len(unit_reads.first):
        return np.sort(misses).astype(np.int64), np.arange(len(misses))
    alone = misses[unit_reads.read_of < 0].astype(np.int64)
    places = np.concatenate((alone, unit_reads.places[unit_reads.loads]))
    piece = np.concatenate((alone, np.repeat(unit_reads.places[:, 0], np.count_nonzero(unit_reads.loads, axis=1))))
    # A miss that is read alone may be in the unit of a read, so its piece has a number of its own.
    piece[len(alone) :] = -1 - piece[len(alone) :]
    order = np.argsort(places, kind="stable")
    apart = np.diff(piece[order]) != 0
    return places[order], np.concatenate(([0], np.flatnonzero(apart) + 1))
