"""Order `pool`: a shuffle of chunks, then of the samples within a few chunks at a time (DIESEL's chunk-wise shuffle).

Each epoch puts all chunks in random order and cuts this order into pools of `k` chunks; the last pool may be smaller.
The samples of a pool are drawn in uniformly random order, all of them before the first sample of the next pool. A read
is a whole chunk, and all chunks of a pool are due when the pool begins. By then the samples of the previous pool have
been released, so a plan holds at most `k` chunks. A server with more memory reads the next pool while this one is
drawn.

This is a baseline. Two samples of a chunk meet in a batch about `chunks / k` times as often as by chance, as long as a
batch is smaller than a pool.

Wang, Luo and Yan, "DIESEL+", IEEE TPDS 33(5), 2021; Wang et al., "DIESEL", ICPP 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brand.errors import UsageError
from brand.orders.base.dtypes import index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import OrderChoice, Policy, Setting, check_number
from brand.orders.base.random import RandomStream, group_positions, permutation
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.policies.slots import whole_reads


@dataclass(frozen=True)
class PoolPolicy(Policy):
    """The policy that shuffles chunks, and the samples within a few chunks at a time (`pool`).

    Groups determine which node owns which chunks. They change nothing in the order.
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
            raise UsageError(f"Pool(chunks={given!r}): a pool has 1 to {most:,} chunks, as the data set has")
        fit = most if held >= setting.samples else int(held * setting.filled / setting.chunk_size)
        if given > fit:
            smaller = f"a pool of {fit:,} or fewer, or " if fit else ""
            raise UsageError(f"Pool(chunks={given}): memory holds {fit:,} chunks of a pool: give {smaller}more memory=")
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
