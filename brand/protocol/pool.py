"""Protocol `pool`: a shuffle of chunks, then of the samples within each few of them (DIESEL's chunk-wise shuffle).

Each epoch puts all chunks in random order and cuts this order into pools of `k` chunks; the last pool may be smaller.
A pool's samples come in uniformly random order, all of them before the first sample of the next pool. A read is a whole
chunk, and all chunks of a pool are due when the pool begins. By then the draws of the pool before have left memory, so
a plan holds `k` chunks at most. A server with more memory reads the next pool while this one is drawn.

This is a baseline. Two samples of a chunk meet in a batch about `chunks / k` times as often as by chance, as long as a
batch is smaller than a pool.

Wang, Luo and Yan, "DIESEL+", IEEE TPDS 33(5), 2021; Wang et al., "DIESEL", ICPP 2020.
"""

from __future__ import annotations

import numpy as np

from brand.protocol.dtypes import index_dtype
from brand.protocol.mapping import Mapping
from brand.protocol.plan import Plan
from brand.protocol.random import Stream, group_positions, permutation
from brand.protocol.slots import whole_reads


def plan_pool(mapping: Mapping, pool: int, seed: int, epoch: int) -> Plan:
    """The plan of one epoch with pools of `pool` chunks. It does not depend on the groups of the mapping."""
    order = permutation(mapping.chunks, seed, Stream.POOL, epoch)
    number = np.arange(mapping.chunks, dtype=index_dtype(mapping.chunks)) // pool
    pool_of = np.empty_like(number)
    pool_of[order] = number
    access = permutation(mapping.samples, seed, Stream.ACCESS, epoch)
    # A random order of all samples, sorted by pool: the samples of each pool stay in random order.
    sample_of = access[group_positions(pool_of[access // mapping.chunk_size])]
    ends = np.cumsum(mapping.chunk_samples()[order])
    begins = np.concatenate((np.zeros(1, np.int64), ends[pool - 1 :: pool]))
    return Plan(mapping, sample_of, whole_reads(mapping, begins[number], order))
