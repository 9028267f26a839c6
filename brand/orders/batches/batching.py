"""Which positions of an epoch make a batch of samples of similar length, or a batch of packed rows?

    lengths by position -> windows of consecutive positions -> each window sorted, cut into batches, batches shuffled

A batch takes samples of one window only. So samples that are drawn out of order are within a bounded range of the
epoch, and a data server can hold them. The batches of an epoch depend on the lengths, the order, the limits
(`BatchLimits`) and the seed only: not on ranks, workers or memory. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.policy import check_number
from brand.orders.base.random import RandomStream, bits
from brand.orders.base.tickets import MAX_POSITIONS

Whole = NDArray[np.int64]
LENGTH_WINDOW: Final = 1024
"""Batches of similar length per bucketing window, if memory can hold them."""
PACK_WINDOW: Final = 64
"""Packed batches per bucketing window: 64 are enough to fill their rows."""
LEAST_PACK_WINDOW: Final = 4
"""The fewest packed batches of a window: with fewer, many rows would be half empty."""


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


class Pieces(NamedTuple):
    """The layout of the documents of a batch: a piece for each row in which a document has tokens."""

    document: Whole
    """Number of the document within the batch, ascending."""
    row: Whole
    offset: Whole
    """The offset of the piece in its row."""
    length: Whole

    @property
    def rows(self) -> int:
        return int(self.row[-1]) + 1 if len(self.row) else 0


def packed(lengths: Whole, row: int, rows: int, window: int, seed: int, epoch: int) -> PositionBatches:
    """Return batches of documents that fill `rows` rows of `row` tokens.

    Documents fill rows one after another, whole; a document longer than a row begins a row of its own, fills as many
    rows as it needs, and other documents may follow it in the last one. `best_fit` decides which documents share a row.
    The documents of a batch are in the order of its rows, so `laid_out` finds the rows again from their lengths.

    Args:
        lengths: Length of the document at each position, at most `row * rows`, shape (draws,).
        row, rows: Tokens of a row, and rows of a batch.
        window: Consecutive positions whose documents may meet. The documents of a batch that is not full move to the
            next window, once.
        seed, epoch: Fix which documents of equal length meet, and the order of the batches of a window.
    """
    noise = bits(len(lengths), seed, RandomStream.BATCH_TIES, epoch)
    positions, counts, carried = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], np.zeros(0, np.int64)
    for number, part in windows(len(lengths), window):
        here = np.concatenate((carried, np.arange(part.start, part.stop)))
        here = here[np.argsort(noise[here])]
        batch_of, heights, in_order = _in_batches(lengths[here], row, rows, noise[here], here < part.start)
        count = np.bincount(batch_of, minlength=len(heights))
        turns = np.argsort(bits(len(heights), seed, RandomStream.BATCH_TURNS, epoch, number))
        if part.stop < len(lengths):
            # The next window can fill a batch that is not full. Documents that have moved once are not moved again.
            emptiest = int(heights.argmin())
            carried = here[batch_of == emptiest]
            if heights[emptiest] == rows or carried.min() < part.start:
                carried = here[:0]
            else:
                turns = turns[turns != emptiest]
        positions.append(gathered(here[in_order], count, turns))
        counts.append(count[turns])
    return PositionBatches(np.concatenate(positions), np.cumsum(np.concatenate(counts)))


def _in_batches(
    lengths: Whole, row: int, rows: int, noise: NDArray[np.uint64], early: NDArray[np.bool_]
) -> tuple[Whole, Whole, Whole]:
    """Return the batch of each document, the rows of each batch, and the documents in the order of batches and rows.

    `noise` is a random number for each document. Documents that are `early` go into the first batches, which are full.
    """
    long = lengths > row
    whole, rest = np.divmod(lengths[long], row)
    # Groups of rows that stay together: those of each long document, and then single rows.
    group_of = np.empty(len(lengths), np.int64)
    group_of[long] = np.arange(len(whole))
    short = np.flatnonzero(~long)
    tails = np.where(rest > 0, row - rest, 0)
    group_of[short], groups = best_fit(lengths[short], row, tails)
    heights = np.ones(groups, np.int64)
    heights[: len(whole)] = whole + (rest > 0)
    # `best_fit` opens rows for long documents first; batches take them in a random order. Their sum is random, too.
    turn, first = np.zeros(groups, np.uint64), np.zeros(groups, np.bool_)
    np.add.at(turn, group_of, noise)
    first[group_of[early]] = True
    mixed = np.lexsort((turn, ~first))
    batch_of_group = np.empty(groups, np.int64)
    batch_of_group[mixed], batches = best_fit(heights[mixed], rows, np.zeros(0, np.int64))
    used = np.bincount(batch_of_group, weights=heights, minlength=batches).astype(np.int64)
    batch_of = batch_of_group[group_of]
    return batch_of, used, np.lexsort((~long, group_of, turn[group_of], batch_of))


def best_fit(sizes: Whole, capacity: int, rooms: Whole) -> tuple[Whole, int]:
    """Return the bin of each size by best-fit decreasing, shape (sizes,), and the number of bins.

    The first bins have these `rooms` and exist from the beginning; all others have `capacity`. A size is at most
    `capacity`; size 0 counts as 1.

    The longest document is placed first, and each document is placed in the row with the least free space that it fits.
    As lengths are whole numbers, documents of one length are placed in rows of equal free space together, so the work
    grows with the number of different lengths, not of documents.
    """
    sizes = np.maximum(sizes, 1)  # else a bin would hold any number of empty documents
    bin_of = np.empty(len(sizes), np.int64)
    free = _Rooms(capacity, rooms)
    order = np.argsort(-sizes, kind="stable")
    values, counts = np.unique(sizes, return_counts=True)
    at = 0
    for size, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        end = at + count
        while at < end:
            placed = free.place(size, end - at)
            bin_of[order[at : at + len(placed)]] = placed
            at += len(placed)
    return bin_of, free.bins


class _Rooms:
    """Bins by their free space."""

    def __init__(self, capacity: int, rooms: Whole) -> None:
        self._capacity, self.bins = capacity, len(rooms)
        self._by_room: dict[int, list[Whole]] = {}
        self._there = 0
        """Bit `r` is set if a bin has free space `r`."""
        for room in np.unique(rooms).tolist():
            self._put(room, np.flatnonzero(rooms == room))

    def place(self, size: int, count: int) -> Whole:
        """Place one to `count` items of one size into bins with the least free space. Returns their bins."""
        wide = self._there >> size
        if wide:
            room = size + (wide & -wide).bit_length() - 1  # the lowest bit: the least space that fits
            bins = np.concatenate(self._by_room.pop(room))
            self._there ^= 1 << room
            each = room // size
        else:
            room, each = self._capacity, self._capacity // size
            bins = np.arange(self.bins, self.bins - (-count // each))
            self.bins += len(bins)
        used, rest = np.split(bins, [min(len(bins), -(-count // each))])
        placed = np.repeat(used, each)[:count]
        self._put(room, rest)
        self._put(room - each * size, used[:-1])
        self._put(room - (len(placed) - each * (len(used) - 1)) * size, used[-1:])
        return placed

    def _put(self, room: int, bins: Whole) -> None:
        if room and len(bins):
            self._by_room.setdefault(room, []).append(bins)
            self._there |= 1 << room


def laid_out(lengths: Whole, row: int) -> Pieces:
    """Return the layout of the documents of one batch, in their order.

    Each follows the previous one if it fits the row. A document longer than a row begins a row. No other way to cut
    this sequence of documents into rows needs fewer.
    """
    kept = np.flatnonzero(lengths)  # a document without tokens has no piece, and must not begin a row
    lengths = lengths[kept]
    ends = np.cumsum(lengths)
    first, row_at = list[int](), list[int]()  # of each row: its first document, and where in that document it begins
    at, into = 0, 0
    while at < len(lengths):
        if into == 0 and lengths[at] == 0:  # an empty document begins no row, so that no row is empty
            at += 1
            continue
        first.append(at)
        row_at.append(into)
        left = int(lengths[at]) - into
        if left > row:
            into += row
            continue
        begun = int(ends[at]) - left
        at, into = int(np.searchsorted(ends, begun + row, "right")), 0
    starts = np.append(first, len(lengths)).astype(np.int64)
    # A document that continues in the next row has a piece in both.
    goes_on = np.append(np.array(row_at[1:], np.int64) > 0, False) if first else np.zeros(0, np.bool_)
    count = np.diff(starts) + goes_on
    rows = np.repeat(np.arange(len(first)), count)
    in_row = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    document = np.repeat(starts[:-1], count) + in_row
    begun = (ends - lengths)[document]
    tokens = (ends - lengths)[starts[:-1]] + np.array(row_at, np.int64)  # before each row, of all documents
    begin, end = np.maximum(begun, tokens[rows]), np.minimum(ends[document], tokens[rows] + row)
    some = end > begin
    pieces = (kept[document], rows, begin - tokens[rows], end - begin)
    return Pieces(*(values[some] for values in pieces))


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The rule of batches: at most `size` samples of a padded length of at most `most`, or packed rows.

    Together with the order, these numbers fix how an epoch is cut into batches. A loader state contains them.
    """

    window: int
    """Consecutive positions whose samples may meet in a batch."""
    lengths: str
    """Digest of the length of all samples."""
    size: int | None = None
    most: float | None = None
    row: int | None = None
    """Tokens of a packed row; with it, `rows` rows make a batch."""
    rows: int | None = None

    def __post_init__(self) -> None:
        check_number("window", self.window, 1, MAX_POSITIONS)
        for name in ("size", "row", "rows"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1, MAX_POSITIONS)
        if not isinstance(self.lengths, str):
            raise ValueError(f"lengths of batches are {self.lengths!r}, not a digest")
        if self.most is not None and not (isinstance(self.most, int | float) and 0 < self.most < float("inf")):
            raise ValueError(f"most={self.most!r} of batches is not a length")
        if (self.row is None) != (self.rows is None):
            raise ValueError("packed batches have `row` and `rows`")
        if (self.size is None and self.most is None) == (self.row is None):
            raise ValueError("batches have `size` or `most`, or else `row` and `rows`")

    @property
    def longest(self) -> float | None:
        return self.row * self.rows if self.row is not None and self.rows is not None else self.most

    def batches(self, lengths: NDArray[Any], seed: int, epoch: int) -> PositionBatches:
        """Return the batches of an epoch. `lengths`: that of the sample at each position, shape (draws,)."""
        if self.row is not None and self.rows is not None:
            return packed(lengths, self.row, self.rows, self.window, seed, epoch)
        return by_length(lengths, self.window, seed, epoch, size=self.size, most=self.most)

    def taken_up(self, batches: PositionBatches, lengths: NDArray[Any]) -> NDArray[Any]:
        """Return the size of each batch with its padding, in units of length, shape (batches,)."""
        if self.row is not None and self.rows is not None:
            return np.full(len(batches), self.row * self.rows, np.int64)
        return batches.padded(lengths)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values, without those that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        known = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or not {"window", "lengths"} <= set(values) <= known:
            raise ValueError(f"limits of batches are {values!r:.80}")
        return cls(**values)


def samples_of(mean: float, *, size: int | None, most: float | None, row: int | None, rows: int | None) -> float:
    """Estimate how many samples of this mean length a batch has, at least 1."""
    length = row * rows if row is not None and rows is not None else most
    found = float("inf") if length is None or not mean else length / mean
    return max(1.0, min(found, float("inf") if size is None else size))


def choose_window(room: int, draws: int, samples: float, *, size: int | None, pack: bool) -> int:
    """Return the window of batches of about `samples` samples, if memory can buffer `room` samples.

    The window is a whole number of batches of `size`, so that only the last batch of an epoch is short. Packed rows
    need some batches in a window in any case.
    """
    wanted = min(room, draws, int(samples * (PACK_WINDOW if pack else LENGTH_WINDOW)))
    least = int(samples * LEAST_PACK_WINDOW) if pack else 1
    whole = size or 1
    batches = -(-draws // whole) if wanted == draws else wanted // whole
    return min(MAX_POSITIONS, max(batches, least, 1) * whole)
