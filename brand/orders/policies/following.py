"""Which samples does a job draw that shares the reads of other jobs, and in which order?

All jobs of one data set and seed draw from one sequence of *laps*. A lap is an epoch of `stripes`: an order of all
samples, and the reads that deliver them. The *front* is the progress of the fastest job, the pacemaker; as one number,
a *coordinate*, it is lap * samples + position in the lap. At a *join* a job records its position in its epoch, the
position of the front, and the speed of the front. Its draws follow from joins only, so a resumed run and another node
find the same order. Nothing else about other jobs enters.

- The pacemaker (pace 0) draws the samples that it needs in the order of the laps. A job that is alone draws exactly
  what `stripes` draws.
- A follower takes whole stripes as they pass, as many as its own pace allows, evenly spaced over the lap. Each stripe
  has the same probability, whatever its size, so the order of the follower is uniform. To keep its pace it fills up
  with samples of the *rest*: stripes that it needs and will not take, in a tape of their own, mixed as `stripes` mix.

Everything is integers, except the keys of the rest: a rounding error must not keep a loop from ending. Amounts of
samples are in 1/1024; the pace is 1,024 times the coordinates that pass during one own draw. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.joins import Join
from brand.orders.base.mapping import Mapping
from brand.orders.base.random import RandomStream, Words, bits, low_mask, ranked

UNIT: Final = 1024
"""Fractions of a sample, and of a coordinate, in which amounts and paces are counted."""
BLOCKS: Final = 128
"""Blocks of a lap within which stripes are taken evenly."""


@dataclass(frozen=True, slots=True)
class Lap:
    """The order of one lap, by its stripes."""

    position_of: NDArray[np.int64]
    """Position in the lap of each place, shape (samples,)."""
    stripe_of: NDArray[np.int64]
    """Stripe of each place, counted in the order of reading, shape (samples,)."""
    deadline: NDArray[np.int64]
    """Position before which each stripe is read, ascending, shape (stripes,)."""

    def begun(self, front: int) -> int:
        """Return how many stripes are read when the front is at a position."""
        return int(np.searchsorted(self.deadline, front))


def lap_of(sample_of: NDArray[Any], reads: NDArray[np.void], chunk_size: int) -> Lap:
    """Return the lap with the order and the reads of a plan of `stripes`."""
    position_of = np.empty(len(sample_of), np.int64)
    position_of[sample_of] = np.arange(len(sample_of))
    first = reads["chunk"].astype(np.int64) * chunk_size + reads["first"]
    order = np.argsort(first)
    return Lap(position_of, np.repeat(order, reads["count"][order]), reads["deadline"].astype(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class JobDraws:
    """The draws of a job, by position; arrays have the shape (draws,)."""

    places: NDArray[np.int64]
    coordinates: NDArray[np.int64]
    """The coordinate at which each sample passes; -1 for samples of the rest."""


def follow(
    mapping: Mapping, stripe: int, seed: int, part: NDArray[np.bool_], joins: Sequence[Join], laps: Callable[[int], Lap]
) -> JobDraws:
    """Return the order of one epoch of a job that draws the places of `part`, shape (samples,).

    `joins` ascend, and the first one is at position 0. `laps` makes the laps.
    """
    need, pieces = part.copy(), list[JobDraws]()
    for join, after in zip(joins, [*joins[1:], None], strict=True):
        if join.pace == 0:
            piece = _lead(need.copy(), join, laps)
        else:
            piece = _Follower(mapping, stripe, seed, join, laps).piece(need.copy())
        end = None if after is None else after.position - join.position
        pieces.append(JobDraws(piece.places[:end], piece.coordinates[:end]))
        need[pieces[-1].places] = False
    return _joined(pieces)


def _lead(need: NDArray[np.bool_], join: Join, laps: Callable[[int], Lap]) -> JobDraws:
    """Return the draws of the pacemaker from a join on: the samples that it needs, lap after lap."""
    pieces, number, front = list[JobDraws](), join.lap, join.front
    while need.any():
        lap = laps(number)
        found = np.flatnonzero(need & (lap.position_of >= front))
        found = found[np.argsort(lap.position_of[found])]
        need[found] = False
        pieces.append(JobDraws(found, number * len(need) + lap.position_of[found]))
        number, front = number + 1, 0
    return _joined(pieces)


def _joined(pieces: Sequence[JobDraws]) -> JobDraws:
    empty = np.empty(0, np.int64)
    places, coordinates = [each.places for each in pieces], [each.coordinates for each in pieces]
    return JobDraws(np.concatenate([empty, *places]), np.concatenate([empty, *coordinates]))


class _Follower:
    """A section of a follower's order, from one join on."""

    def __init__(self, mapping: Mapping, stripe: int, seed: int, join: Join, laps: Callable[[int], Lap]) -> None:
        self._mapping, self._stripe, self._seed, self._join, self._laps = mapping, stripe, seed, join, laps
        self._words = Words(seed, RandomStream.FOLLOW, join.lap, join.front)
        self._passing: list[JobDraws] = []
        """The samples that are drawn as they pass."""
        self._put = 0
        """Number of samples in `_passing`."""

    def piece(self, need: NDArray[np.bool_]) -> JobDraws:
        """Return the draws of the places that the job needs, shape (samples,). Consumes `need`."""
        wanted = int(np.count_nonzero(need))
        self._pass_by(need, wanted)
        rest = self._rest(np.flatnonzero(need), wanted)
        return self._merged(rest, wanted)

    def _pass_by(self, need: NDArray[np.bool_], wanted: int) -> None:
        """Take passing stripes until no draw is left for them."""
        pace, number = self._join.pace, self._join.lap
        lap = self._laps(number)
        first = lap.begun(self._join.front)
        carry, lack = self._bag(need, lap, first, wanted)
        while (room := wanted * UNIT - self._put * UNIT - lack) >= UNIT:
            weight = np.bincount(lap.stripe_of[need], minlength=len(lap.deadline))
            size = np.bincount(lap.stripe_of, minlength=len(lap.deadline))
            stripes, needed = int(np.count_nonzero(weight)), int(weight.sum())
            bounds = np.linspace(0, len(weight), BLOCKS + 1).astype(np.int64)
            for start, end in zip(np.maximum(bounds[:-1], first), bounds[1:], strict=True):
                room = wanted * UNIT - self._put * UNIT - lack
                if room < UNIT:
                    break
                if start >= end:
                    continue
                passing = int(size[start:end].sum())
                want = min(passing * UNIT * UNIT // pace + carry, room)
                some = start + np.flatnonzero(weight[start:end])
                count = len(some)
                if want <= 0:
                    count = 0
                elif stripes:  # a share of want / (mean * len(some)), with mean = needed / stripes
                    count = (want * stripes + self._words.below(UNIT * needed)) // (UNIT * needed)
                all_of_them = count >= len(some)
                chosen = some if all_of_them else self._spaced(some, count)
                carry = want - UNIT * self._take(need, need, lap, number, chosen)
                if all_of_them and carry > 0:  # the block has no more: the rest fills these draws
                    lack, carry = lack + carry, 0
            number, first = number + 1, 0
            lap = self._laps(number)

    def _bag(self, need: NDArray[np.bool_], lap: Lap, first: int, wanted: int) -> tuple[int, int]:
        """Take some of the stripes that are begun. Return (carry, lack)."""
        samples, pace, front = len(need), self._join.pace, self._join.front
        waiting = (lap.stripe_of < first) & (lap.position_of >= front)
        some = np.unique(lap.stripe_of[waiting & need])
        thinned = samples * UNIT < pace * wanted
        count = len(some)
        if thinned:
            count = (count * samples * UNIT + self._words.below(pace * wanted)) // (pace * wanted)
        chosen = self._spaced(some, min(count, len(some)))
        taken = self._take(need, need & waiting, lap, self._join.lap, chosen)
        over = int(np.count_nonzero(waiting)) * UNIT * UNIT // pace - taken * UNIT
        return (over, 0) if thinned else (0, over)

    def _spaced(self, some: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Return `count` of some stripes, evenly spaced."""
        if count == 0:
            return some[:0]
        return some[(np.arange(count) * len(some) + self._words.below(len(some))) // count]

    def _take(
        self, need: NDArray[np.bool_], able: NDArray[np.bool_], lap: Lap, number: int, stripes: NDArray[np.int64]
    ) -> int:
        """Draw the `able` samples of these stripes as they pass. Return the number of samples."""
        chosen = np.zeros(len(lap.deadline), np.bool_)
        chosen[stripes] = True
        found = np.flatnonzero(able & chosen[lap.stripe_of])
        need[found] = False
        self._passing.append(JobDraws(found, number * len(need) + lap.position_of[found]))
        self._put += len(found)
        return len(found)

    def _rest(self, places: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
        """Return the rest in the order of its tape."""
        if not len(places):
            return places
        mapping, lap, front = self._mapping, self._join.lap, self._join.front
        per_chunk = -(-mapping.chunk_size // self._stripe)
        chunk, offset = np.divmod(places, mapping.chunk_size)
        _, stripe_of, weight = np.unique(
            chunk * per_chunk + offset // self._stripe, return_inverse=True, return_counts=True
        )
        stripes = len(weight)
        keys = bits(stripes, self._seed, RandomStream.FOLLOW_REST, lap, front)
        mask = low_mask(stripes)
        keys &= ~mask
        keys |= np.arange(stripes, dtype=np.uint64)
        order = ranked(keys, mask).astype(np.int64)
        before = np.empty(stripes, np.int64)
        before[order] = np.cumsum(weight[order]) - weight[order]
        words = bits(len(places), self._seed, RandomStream.FOLLOW_MATES, lap, front)
        mate = _rank_within(stripe_of, words)
        unit = (words & np.uint64(0xFFFFFFFF)) * 2.0**-32
        window = (2 * mapping.chunk_size - self._stripe) * mapping.groups * (len(places) / wanted)
        key = before[stripe_of] + window * (mate + unit) / weight[stripe_of]
        return places[np.argsort(key, kind="stable")]

    def _merged(self, rest: NDArray[np.int64], wanted: int) -> JobDraws:
        """Return the passing samples, each when it passes, filled up with the rest."""
        start = self._join.lap * self._mapping.samples + self._join.front
        passing = _joined(self._passing)
        order = np.argsort(passing.coordinates)
        places, coordinates = passing.places[order], passing.coordinates[order]
        fronts = start + np.arange(wanted + 1) * self._join.pace // UNIT
        lacking = np.arange(wanted + 1) - np.searchsorted(coordinates, fronts, side="right")
        due = np.searchsorted(np.maximum.accumulate(lacking), np.arange(1, len(rest) + 1))
        passes = np.searchsorted(fronts, coordinates)
        when = np.concatenate([2 * passes, 2 * due + 1])  # at one draw, a passing sample precedes the rest
        order = np.argsort(when, kind="stable")
        every = _joined([JobDraws(places, coordinates), JobDraws(rest, np.full(len(rest), -1))])
        return JobDraws(every.places[order], every.coordinates[order])


def _rank_within(group: NDArray[np.int64], words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return a random rank of each member within its group, from 0 on, same shape."""
    order = np.lexsort((words >> np.uint64(32), group))
    sizes = np.bincount(group)
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank
