"""`uniform`: every order can come, each equally often, and a plan without a table of reads says what a table would."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.mapping import Mapping
from brand.orders.base.placement import choose_kept
from brand.orders.base.plan import EpochPlan, memory_over_time, peak, read_of_sample
from brand.orders.base.random import RandomStream, permutation
from brand.orders.order import Order
from brand.orders.policies.uniform import UniformPolicy
from brand.testing.shuffling import measure
from tests.orders.models import chi_square, epochs, mappings, reads_of, seeds, table_of


def order_of(mapping: Mapping, seed: int) -> Order:
    """An order of a data set of these sizes."""
    return Order("any", mapping.samples, mapping.chunk_size, seed, UniformPolicy(1))


def with_a_table(plan: EpochPlan) -> EpochPlan:
    """The same plan, with the table of its reads."""
    return dataclasses.replace(plan, reads=table_of(plan))


@pytest.mark.parametrize("samples", [1, 2, 63, 64, 65, 10**5])
def test_an_epoch_is_a_permutation(samples: int) -> None:
    """Where counting goes wrong: around the size of a chunk."""
    for epoch in range(3):
        plan = order_of(Mapping(samples, 64, 1), 1).plan(epoch)
        assert (np.sort(plan.sample_of) == np.arange(samples)).all()
        assert plan.reads is None
        assert plan.read_count == samples


@pytest.mark.slow
@given(mappings(), seeds, epochs)
def test_single_samples_come_in_the_order_of_the_access(mapping: Mapping, seed: int, epoch: int) -> None:
    """Each is read when it is drawn, so that one lies in memory at a time."""
    plan = order_of(mapping, seed).plan(epoch)
    access = permutation(mapping.samples, seed, RandomStream.ACCESS, epoch).tolist()
    assert plan.sample_of.tolist() == access
    assert [(read.deadline, read.held) for read in reads_of(plan)] == [(p, (place,)) for p, place in enumerate(access)]
    assert [read.chunk * mapping.chunk_size + read.first for read in reads_of(plan)] == access
    assert peak(plan, np.ones(mapping.samples, np.int64)) == 1


@pytest.mark.slow
@given(mappings(), seeds, epochs, st.randoms(use_true_random=False), st.data())
def test_a_plan_without_a_table_is_the_plan_with_one(
    mapping: Mapping, seed: int, epoch: int, chance: np.random.Generator, data: st.DataObject
) -> None:
    """What the executor asks of it, memory over time, and what is kept."""
    plan = order_of(mapping, seed).plan(epoch)
    table = with_a_table(plan)
    assert plan.read_count == table.read_count
    for number in range(plan.read_count):
        assert plan.places_read(number) == table.places_read(number)
        assert plan.places_held(number).tolist() == table.places_held(number).tolist()
        assert plan.deadline(number) == table.deadline(number)
    some = np.array(data.draw(st.lists(st.integers(0, mapping.samples - 1))), np.int64)
    assert plan.reads_at(some).tolist() == table.reads_at(some).tolist()
    assert read_of_sample(plan).tolist() == read_of_sample(table).tolist()
    size_of = np.array([chance.randint(0, 9) for _ in range(mapping.samples)], np.uint32)  # type: ignore[attr-defined]
    assert memory_over_time(plan, size_of).tolist() == memory_over_time(table, size_of).tolist()
    room = int(size_of.sum()) // 2
    assert choose_kept(plan, size_of, room, 1, seed).tolist() == choose_kept(table, size_of, room, 1, seed).tolist()


def test_states_of_earlier_versions_name_it_minio() -> None:
    """The order is that of `uniform`, as it was under that name, and is written as `uniform`."""
    stored = {"data_set": "any", "samples": 1000, "chunk_size": 16, "group_chunks": 2, "seed": 7, "protocol": "minio"}
    assert Order.from_json(stored) == Order("any", 1000, 16, 7, UniformPolicy(2))
    assert Order.from_json(stored).to_json() == stored | {"protocol": "uniform"}


@pytest.mark.slow
def test_every_sample_comes_at_every_position_equally_often() -> None:
    """400 epochs of 20 samples in chunks of four: by chi-square, all pairs of sample and position together."""
    order, found = order_of(Mapping(20, 4, 1), 5), np.zeros((20, 20), np.int64)
    for epoch in range(400):
        found[order.plan(epoch).sample_of, np.arange(20)] += 1
    assert chi_square(found.ravel()) == pytest.approx(19 * 19, abs=4 * (2 * 19 * 19) ** 0.5)


@pytest.mark.slow
def test_every_two_samples_follow_each_other_equally_often() -> None:
    """400 epochs of 20 samples: all ordered pairs, those of a chunk and those that lie side by side like any other."""
    order, found = order_of(Mapping(20, 4, 1), 6), np.zeros((20, 20), np.int64)
    for epoch in range(400):
        drawn = order.plan(epoch).sample_of
        found[drawn[:-1], drawn[1:]] += 1
    pairs = found[~np.eye(20, dtype=np.bool_)]
    assert chi_square(pairs) == pytest.approx(379, abs=4 * (2 * 379) ** 0.5)
    of_a_chunk = sum(found[first : first + 4, first : first + 4].sum() for first in range(0, 20, 4))
    assert of_a_chunk == pytest.approx(400 * 19 * 3 / 19, abs=4 * (400 * 3) ** 0.5)


@pytest.mark.slow
def test_its_figures_are_those_of_chance() -> None:
    """Batch collisions, chunk distance and adjacent distance of a large data set: 1.00, 0.333, 0.333."""
    drawn = Order("any", 512_000, 64, 0, UniformPolicy(1)).plan(0).sample_of
    found = measure(drawn, chunk_size=64, batch=256)
    assert found.batch_collisions == pytest.approx(1, abs=4 * found.expected_collisions**-0.5)
    assert found.chunk_distance == pytest.approx(1 / 3, rel=0.01)
    assert found.adjacent_distance == pytest.approx(1 / 3, rel=0.01)
