"""`storage`: the samples in the order of the chunks, and on several nodes a chunk of each node in turn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.mapping import Mapping
from brand.orders.base.owners import owner_of_chunk
from brand.orders.base.plan import peak
from brand.orders.order import Order
from brand.orders.policies.storage_order import StoragePolicy, StorageWindows
from tests.orders.models import epochs, mappings, reads_of, seeds, table_of


def order_of(mapping: Mapping, seed: int, stripe: int, nodes: int) -> Order:
    """An order of a data set of these sizes."""
    policy = StoragePolicy(min(mapping.group_chunks, mapping.chunks), stripe, nodes)
    return Order("any", mapping.samples, mapping.chunk_size, seed, policy)


@pytest.mark.slow
@given(mappings(), seeds, epochs, st.data())
def test_places_ascend(mapping: Mapping, seed: int, epoch: int, data: st.DataObject) -> None:
    """Each stripe is read when its first sample is drawn, so that one lies in memory at a time."""
    stripe = data.draw(st.integers(1, mapping.chunk_size))
    plan = order_of(mapping, seed, stripe, 1).plan(epoch)
    assert plan.sample_of.tolist() == list(range(mapping.samples))
    stripes = [
        range(first, min(first + stripe, end, mapping.samples))
        for chunk in range(mapping.chunks)
        for end in [(chunk + 1) * mapping.chunk_size]
        for first in range(chunk * mapping.chunk_size, min(end, mapping.samples), stripe)
    ]
    assert [(read.deadline, read.held) for read in reads_of(plan)] == [(each.start, tuple(each)) for each in stripes]
    assert peak(plan, np.ones(mapping.samples, np.int64)) <= stripe


@pytest.mark.slow
@given(mappings(), st.integers(1, 5), st.data())
def test_chunks_of_nodes_take_turns(mapping: Mapping, nodes: int, data: st.DataObject) -> None:
    """Each node's own chunks ascend, and no node is more than a chunk ahead of one that has chunks left."""
    stripe = data.draw(st.integers(1, mapping.chunk_size))
    order = order_of(mapping, 0, stripe, nodes)
    plan = order.plan(0)
    assert sorted(plan.sample_of.tolist()) == list(range(mapping.samples))
    chunks = [chunk for chunk, _ in itertools.groupby((plan.sample_of // mapping.chunk_size).tolist())]
    assert sorted(chunks) == list(range(mapping.chunks))
    owners = owner_of_chunk(mapping.chunks, order.policy.group_chunks, nodes)
    owned, drawn = np.bincount(owners, minlength=nodes), np.zeros(nodes, np.int64)
    for chunk in chunks:
        drawn[owners[chunk]] += 1
        left = drawn < owned
        assert not left.any() or drawn.max() - drawn[left].min() <= 1
    for node in range(nodes):
        mine = [chunk for chunk in chunks if owners[chunk] == node]
        assert mine == sorted(mine)
    assert order.plan(7).sample_of.tolist() == plan.sample_of.tolist()


@pytest.mark.slow
@given(mappings(), st.integers(1, 3), st.data())
def test_windows_are_parts_of_the_plan(mapping: Mapping, nodes: int, data: st.DataObject) -> None:
    """Any positions, without those before them."""
    stripe = data.draw(st.integers(1, mapping.chunk_size))
    order = order_of(mapping, 0, stripe, nodes)
    plan, table = order.plan(0), table_of(order.plan(0))
    found = StorageWindows(order.mapping, stripe, nodes)
    cuts = data.draw(st.lists(st.integers(0, mapping.samples), max_size=4))
    for first, end in itertools.pairwise(sorted({0, mapping.samples, *cuts})):
        window, due = found.window(first, end), table["deadline"]
        assert window.first == first
        assert window.sample_of.tolist() == plan.sample_of[first:end].tolist()
        assert window.reads is not None
        assert window.reads.tolist() == table[(due >= first) & (due < end)].tolist()


def test_a_state_has_the_numbers() -> None:
    """Nodes and stripes, so that a run on other nodes continues with the same order."""
    order = order_of(Mapping(1000, 16, 2), 7, 4, 3)
    assert Order.from_json(order.to_json()) == order
    with pytest.raises(ValueError, match="a stripe of 17 samples of chunks of 16"):
        order_of(Mapping(1000, 16, 2), 7, 17, 1)
