"""All protocols, any sizes: an epoch delivers every sample once, and each was read before."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brand.orders.base import random
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import Policy
from brand.orders.base.random import RandomStream, permutation
from brand.orders.order import Order
from brand.orders.policies import uniform
from brand.orders.policies.other_systems import PoolPolicy
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from tests.orders.models import epochs, length_of_chunk, orders, reads_of, table_of
from tests.rounds import examples

CORNERS = {
    "one sample": (1, 1, 1, 1),
    "one sample of a large chunk": (1, 64, 1, 16),
    "fewer samples than a chunk": (5, 8, 1, 4),
    "fewer samples than a stripe": (3, 16, 1, 8),
    "chunks of one sample, one group": (17, 1, 17, 1),
    "chunks of one sample, groups of one": (17, 1, 1, 1),
    "short last chunk": (61, 8, 4, 4),
    "short last chunk with a short stripe": (59, 8, 4, 4),
    "last group of one sample": (65, 8, 4, 4),
    "last group of one chunk": (72, 8, 4, 2),
    "groups of one chunk": (64, 8, 1, 4),
    "one group of all chunks": (60, 8, 8, 4),
    "stripes that do not divide the chunk": (100, 10, 3, 4),
    "stripes of a sample": (100, 10, 3, 1),
    "stripes of a chunk less one": (100, 10, 3, 9),
    "stripes of a chunk": (100, 10, 3, 10),
}  # fmt: skip
"""Samples, chunk size, chunks a group, stripe."""


def assert_every_sample_is_there(plan: EpochPlan) -> None:
    """Play the plan: at each position its sample lies in memory, and in the end nothing is left."""
    memory: set[int] = set()
    coming = iter(reads_of(plan))
    read = next(coming, None)
    for position, place in enumerate(plan.sample_of.tolist()):
        while read is not None and read.deadline <= position:
            assert not memory & set(read.held)
            memory |= set(read.held)
            read = next(coming, None)
        memory.remove(place)
    assert not memory
    assert read is None


@pytest.mark.slow
@examples(200)
@given(orders(), epochs)
def test_an_epoch_delivers_every_sample_exactly_once(order: Order, epoch: int) -> None:
    """What is drawn at all positions is each place once."""
    assert sorted(order.plan(epoch).sample_of.tolist()) == list(range(order.samples))


@pytest.mark.slow
@examples(200)
@given(orders(), epochs)
def test_every_sample_is_in_memory_when_it_is_drawn(order: Order, epoch: int) -> None:
    """Each draw finds its sample among those that finished reads hold, none is held twice, none is left over."""
    assert_every_sample_is_there(order.plan(epoch))


@pytest.mark.slow
@given(orders(), epochs)
def test_reads_are_inside_their_chunks_and_sorted(order: Order, epoch: int) -> None:
    """A read asks for samples that its chunk has, holds some of them, and is due no earlier than the one before it."""
    plan = order.plan(epoch)
    reads = reads_of(plan)
    assert [read.deadline for read in reads] == sorted(read.deadline for read in reads)
    for number, read in enumerate(reads):
        assert 0 <= read.deadline < order.samples
        assert read.count >= 1
        assert read.first >= 0
        assert read.first + read.count <= length_of_chunk(order.mapping, read.chunk)
        assert read.held
        assert set(read.held) <= set(range(*plan.places_read(number)))


@pytest.mark.parametrize("name", CORNERS)
def test_corner_cases_are_exactly_once_too(name: str) -> None:
    """The sizes where counting goes wrong, three epochs of each."""
    samples, size, n, stripe = CORNERS[name]
    of_chunks = StripePolicy(n, stripe), SlotPolicy(n), SlotPolicy(n, "random"), PoolPolicy(n, n)
    for policy in (*of_chunks, UniformPolicy(n)):
        for epoch in range(3):
            plan = Order("corner", samples, size, 3, policy).plan(epoch)
            assert sorted(plan.sample_of.tolist()) == list(range(samples))
            assert_every_sample_is_there(plan)


@pytest.mark.slow
@given(orders(), epochs)
def test_a_draw_is_answered_from_the_group_that_it_names(order: Order, epoch: int) -> None:
    """The access sequence decides the group of every position, with slots also the slot; pools have no groups."""
    assume(not isinstance(order.policy, PoolPolicy))
    plan, mapping = order.plan(epoch), order.mapping
    access = permutation(order.samples, order.seed, RandomStream.ACCESS, epoch)
    for asked, drawn in zip(access.tolist(), plan.sample_of.tolist(), strict=True):
        group_samples = mapping.chunk_size * mapping.group_chunks
        assert asked // group_samples == drawn // group_samples
        if isinstance(order.policy, SlotPolicy):
            assert asked % mapping.chunk_size == drawn % mapping.chunk_size


@pytest.mark.slow
@given(orders(), epochs)
def test_a_plan_is_made_the_same_every_time(order: Order, epoch: int) -> None:
    """Neither numpy's global random state nor what was planned before changes a plan, and planning leaves it alone."""
    first = order.plan(epoch)
    np.random.seed(1)
    before = np.random.get_state(legacy=False)
    second = order.plan(epoch)
    after = np.random.get_state(legacy=False)
    assert first.sample_of.tolist() == second.sample_of.tolist()
    assert reads_of(first) == reads_of(second)
    assert str(before) == str(after)


@pytest.mark.parametrize("most_sorted", [0, 1 << 16])
@examples(60)
@given(orders(), epochs, st.data())
def test_the_parts_of_an_epoch_are_its_draws(most_sorted: int, order: Order, epoch: int, data: st.DataObject) -> None:
    """In blocks of 16 positions; of a subset, too, where the order has any."""
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=order.samples, max_size=order.samples)))
    if mask.any() and order.policy.no_part is None:
        order = dataclasses.replace(order, subset=Subset.of(mask))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "BLOCK", 16)
        patch.setattr(uniform, "MOST_SORTED", most_sorted)
        parts = list(order.drawn(epoch))
        assert np.concatenate(parts).tolist() == order.plan(epoch).sample_of.tolist()
    if isinstance(order.policy, UniformPolicy):
        assert len(parts) == -(-order.samples // 16)


@pytest.mark.parametrize("policy", [StripePolicy(5, 4), SlotPolicy(5), UniformPolicy(1), PoolPolicy(1, 5)], ids=repr)
def test_seeds_and_epochs_differ(policy: Policy) -> None:
    """Every seed and every epoch has an order of its own, and reads at times of its own."""
    order = Order("any", 200, 8, 0, policy)
    same_low_half = [0, 1, 2, 1 << 64, (1 << 64) + 1, (1 << 128) - 1]
    plans = [dataclasses.replace(order, seed=seed).plan(epoch) for seed in same_low_half for epoch in (0, 1, 2**16 - 1)]
    assert len({tuple(plan.sample_of.tolist()) for plan in plans}) == len(plans)
    assert len({table_of(plan).tobytes() for plan in plans}) == len(plans)


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 64), st.data())
def test_every_chunk_is_read_at_least_once_by_slots_and_once_in_full_by_stripes(
    samples: int, size: int, data: st.DataObject
) -> None:
    """Samples read: all of them once with stripes; with slots no chunk is left out and every read is a whole chunk."""
    n = data.draw(st.integers(1, -(-samples // size)))
    stripes = Order("any", samples, size, 0, StripePolicy(n, data.draw(st.integers(1, size)))).plan(0)
    assert int(table_of(stripes)["count"].sum()) == samples
    slots = Order("any", samples, size, 0, SlotPolicy(n)).plan(0)
    assert set(table_of(slots)["chunk"].tolist()) == set(range(-(-samples // size)))
    assert all(read.count == length_of_chunk(slots.mapping, read.chunk) for read in reads_of(slots))
