"""The chunk-wise shuffle (`pool`) against a slow model, and beside it single samples in random order (`uniform`)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.mapping import Mapping
from brand.orders.base.placement import choose_kept
from brand.orders.base.plan import peak
from brand.orders.base.policy import Policy
from brand.orders.base.random import RandomStream, permutation
from brand.orders.order import Order
from brand.orders.policies.other_systems import PoolPolicy
from brand.orders.policies.uniform import UniformPolicy
from brand.testing.shuffling import measure
from tests.orders.models import chi_square, epochs, length_of_chunk, mappings, reads_of, seeds


def order_of(mapping: Mapping, policy: Policy, seed: int) -> Order:
    """An order of a data set of these sizes."""
    return Order("any", mapping.samples, mapping.chunk_size, seed, policy)


@pytest.mark.slow
@given(mappings(), st.data(), seeds, epochs)
def test_a_pool_is_shuffled_as_a_whole_and_comes_after_the_one_before(
    mapping: Mapping, data: st.DataObject, seed: int, epoch: int
) -> None:
    """Pool by pool: its chunks are due at its first position, and its samples come in the order of the access."""
    pool = data.draw(st.integers(1, mapping.chunks))
    plan = order_of(mapping, PoolPolicy(1, pool), seed).plan(epoch)
    chunks = permutation(mapping.chunks, seed, RandomStream.POOL, epoch).tolist()
    access = permutation(mapping.samples, seed, RandomStream.ACCESS, epoch).tolist()
    drawn: list[int] = []
    due: list[tuple[int, int, int]] = []
    for first in range(0, len(chunks), pool):
        together = chunks[first : first + pool]
        due += [(len(drawn), chunk, length_of_chunk(mapping, chunk)) for chunk in together]
        drawn += [place for place in access if place // mapping.chunk_size in together]
    assert plan.sample_of.tolist() == drawn
    assert [(read.deadline, read.chunk, read.count) for read in reads_of(plan)] == due
    assert peak(plan, np.ones(mapping.samples, np.int64)) <= pool * mapping.chunk_size


@pytest.mark.parametrize("policy", [PoolPolicy(1, 4), UniformPolicy(1)], ids=repr)
def test_groups_do_not_change_the_order(policy: Policy) -> None:
    """They only say which node owns which chunks."""
    alone, grouped = (
        order_of(Mapping(100, 8, 1), dataclasses.replace(policy, group_chunks=n), 3).plan(2) for n in (1, 5)
    )
    assert alone.sample_of.tolist() == grouped.sample_of.tolist()
    assert reads_of(alone) == reads_of(grouped)


@pytest.mark.parametrize(("policy", "kept"), [(PoolPolicy(1, 2), 32), (UniformPolicy(1), 49)], ids=repr)
def test_memory_keeps_whole_chunks_or_single_samples(policy: Policy, kept: int) -> None:
    """Room for 50 of 104 samples in chunks of eight: what a plan holds beside kept chunks, or beside kept samples, fits
    to the last sample that a unit allows, and it is another choice for every seed.
    """
    assert policy.kept_unit is not None
    found = set()
    for seed in range(4):
        plan = order_of(Mapping(104, 8, 1), policy, seed).plan(0)
        chosen = choose_kept(plan, np.ones(104, np.int64), 50, policy.kept_unit, seed)
        assert chosen.sum() == kept
        of_chunk = chosen.reshape(13, 8).sum(axis=1)
        assert (set(of_chunk.tolist()) <= {0, 8}) == isinstance(policy, PoolPolicy)
        found.add(chosen.tobytes())
    assert len(found) == 4


@pytest.mark.parametrize("pool", [0, -1, 14, "3", True])
def test_a_pool_of_no_chunk_or_of_more_than_there_are_is_refused(pool: int) -> None:
    """100 samples in chunks of eight are 13 chunks."""
    with pytest.raises(ValueError, match="pool"):
        order_of(Mapping(100, 8, 1), PoolPolicy(1, pool), 0)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [2000, 800, 500, 200, 100])
def test_a_pool_mixes_as_badly_as_its_size_says(pool: int) -> None:
    """Two samples of a chunk meet in a batch (N - 1) / (kC - 1) times as often as by chance, and are (kC + 1) / 3 draws
    apart, wherever they lie in it: batches do not cross pools here.
    """
    samples, size = 512_000, 64
    drawn = Order("any", samples, size, 0, PoolPolicy(1, pool)).plan(0).sample_of
    found = measure(drawn, chunk_size=size, batch=256)
    assert found.batch_collisions == pytest.approx((samples - 1) / (pool * size - 1), rel=0.01)
    assert found.chunk_distance == pytest.approx((pool * size + 1) / 3 / samples, rel=0.01)
    assert found.adjacent_distance == pytest.approx((pool * size + 1) / 3 / samples, rel=0.01)


@pytest.mark.slow
def test_a_pool_of_all_chunks_is_a_uniform_shuffle() -> None:
    """All figures are those of chance."""
    drawn = Order("any", 512_000, 64, 0, PoolPolicy(1, 8000)).plan(0).sample_of
    found = measure(drawn, chunk_size=64, batch=256)
    assert found.batch_collisions == pytest.approx(1, abs=4 * found.expected_collisions**-0.5)
    assert found.chunk_distance == pytest.approx(1 / 3, rel=0.01)
    assert found.adjacent_distance == pytest.approx(1 / 3, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [PoolPolicy(1, 1), PoolPolicy(1, 4), UniformPolicy(1)], ids=repr)
def test_two_samples_come_in_either_order_equally_often(policy: Policy) -> None:
    """All 24 orders of four samples, in chunks of two, over 2,400 epochs; whole chunks of two have only eight."""
    order = Order("any", 8, 2, 0, policy)
    found: dict[tuple[int, ...], int] = {}
    for epoch in range(2400):
        first = tuple(place for place in order.plan(epoch).sample_of.tolist() if place < 4)
        found[first] = found.get(first, 0) + 1
    assert len(found) == (8 if policy == PoolPolicy(1, 1) else 24)
    assert chi_square(list(found.values())) < 60  # 4 in 100,000 with 23 degrees of freedom
