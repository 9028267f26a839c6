"""In which order are the samples of a group drawn? Any part of its tape, without the parts before it.

A group takes one stripe of each of its chunks in turn. The order of the chunks is random, and so is the order of the
stripes of a chunk. If `s` samples precede a stripe of `r` samples, the samples of the stripe get the keys
`s + W * (i + u) / r`: `i` is the rank of the sample in a random order of the stripe, `u` is uniform in [0, 1), and
`W = 2 * chunk_size - r`. The tape is a sort by keys. So samples of one stripe are apart, and hardly ever meet in a
batch, and stripes of one chunk are as far apart as possible. `W` bounds how long a sample waits, so that about
`chunk_size` samples of a group are in memory at a time.

In an epoch of a subset, `s` and `r` count samples of the subset, and a stripe without any is not read. `W` is
multiplied by the share of the group's samples that are in the subset, and so is the memory that they need.

The key of a sample lies between two bounds that follow from `s` and `i` alone. So draws `c` to `c + d` of a tape have
few candidates: about `d` samples of the stripes that overlap there. Only their keys are made, and sorted. A key is a
whole number with `fraction_bits` bits behind the point, so that all machines make the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import count_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.placement import unit_lengths
from brand.orders.base.random import BLOCK, RandomStream, bits, low_mask, ranked, words_at
from brand.reprs import Reprs

MOST_FRACTION: Final = 20
_HALF: Final = np.uint64(32)
"""Half of the bits of a word."""
_WORD: Final = 64
_TURN: Final = np.uint64(31)
"""Bits of the place of a stripe in the turns of its group. With them, twice the most samples fill a word."""
_NEAR: Final = 8
"""Keys by which the bounds of a part of a tape may be too far apart: a longer search costs more than it saves."""
_LEAST_KEPT: Final = 1 << 22
"""Samples whose random order within their stripe is kept at least."""

Numbers = NDArray[np.int64]


def fraction_bits(chunk_size: int) -> int:
    """Return the bits of a key behind the point: as many as leave space for a number beside the key in one word."""
    return max(0, min(MOST_FRACTION, 56 - 2 * chunk_size.bit_length()))


@dataclass(frozen=True, slots=True, eq=False)
class TapePart:
    """A part of the tapes of some groups, group after group."""

    places: Numbers
    """The place of each draw, shape (draws,)."""
    stripes: Numbers
    """The stripe of each draw, a number in the order in which its group reads them, shape (draws,)."""
    opened: Numbers
    """The stripe of each group behind all stripes of earlier draws, shape (groups,)."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenStripes:
    """Stripes that are read before some draws of their groups, and that these or later draws are from."""

    groups: Numbers
    """The group of each stripe, shape (stripes,)."""
    stripes: Numbers
    """Numbers in the order in which the group reads them, shape (stripes,)."""
    leads: Numbers
    """About how many draws of its group precede the next draw from each stripe, shape (stripes,)."""
    drawn: Numbers
    """Places of the samples of all these stripes that are drawn earlier."""


@dataclass(frozen=True, slots=True, eq=False)
class _Near:
    """The stripes with samples around some draws of some groups, and the samples that may be among these draws."""

    low: Numbers
    """A key of each group that is below those of all these draws, shape (groups,)."""
    opened: Numbers
    """The stripe of each group behind all stripes of earlier draws, shape (groups,)."""
    row: Numbers
    """The group of each stripe, by its index, shape (stripes,)."""
    stripe: Numbers
    """Numbers of the stripes, counted over all groups, shape (stripes,)."""
    number: Numbers
    """The same, counted in the order in which the group reads them, shape (stripes,)."""
    cut: Numbers
    """Samples of each stripe that are drawn earlier, shape (stripes,)."""
    of: Numbers
    """The stripe of each sample, by its index, shape (samples,)."""
    rank: Numbers
    """The rank of each sample in the random order of its stripe, shape (samples,)."""
    drawn: Numbers
    """The samples of these draws, group by group in the order of the draws, by their index, shape (draws,)."""


@dataclass(frozen=True, slots=True)
class StripeLayout:
    """The stored places of each stripe. Stripes are numbered in the order of storage, equally many a chunk."""

    mapping: Mapping
    stripe: int
    subset: Subset | None
    """The samples that belong to stripes; None if all do."""

    @property
    def per_chunk(self) -> int:
        """Stripes of a chunk."""
        return -(-self.mapping.chunk_size // self.stripe)

    @property
    def count(self) -> int:
        """Stripes of all groups, as if each group had the same number."""
        return self.mapping.groups * self.mapping.group_chunks * self.per_chunk

    def first(self, stripes: Numbers) -> Numbers:
        """Return the place at which each stripe begins, whether that sample is in the subset or not."""
        chunk, number = np.divmod(stripes, self.per_chunk)
        first: Numbers = chunk * self.mapping.chunk_size + number * self.stripe
        return first

    def lengths(self) -> Numbers:
        """Return the samples of each stripe, shape (count,)."""
        found, lengths = np.zeros(self.count, np.int64), unit_lengths(self.mapping, self.stripe, self.subset)
        found[: len(lengths)] = lengths
        return found

    def spans(self, stripes: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Return the place of the first sample of each stripe, and the places from there to its last sample."""
        first, step = self.first(stripes), max(1, BLOCK // self.stripe)
        if self.subset is None:
            return first, lengths
        count = np.empty_like(first)
        for start in range(0, len(stripes), step):
            some = slice(start, start + step)
            _, places = self.members(stripes[some])
            ends = np.cumsum(lengths[some])
            first[some] = places[ends - lengths[some]]
            count[some] = places[ends - 1] + 1 - first[some]
        return first, count

    def members(self, stripes: Numbers) -> tuple[Numbers, Numbers]:
        """Return the stripe of each sample of the subset in these stripes, by its index, and the place of each."""
        assert self.subset is not None
        first, size = self.first(stripes), self.mapping.chunk_size
        stored = np.minimum(np.minimum(self.stripe, size - first % size), self.mapping.samples - first)
        return self.subset.members(first, stored)


class StripeTapes(Reprs, shows="stripe stripes"):
    """The tapes of all groups in one epoch, with stripes of `stripe` samples; the last of a chunk may be shorter.

    With a subset, the samples of a stripe are those of the subset. It holds a few numbers for each stripe, and the
    random order of as many stripes as are drawn from at a time.
    """

    def __init__(self, mapping: Mapping, stripe: int, seed: int, epoch: int, subset: Subset | None = None) -> None:
        self.mapping, self.stripe, self._seed, self._epoch = mapping, stripe, seed, epoch
        self._layout = layout = StripeLayout(mapping, stripe, subset)
        self._fraction = np.uint64(fraction_bits(mapping.chunk_size))
        self._width = mapping.group_chunks * layout.per_chunk
        length = layout.lengths().reshape(mapping.groups, self._width)
        self.sizes: Numbers = length.sum(axis=1)
        """Samples of each group, shape (groups,)."""
        stored = mapping.chunk_samples().reshape(mapping.groups, -1).sum(axis=1)
        self._window: Numbers = np.maximum(1, -((stripe - 2 * mapping.chunk_size) * self.sizes // stored))
        """`W` of each group, shape (groups,)."""
        self.stripes = int(np.count_nonzero(length))
        # Of single samples, any order is as likely as any other.
        order = _reading_order(length, 1 if stripe == 1 else mapping.group_chunks, seed, epoch)
        length = np.take_along_axis(length, order, axis=1)
        start, first = np.cumsum(length, axis=1) - length, np.arange(mapping.groups)[:, None]
        # From here on, a stripe's number counts all stripes, group by group, each group's in the order of reading.
        self._stored: Numbers = (order + first * self._width).ravel()
        """The number of each stripe in the order of storage, as if each group had `_width` stripes."""
        self._length: Numbers = length.ravel()
        self._start: Numbers = start.ravel()
        """Samples of its group before each stripe."""
        self._span = int((self.sizes + self._window).max()) + 1
        self._starts: Numbers = (start + first * self._span).ravel()
        """The same, ascending over all groups: each begins `_span` behind the one before it."""
        self._weights = np.append(0.0, np.cumsum(self._length * self._start.astype(np.float64)))
        some = np.flatnonzero(self._length)
        starts, windows = self._starts[some], self._window[some // self._width]
        self._slack = int((np.searchsorted(starts, starts + windows) - np.arange(len(starts))).max()) + 2
        """More than the stripes with keys around any key."""
        kept = self._slack * mapping.groups
        self._mates = StripeMates(layout, int(self._length.max()), kept, seed, epoch)

    def part(self, groups: Numbers, before: Numbers, counts: Numbers) -> TapePart:
        """Return draws `before` to `before + counts` - 1 of each of some groups."""
        near = self._near(groups, before, counts)
        of, rank = near.of[near.drawn], near.rank[near.drawn]
        return TapePart(self._places(near.stripe, of, rank), near.number[of], near.opened)

    def open_stripes(self, groups: Numbers, before: Numbers) -> OpenStripes:
        """Return the stripes that draws before and from `before` on are from, of each of some groups."""
        near = self._near(groups, before, np.zeros_like(before))
        is_open = near.number < near.opened[near.row]  # a stripe is read before those behind it
        some = np.flatnonzero(is_open & (near.cut < self._length[near.stripe]))
        row, stripe, cut = near.row[some], near.stripe[some], near.cut[some]
        leads = self._start[stripe] + cut * self._window[groups[row]] // self._length[stripe] - near.low[row]
        return OpenStripes(groups[row], near.number[some], leads, self._places(stripe, *_ranges(cut)))

    def _near(self, groups: Numbers, before: Numbers, counts: Numbers) -> _Near:
        """Return what is around draws `before` to `before + counts` - 1 of each of some groups."""
        low = self._key_at(groups, before - self._slack, above=False)
        high = self._key_at(groups, before + counts + self._slack, above=True)
        done, begun = self._done(groups, low), self._begun(groups, high)
        row, stripe = _ranges(begun - done)
        stripe += done[row]
        # Ranks below `first` have keys below `low`; those from `end` on have none below `high`.
        start, length, window = self._start[stripe], self._length[stripe], self._window[groups[row]]
        first = np.clip((low[row] - start) * length // window, 0, length)
        end = np.clip(-((start - high[row]) * length // window), 0, length)
        of, rank = _ranges(end - first)
        rank += first[of]
        keys = self._keys(stripe, of, rank, low[row], window)
        order = _sorted_rows(keys, row[of], len(groups))
        passed = self._passed(groups, done) + np.bincount(row, first, len(groups)).astype(np.int64)
        column, skipped = np.arange(order.shape[1]), (before - passed)[:, None]
        cut = first + np.bincount(of[order[column < skipped]], minlength=len(stripe))
        drawn = order[(column >= skipped) & (column < skipped + counts[:, None])]
        number = stripe - groups[row] * self._width
        opened = done - groups * self._width
        np.maximum.at(opened, row[cut > 0], number[cut > 0] + 1)
        return _Near(low, opened, row, stripe, number, cut, of, rank, drawn)

    def reads(self, groups: Numbers, stripes: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the chunk, the first sample and the number of samples that a read of each stripe spans.

        `stripes` are numbers in the order in which their group reads them. With a subset, the first and the last sample
        of a span belong to it.
        """
        numbers = groups * self._width + stripes
        first, count = self._layout.spans(self._stored[numbers], self._length[numbers])
        chunk, first = np.divmod(first, self.mapping.chunk_size)
        return chunk, first, count

    def _places(self, stripe: Numbers, of: Numbers, rank: Numbers) -> Numbers:
        """Return the places of samples of these stripes. `of`: which of them, `rank`: in its random order."""
        used = np.zeros(len(stripe), np.bool_)
        used[of] = True
        row_of = np.cumsum(used) - 1
        stored = self._stored[stripe[used]]
        mates, rows = self._mates.of(stored, self._length[stripe[used]])
        found: Numbers = self._layout.first(stored)[row_of[of]] + mates[rows[row_of[of]], rank]
        return found

    def _keys(self, stripe: Numbers, of: Numbers, rank: Numbers, low: Numbers, window: Numbers) -> NDArray[np.uint64]:
        """Return the keys of samples of these stripes, each relative to a key that is below all of its group's part.

        `low` and `window`: that key and `W`, for each stripe.
        """
        words = words_at(
            self._stored[stripe][of] * self.stripe + rank, self._seed, RandomStream.STRIPE_KEYS, self._epoch
        )
        words >>= _HALF
        words <<= self._fraction
        words >>= _HALF
        words |= rank.astype(np.uint64) << self._fraction
        words *= window.astype(np.uint64)[of]
        words //= self._length[stripe].astype(np.uint64)[of]
        words += (self._start[stripe] - low + window).astype(np.uint64)[of] << self._fraction
        return words

    def _done(self, groups: Numbers, key: Numbers) -> Numbers:
        """Return the first stripe of each group that has keys from `key` on."""
        found = np.searchsorted(self._starts, key - self._window[groups] + groups * self._span, "right")
        return np.maximum(found, groups * self._width)

    def _begun(self, groups: Numbers, key: Numbers) -> Numbers:
        """Return the stripe behind all stripes of each group that have keys below `key`."""
        return np.searchsorted(self._starts, key + groups * self._span)

    def _passed(self, groups: Numbers, stripe: Numbers) -> Numbers:
        """Return the samples of each group in its stripes before `stripe`."""
        inside = stripe < (groups + 1) * self._width
        return np.where(inside, self._start[np.minimum(stripe, len(self._start) - 1)], self.sizes[groups])

    def _keys_below(self, groups: Numbers, key: Numbers) -> NDArray[np.float64]:
        """Return about how many keys of each group are below `key`: the error is less than `_slack`."""
        done, begun = self._done(groups, key), self._begun(groups, key)
        passed = self._passed(groups, done)
        overlapping = self._passed(groups, begun) - passed
        part = overlapping * key.astype(np.float64) - (self._weights[begun] - self._weights[done])
        found: NDArray[np.float64] = passed + part / self._window[groups]
        return found

    def _key_at(self, groups: Numbers, draws: Numbers, *, above: bool) -> Numbers:
        """Return a key of each group with about so many keys below it: not more, or if `above` not fewer."""
        window = self._window[groups]
        most = self.sizes[groups] + window
        low = np.clip(draws - self.stripe - self._slack, 0, most)
        high = np.clip(draws + window + self.stripe + self._slack, 0, most)
        while (high - low > _NEAR).any():
            middle = (low + high) >> 1
            below = self._keys_below(groups, middle) < draws
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return high if above else low


class StripeMates(Reprs, shows="_layout"):
    """The random order of the samples of each stripe. Those that were used last are kept: as many as overlap.

    `longest`: samples of the longest stripe.
    """

    def __init__(self, layout: StripeLayout, longest: int, kept: int, seed: int, epoch: int) -> None:
        self._layout, self._longest, self._seed, self._epoch = layout, longest, seed, epoch
        stripes = layout.count
        rows = min(stripes, max(kept, _LEAST_KEPT // longest))
        self._table = np.empty((rows, longest), count_dtype(layout.stripe))
        """The kept orders. The system gives a row memory when it is used for the first time."""
        self._row_of = np.full(stripes, -1, np.int32)
        self._owner = np.full(rows, -1, np.int64)
        self._used = np.zeros(rows, np.int64)
        """The last call that used each row."""
        self._calls = 0

    def of(self, stripes: Numbers, lengths: Numbers) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return a table of orders and the row of each of these stripes in it."""
        if len(stripes) > len(self._table):
            return self._make(stripes, lengths), np.arange(len(stripes))
        self._calls += 1
        self._used[self._row_of[stripes][self._row_of[stripes] >= 0]] = self._calls
        new = self._row_of[stripes] < 0
        if count := np.count_nonzero(new):
            rows = np.argpartition(self._used, count - 1)[:count]
            self._row_of[self._owner[rows][self._owner[rows] >= 0]] = -1
            self._owner[rows], self._used[rows] = stripes[new], self._calls
            self._row_of[stripes[new]] = rows
            self._table[rows] = self._make(stripes[new], lengths[new])
        return self._table, self._row_of[stripes]

    def _make(self, stripes: Numbers, lengths: Numbers) -> NDArray[Any]:
        """Return the samples of each stripe in its random order, counted from its first one, shape (stripes, longest).

        Entries behind the last sample of a stripe are not valid.
        """
        stripe, inside = self._layout.stripe, np.arange(self._longest)
        found: NDArray[Any] = np.empty((len(stripes), self._longest), self._table.dtype)
        step = max(1, BLOCK // self._longest)
        mask = low_mask(stripe)
        for first in range(0, len(stripes), step):
            some = slice(first, first + step)
            numbers = (stripes[some, None] * stripe + inside).ravel()
            words = words_at(numbers, self._seed, RandomStream.STRIPE_MATES, self._epoch).reshape(-1, self._longest)
            words &= ~mask
            words[inside >= lengths[some, None]] = ~mask  # so that absent samples are last
            words |= inside.astype(np.uint64)
            found[some] = ranked(words, mask)
            if self._layout.subset is not None:
                of, places = self._layout.members(stripes[some])
                table = np.zeros_like(found[some])
                table[of, np.arange(len(of)) - (np.cumsum(lengths[some]) - lengths[some])[of]] = (
                    places - self._layout.first(stripes[some])[of]
                )
                found[some] = np.take_along_axis(table, found[some], axis=1)
        return found


def _sorted_rows(keys: NDArray[np.uint64], row: Numbers, rows: int) -> Numbers:
    """Return the numbers of the keys of each row, which ascends, in the order of the keys, shape (rows, most of a row).

    Entries behind the last key of a row are not valid.
    """
    counts = np.bincount(row, minlength=rows)
    firsts, most = np.cumsum(counts) - counts, int(counts.max(initial=0))
    column, mask = np.arange(len(row)) - firsts[row], low_mask(most)
    shift = np.uint64(int(mask).bit_length())
    assert int(keys.max(initial=0)).bit_length() + int(shift) <= _WORD, "no space for a number beside a key"
    table = np.full((rows, most), ~np.uint64(0))
    table[row, column] = keys << shift | column.astype(np.uint64)
    order = ranked(table, mask).astype(np.int64)
    order += firsts[:, None]
    return order


def _ranges(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return the numbers 0 to `count` - 1 for each count, one after another, and before them whose they are."""
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - (np.cumsum(counts) - counts)[of]


def _reading_order(length: Numbers, parts: int, seed: int, epoch: int) -> Numbers:
    """Return the stripes of each group in the order of reading, empty ones last, shape (groups, stripes of a group).

    The stripes of a group are those of `parts` chunks. Chunks, and the stripes of each chunk, have a random order. The
    place of a stripe in the tape is `(s + r * i / m) / c`: its chunk is number `i` of `m` and has `c` samples, the
    stripe has `r`, and the earlier stripes of the chunk have `s`. So the stripes of a chunk are equally far apart.
    """
    groups, width = length.shape
    length = length.reshape(groups, parts, -1)
    stripes = _shuffled(length > 0, seed, RandomStream.STRIPE_ORDER, epoch)
    sizes = length.sum(axis=2)
    chunks = _shuffled(sizes > 0, seed, RandomStream.STRIPE_TURNS, epoch)[..., None]
    stripes = np.take_along_axis(stripes, chunks, axis=1)
    length = np.take_along_axis(np.take_along_axis(length, chunks, axis=1), stripes, axis=2)
    some = np.count_nonzero(sizes, axis=1)[:, None, None]
    at = (np.cumsum(length, axis=2) - length) * some + length * np.arange(parts)[:, None]
    whole = np.maximum(1, np.take_along_axis(sizes, chunks[..., 0], axis=1)[..., None] * some)
    mask = low_mask(width)
    keys = (at.astype(np.uint64) << _TURN) // whole.astype(np.uint64)
    keys <<= np.uint64(int(mask).bit_length())
    keys[length == 0] = ~mask
    keys = keys.reshape(groups, width)
    keys |= np.arange(width, dtype=np.uint64)
    stripes += chunks * length.shape[2]
    return np.take_along_axis(stripes.reshape(groups, width), ranked(keys, mask).astype(np.int64), axis=1)


def _shuffled(some: NDArray[np.bool_], seed: int, stream: RandomStream, epoch: int) -> Numbers:
    """Return the numbers along the last axis in random order, those that are not in `some` last."""
    words, count = bits(some.size, seed, stream, epoch).reshape(some.shape), some.shape[-1]
    mask = low_mask(count)
    words &= ~mask
    words[~some] = ~mask
    words |= np.arange(count, dtype=np.uint64)
    return ranked(words, mask).astype(np.int64)
