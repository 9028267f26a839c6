"""Order `shared`: which samples does a job draw that shares the reads of other jobs, and in which order?

All jobs of one data set, seed and numbers draw from one sequence of *laps*. A lap is an epoch of `stripes`: an order of
all samples, and the reads that deliver them. The *front* is the progress of the fastest job, the pacemaker; as one
number, a *coordinate*, it is lap * samples + position in the lap. At a *join* a job records its position in its epoch,
the position of the front, and the speed of the front. Its draws follow from joins only, so a resumed run and another
node find the same order. Nothing else about other jobs enters.

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
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import Mask
from brand.orders.base.joins import Join
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, Track, narrowed, planned_by
from brand.orders.base.policy import OrderChoice, Setting, check_number
from brand.orders.base.random import RandomStream, Words, bits, low_mask, ranked
from brand.orders.policies.stripe_policy import LapPolicy, Stripes

UNIT: Final = 1024
"""Fractions of a sample, and of a coordinate, in which amounts and paces are counted."""
BLOCKS: Final = 128
"""Blocks of a lap within which stripes are taken evenly."""


@dataclass(frozen=True)
class SharedPolicy(LapPolicy):
    """The policy of jobs that draw from the reads of other jobs if possible, and the rest from their own reads."""

    name: ClassVar[str] = "shared"
    rejoin: int = 1
    """1: a job that has lost the other jobs joins them again within an epoch; 0: it joins only when an epoch begins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rejoin", self.rejoin, 0, 1)

    @property
    def rejoins(self) -> bool:
        return bool(self.rejoin)

    def plan_joined(self, mapping: Mapping, seed: int, subset: Subset | None, joins: Sequence[Join]) -> EpochPlan:
        first, samples, mask = joins[0], mapping.samples, None if subset is None else subset.mask
        whole = self.plan(mapping, seed, first.lap)
        if len(joins) == 1 and (first.front, first.pace) == (0, 0):  # a lap from its beginning to its end
            if mask is None:
                return replace(whole, track=Track.of_lap(first.lap, samples))
            passing = np.flatnonzero(mask[whole.sample_of])
            return replace(narrowed(whole, mask), track=Track.of(passing, first.lap * samples, samples))
        part = np.ones(samples, np.bool_) if mask is None else mask
        drawn = follow(mapping, self.stripe, seed, part, joins, self._laps(mapping, seed))
        return self._with_reads(mapping, drawn, joins, whole.sample_of.dtype)

    def _laps(self, mapping: Mapping, seed: int) -> Callable[[int], Lap]:
        """Return the laps by number. The last lap is cached: sections of an epoch ask for one lap several times."""
        last: dict[int, Lap] = {}

        def lap(number: int) -> Lap:
            if number not in last:
                plan = self.plan(mapping, seed, number)
                assert plan.reads is not None
                last.clear()
                last[number] = lap_of(plan.sample_of, plan.reads, mapping.chunk_size)
            return last[number]

        return lap

    def _with_reads(
        self, mapping: Mapping, drawn: JobDraws, joins: Sequence[Join], dtype: np.dtype[np.generic]
    ) -> EpochPlan:
        """Return the draws as a plan, with the reads that deliver them.

        The samples of a stripe that pass in one lap are one read. Samples that are drawn later, with the rest, are
        another read: else they would fill memory until then.
        """
        per_chunk = -(-mapping.chunk_size // self.stripe)
        chunk, offset = np.divmod(drawn.places, mapping.chunk_size)
        lap = drawn.coordinates // mapping.samples + 1  # 0: the rest
        group_of = np.full(mapping.samples, -1, np.int64)
        group_of[drawn.places] = (lap * mapping.chunks + chunk) * per_chunk + offset // self.stripe
        fronts = np.empty(len(drawn.places), np.int64)
        end = 0
        for join, (first, last) in zip(joins, pairwise([*(j.position for j in joins), len(fronts)]), strict=True):
            start = join.lap * mapping.samples + join.front
            if join.pace:
                fronts[first:last] = start + np.arange(last - first) * join.pace // UNIT
                end = start + (last - first) * join.pace // UNIT
            else:
                fronts[first:last] = drawn.coordinates[first:last]
                end = int(drawn.coordinates[last - 1]) + 1 if last > first else start
        return replace(planned_by(mapping, drawn.places.astype(dtype), group_of), track=Track.of(fronts, 0, end))


@dataclass(frozen=True, slots=True)
class Shared(OrderChoice):
    """For jobs that train on one data set at the same time, with one data server: one read serves all jobs.

    The order is that of `Stripes()` with half of the memory. Jobs follow the fastest job, each at its own speed.

    Args:
        rejoin: Whether a job joins the other jobs again within an epoch if its speed has changed. If it is False, a run
            that is resumed from a state has exactly the order that it would have had without the stop.
    """

    policy: ClassVar[type[SharedPolicy]] = SharedPolicy
    rejoin: bool = True

    def choose_policy(self, setting: Setting) -> SharedPolicy:
        """Return the numbers, those of `Stripes()` among them.

        Half of a small memory is the shuffle buffer. The rest holds what one job has read until the others draw it.
        """
        laps = Stripes().choose_policy(replace(setting, held=setting.held / 2))
        return SharedPolicy(laps.group_chunks, laps.stripe, int(self.rejoin))


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
    mapping: Mapping, stripe: int, seed: int, part: Mask, joins: Sequence[Join], laps: Callable[[int], Lap]
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


def _lead(need: Mask, join: Join, laps: Callable[[int], Lap]) -> JobDraws:
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

    def piece(self, need: Mask) -> JobDraws:
        """Return the draws of the places that the job needs, shape (samples,). Consumes `need`."""
        wanted = int(np.count_nonzero(need))
        self._pass_by(need, wanted)
        rest = self._rest(np.flatnonzero(need), wanted)
        return self._merged(rest, wanted)

    def _pass_by(self, need: Mask, wanted: int) -> None:
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

    def _bag(self, need: Mask, lap: Lap, first: int, wanted: int) -> tuple[int, int]:
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
        if count == 0:
            return some[:0]
        return some[(np.arange(count) * len(some) + self._words.below(len(some))) // count]

    def _take(self, need: Mask, able: Mask, lap: Lap, number: int, stripes: NDArray[np.int64]) -> int:
        """Draw the `able` samples of these stripes as they pass. Return the number of samples."""
        chosen = np.zeros(len(lap.deadline), np.bool_)
        chosen[stripes] = True
        found = np.flatnonzero(able & chosen[lap.stripe_of])
        need[found] = False
        self._passing.append(JobDraws(found, number * len(need) + lap.position_of[found]))
        self._put += len(found)
        return len(found)

    def _rest(self, places: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
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
