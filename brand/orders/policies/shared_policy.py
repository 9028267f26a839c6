"""The numbers of order `shared`: those of `stripes`, and joins.

Jobs with the same data set, seed and numbers draw from one sequence of laps (`following`). A job that is alone
draws what `stripes` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.choice import OrderChoice, Setting
from brand.orders.base.joins import Join
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import narrowed
from brand.orders.base.plan import EpochPlan, Track, planned_by
from brand.orders.base.policy import check_number
from brand.orders.policies.following import UNIT, JobDraws, Lap, follow, lap_of
from brand.orders.policies.lap_policy import LapPolicy
from brand.orders.policies.stripe_policy import Stripes


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
        """Whether a job that has lost the other jobs joins them again within an epoch."""
        return bool(self.rejoin)

    def plan_joined(
        self, mapping: Mapping, seed: int, mask: NDArray[np.bool_] | None, joins: Sequence[Join]
    ) -> EpochPlan:
        """Return the plan of an epoch of a job with these joins."""
        first, samples = joins[0], mapping.samples
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
        """Return the laps by number.

        The last lap is remembered, because sections of an epoch ask for one lap several times.
        """
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

    The order is that of `Stripes()`. Jobs follow the fastest job, each at its own speed.

    Args:
        rejoin: Whether a job joins the other jobs again within an epoch if its speed has changed. If it is False, a run
            that is resumed from a state has exactly the order that it would have had without the stop.
    """

    policy: ClassVar[type[SharedPolicy]] = SharedPolicy
    rejoin: bool = True

    def choose_policy(self, setting: Setting) -> SharedPolicy:
        """Return the numbers, those of `Stripes()` among them."""
        laps = Stripes().choose_policy(setting)
        return SharedPolicy(laps.group_chunks, laps.stripe, int(self.rejoin))
