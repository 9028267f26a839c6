"""`uniform`: samples come in any order, and windows and a plan without a table of reads say what a table would."""

from __future__ import annotations

import dataclasses
import itertools
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.mapping import Mapping
from brand.orders.base.placement import choose_kept
from brand.orders.base.plan import EpochPlan, memory_over_time, peak, read_of_sample
from brand.orders.base.random import RandomStream, permutation
from brand.orders.order import Order, renewed
from brand.orders.policies import uniform
from brand.orders.policies.uniform import MOST_SORTED, UniformPolicy, UniformWindows
from brand.testing.shuffling import measure, uniformity
from tests.orders.models import chi_square, epochs, mappings, reads_of, seeds, table_of


def order_of(mapping: Mapping, seed: int) -> Order:
    """An order of a data set of these sizes."""
    return Order("any", mapping.samples, mapping.chunk_size, seed, UniformPolicy(1))


def with_a_table(plan: EpochPlan) -> EpochPlan:
    """The same plan, with the table of its reads."""
    return dataclasses.replace(plan, reads=table_of(plan))


@pytest.fixture(params=[0, MOST_SORTED], ids=["network", "sorted"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small epochs by both ways that the order has."""
    monkeypatch.setattr(uniform, "MOST_SORTED", request.param)


@pytest.mark.parametrize("samples", [1, 2, 63, 64, 65, 10**5, MOST_SORTED, MOST_SORTED + 1])
def test_an_epoch_is_a_permutation(samples: int) -> None:
    """Where counting goes wrong: around the size of a chunk, and the most samples that are sorted."""
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


def check(found: UniformWindows, plan: EpochPlan, first: int, end: int) -> None:
    """A window has the draws of the plan there, and knows where they are."""
    window = found.window(first, end)
    assert window.first == first
    assert window.sample_of.dtype == plan.sample_of.dtype
    assert window.sample_of.tolist() == plan.sample_of[first:end].tolist()
    assert window.reads is None
    assert found.reads_before(first) == first
    assert found.order.positions(window.sample_of).tolist() == list(range(first, end))


@pytest.mark.usefixtures("either")
@given(mappings(), seeds, epochs, st.randoms(use_true_random=False))
def test_windows_are_parts_of_the_plan(mapping: Mapping, seed: int, epoch: int, rng: random.Random) -> None:
    """In any order; and any places have the positions at which the plan draws them."""
    plan, found = order_of(mapping, seed).plan(epoch), UniformWindows(mapping, seed, epoch)
    assert sorted(plan.sample_of.tolist()) == list(range(mapping.samples))
    cuts = sorted({0, mapping.samples, *(rng.randint(0, mapping.samples) for _ in range(3))})
    pieces = list(itertools.pairwise(cuts))
    rng.shuffle(pieces)
    for first, end in [*pieces, (0, 0)]:
        check(found, plan, first, end)
    some = np.array([rng.randrange(mapping.samples) for _ in range(9)])
    assert plan.sample_of[found.order.positions(some)].tolist() == some.tolist()
    assert found.order.numbers(some).tolist() == plan.sample_of[some].tolist()


def test_windows_of_a_large_epoch_are_parts_of_its_plan() -> None:
    """Of a million samples, more than a block of positions at a time."""
    mapping = Mapping(1_000_003, 64, 16)
    plan, found = order_of(mapping, 3).plan(7), UniformWindows(mapping, 3, 7)
    for first, end in [(0, 1), (123_456, 423_456), (999_000, 1_000_003), (0, 1_000_003)]:
        check(found, plan, first, end)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("wrong", [-1, 100, 1 << 40])
def test_there_is_nothing_outside_an_epoch(wrong: int) -> None:
    """No position wraps around, and none of the cells behind the last sample is one."""
    found = UniformWindows(Mapping(100, 8, 1), 0, 0)
    for ask in (found.order.numbers, found.order.positions):
        with pytest.raises(ValueError, match="of 100 samples"):
            ask(np.array([5, wrong, 7]))


def test_a_window_of_a_billion_takes_memory_for_a_window() -> None:
    """And two megabytes for the network."""
    tracemalloc.start()
    found = UniformWindows(Mapping(1_000_000_000, 8192, 16), 0, 1)
    window = found.window(500_000_000, 500_004_096)
    assert found.order.positions(window.sample_of[-5:]).tolist() == list(range(500_004_091, 500_004_096))
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


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
    found = Order.from_json(renewed(stored, epoch=0, begun=False))
    assert found == Order("any", 1000, 16, 7, UniformPolicy(2))
    assert found.to_json() == stored | {"protocol": "uniform", "version": 2}


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


@pytest.mark.slow
def test_an_epoch_of_a_network_tells_nothing_about_the_next() -> None:
    """A sample, and a block of samples, comes in the same part of several epochs as often as by chance."""
    pytest.importorskip("scipy")
    order = Order("any", 100_000, 64, 0, UniformPolicy(1))
    found = uniformity(order.plan(epoch).sample_of for epoch in range(12))
    assert found.repeats.p > 0.01
    assert found.drift.p > 0.01


@pytest.mark.slow
def test_steps_of_a_network_are_those_of_chance() -> None:
    """From a position to one near it, and from a place to one near it: rows of a grid have 266 samples."""
    samples = 70_000
    share = np.bincount(np.arange(1, samples) * 256 // samples) / (samples - 1)
    order, found = Order("any", samples, 64, 5, UniformPolicy(1)), np.zeros((2, 4, 256))
    for epoch in range(100):
        drawn = order.plan(epoch).sample_of.astype(np.int64)
        for number, each in enumerate((drawn, np.argsort(drawn))):
            for at, step in enumerate((1, 2, 265, 266)):
                found[number, at] += np.bincount((each[step:] - each[:-step]) % samples * 256 // samples, minlength=256)
    expected = found.sum(axis=-1, keepdims=True) * share
    distances = ((found - expected) ** 2 / expected).sum(axis=-1)
    assert distances.max() < 255 + 4 * (2 * 255) ** 0.5
