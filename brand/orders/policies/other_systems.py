"""Orders of other systems, to compare with: `pool`, `coordl` and `joader`.

`pool` shuffles chunks, then the samples within a few chunks at a time (DIESEL). With `coordl`, jobs draw one order in
lock step (CoorDL). With `joader`, several jobs draw the same sample at the same time as often as uniform draws allow
(JOADER).

Wang, Luo and Yan, "DIESEL+", IEEE TPDS 33(5), 2021; Wang et al., "DIESEL", ICPP 2020.
Mohan, Phanishayee, Raniwala and Chidambaram, "Analyzing and mitigating data stalls in DNN training", PVLDB 14(5), 2021.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from brand.errors import UsageError, counted
from brand.orders.base.dtypes import index_dtype
from brand.orders.base.joins import Join
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, Track
from brand.orders.base.policy import LockStep, OrderChoice, Policy, Setting, check_number
from brand.orders.base.random import RandomStream, group_positions, permutation
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.policies.slots import whole_reads
from brand.orders.policies.stripe_policy import LapPolicy, Stripes
from brand.orders.policies.uniform import UniformPolicy

MOST_JOBS: Final = 255
WINDOW: Final = 2048
ONE_PACE: Final = (
    "jobs in lock step fetch the same samples: leave out subset=, or give order='shared', with which each job goes at "
    "its own pace"
)
"""The reason to refuse an order of a subset."""


@dataclass(frozen=True)
class PoolPolicy(Policy):
    """The policy that shuffles chunks, and the samples within a few chunks at a time (`pool`).

    Groups determine which node owns which chunks. They change nothing in the order.

    Each epoch puts all chunks in random order and cuts this order into pools of `k` chunks; the last pool may be
    smaller. The samples of a pool are drawn in uniformly random order, all of them before the first sample of the next
    pool. A read is a whole chunk, and all chunks of a pool are due when the pool begins. By then the samples of the
    previous pool have been released, so a plan holds at most `k` chunks. A server with more memory reads the next pool
    while this one is drawn. Two samples of a chunk meet in a batch about `chunks / k` times as often as by chance, as
    long as a batch is smaller than a pool.
    """

    name: ClassVar[str] = "pool"
    pool: int
    """`k`: chunks of a pool. The last pool of an epoch may have fewer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("pool", self.pool, 1, MAX_POSITIONS)

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        return plan_pool(mapping, self.pool, seed, epoch)

    def check_fits(self, mapping: Mapping) -> None:
        super().check_fits(mapping)
        if self.pool > mapping.chunks:
            raise ValueError(f"pool={self.pool} of an order of {mapping.chunks} chunks")

    def held(self, mapping: Mapping) -> int:
        return self.pool * mapping.chunk_size

    @property
    def kept_unit(self) -> int:
        """A chunk, whatever its size, because a read reads all of it."""
        return MAX_POSITIONS


@dataclass(frozen=True, slots=True)
class Pool(OrderChoice):
    """A baseline for comparisons: the chunk-wise shuffle of DIESEL (Wang et al., ICPP 2020; DIESEL+, TPDS 2021).

    An epoch puts the chunks in random order, takes `chunks` of them at a time, and shuffles the samples within these.
    Samples of one chunk meet in a batch far more often than by chance. The order depends on the seed and on `chunks`.

    Args:
        chunks: Chunks of a pool. The memory of a node holds all of them, and caches further chunks in the rest.
    """

    policy: ClassVar[type[PoolPolicy]] = PoolPolicy
    baseline: ClassVar[bool] = True
    chunks: int

    def choose_policy(self, setting: Setting) -> PoolPolicy:
        """Return the numbers: the pool fits into memory, and some memory is left for read-ahead.

        If memory were smaller than a pool, samples would be read one by one. That would measure the lack of memory.
        """
        given, most, held = self.chunks, setting.chunks, setting.held
        if not isinstance(given, int) or not 1 <= given <= most:
            raise UsageError(
                f"Pool(chunks={given!r}): a pool has at most {counted(most, 'chunk')}, as the data set has"
            )
        fit = most if held >= setting.samples else int(held * setting.filled / setting.chunk_size)
        if given > fit:
            smaller = f"a pool of {fit:,} or fewer, or " if fit else ""
            raise UsageError(
                f"Pool(chunks={given}): memory holds {counted(fit, 'chunk')} of a pool: give {smaller}more memory="
            )
        return PoolPolicy(setting.owned_chunks, given)


def plan_pool(mapping: Mapping, pool: int, seed: int, epoch: int) -> EpochPlan:
    """Return the plan of one epoch with pools of `pool` chunks. It does not depend on the groups of the mapping."""
    order = permutation(mapping.chunks, seed, RandomStream.POOL, epoch)
    number = np.arange(mapping.chunks, dtype=index_dtype(mapping.chunks)) // pool
    pool_of = np.empty_like(number)
    pool_of[order] = number
    access = permutation(mapping.samples, seed, RandomStream.ACCESS, epoch)
    # A random order of all samples, sorted by pool: the samples of each pool stay in random order.
    sample_of = access[group_positions(pool_of[access // mapping.chunk_size])]
    ends = np.cumsum(mapping.chunk_samples()[order])
    begins = np.concatenate((np.zeros(1, np.int64), ends[pool - 1 :: pool]))
    return EpochPlan(mapping, sample_of, whole_reads(mapping, begins[number], order))


@dataclass(frozen=True)
class CoordlPolicy(LapPolicy):
    """The policy of a fixed number of jobs that draw each lap together.

    The order is that of `stripes`. All jobs draw it at the same time, so each sample is read and decoded once for all
    of them, and memory holds no more than a window of samples for it. The price: no job is faster than the slowest job.
    The jobs of the paper wait for a job that has died; these jobs do not (`brand.node.decide.sharing.job_sharing`).
    """

    name: ClassVar[str] = "coordl"
    jobs: int = 1
    """Jobs that begin together."""
    window: int = WINDOW
    """Samples that a job may be ahead of another job."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("jobs", self.jobs, 1, MOST_JOBS)
        check_number("window", self.window, 1, MAX_POSITIONS)

    @property
    def common(self) -> CoordlPolicy:
        """All numbers, because jobs that wait for each other must agree on when to wait."""
        return self

    @property
    def no_part(self) -> str:
        return ONE_PACE

    @property
    def lock_step(self) -> LockStep:
        return LockStep(self.jobs, self.window)

    def plan_joined(self, mapping: Mapping, seed: int, subset: Subset | None, joins: Sequence[Join]) -> EpochPlan:
        assert subset is None, "an order in lock step has no subset"
        lap = joins[0].lap
        return replace(self.plan(mapping, seed, lap), track=Track.of_lap(lap, mapping.samples))


@dataclass(frozen=True, slots=True)
class CoorDL(OrderChoice):
    """A baseline, to compare with `Shared()`: the coordinated preparation of CoorDL (Mohan et al., PVLDB 14(5), 2021).

    All jobs have the order of `Stripes()` with half of the memory, and go in lock step at the speed of the slowest job,
    on one node or on several connected nodes.

    Args:
        jobs: Jobs that begin together.
        window: Samples that a job may be ahead of another job; at most a quarter of what memory holds.
    """

    policy: ClassVar[type[CoordlPolicy]] = CoordlPolicy
    baseline: ClassVar[bool] = True
    jobs: int
    window: int = WINDOW

    def choose_policy(self, setting: Setting) -> CoordlPolicy:
        """Return the numbers, those of `Stripes()` among them.

        Half of a small memory is the shuffle buffer, and half of the rest is for the distance between the jobs.
        """
        laps = Stripes().choose_policy(replace(setting, held=setting.held / 2))
        window = min(self.window, max(1, int(setting.held / 4)))
        try:
            return CoordlPolicy(laps.group_chunks, laps.stripe, self.jobs, window)
        except ValueError as error:
            raise UsageError(f"CoorDL(...): {error}") from None


@dataclass(frozen=True)
class JoaderPolicy(UniformPolicy):
    """The policy of JOADER's dependent sampling. Groups only determine which samples replace damaged ones.

    Memory caches samples over epochs only if it can hold all; else it is the jobs' cache.

    The next sample is decided while jobs draw (`brand.orders.joader.tree`), from the samples that all of them still
    need. So a plan has no order to follow: it lists the samples of the subset, in the order of `uniform`, and its order
    *grows* (`brand.orders.joader.growing`). Each sample is a read of its own.
    """

    name: ClassVar[str] = "joader"
    grows: ClassVar[bool] = True

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        return replace(super().plan(mapping, seed, epoch), grows=True)

    def plan_joined(self, mapping: Mapping, seed: int, subset: Subset | None, joins: Sequence[Join]) -> EpochPlan:
        return replace(super().plan_joined(mapping, seed, subset, joins), grows=True)

    @property
    def common(self) -> Hashable:
        """The name of the rule: all jobs of one seed draw together, whatever their numbers are."""
        return self.name


@dataclass(frozen=True, slots=True)
class Joader(OrderChoice):
    """A baseline, to compare with `Shared()`: the dependent sampling of JOADER (NeurIPS 2022).

    A uniform shuffle by single samples, on one node or on several connected nodes. Jobs fetch the same sample at the
    same time as often as uniform shuffles allow.
    """

    policy: ClassVar[type[JoaderPolicy]] = JoaderPolicy
    baseline: ClassVar[bool] = True

    def choose_policy(self, setting: Setting) -> JoaderPolicy:
        """Return the policy."""
        return JoaderPolicy(setting.owned_chunks)
