"""What follows from a plan, against playing the plan sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from brand.orders.base.plan import EpochPlan, memory_over_time, peak, read_of_sample
from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from tests.orders.models import model_memory, reads_of, sized_plans, small_orders


@pytest.mark.slow
@given(small_orders)
def test_the_read_of_a_sample_is_the_one_that_holds_it(order: Order) -> None:
    """Look through all reads for the one that holds each place."""
    plan = order.plan(0)
    reads = reads_of(plan)
    expected = [next(k for k, read in enumerate(reads) if place in read.held) for place in range(order.samples)]
    assert read_of_sample(plan).tolist() == expected


@pytest.mark.slow
@given(small_orders)
def test_what_a_read_reads_is_its_run_of_the_chunk(order: Order) -> None:
    """First place and end, from chunk, first and count."""
    plan = order.plan(0)
    for number, read in enumerate(reads_of(plan)):
        first = read.chunk * order.chunk_size + read.first
        assert plan.places_read(number) == (first, first + read.count)


@pytest.mark.slow
@given(small_orders)
def test_what_a_read_holds_is_ascending_and_each_place_is_held_once(order: Order) -> None:
    """All reads together hold every place once; with stripes a read holds all that it reads."""
    plan = order.plan(0)
    reads = reads_of(plan)
    assert all(list(read.held) == sorted(read.held) for read in reads)
    assert sorted(place for read in reads for place in read.held) == list(range(order.samples))
    if isinstance(order.policy, StripePolicy):
        assert all(read.held == tuple(range(*plan.places_read(number))) for number, read in enumerate(reads))


@pytest.mark.slow
@given(sized_plans())
def test_memory_over_time_is_that_of_playing_the_plan(made: tuple[Order, EpochPlan, list[int]]) -> None:
    """At each position the sizes of all samples that were read and not yet drawn, to the byte."""
    _, plan, size_of = made
    expected = model_memory(plan, size_of)
    found = memory_over_time(plan, np.array(size_of, np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == expected
    assert peak(plan, np.array(size_of, np.int64)) == max(expected)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.uint32, np.uint64, np.int64, np.float64])
def test_sizes_may_be_of_any_type(dtype: type) -> None:
    """A column of any type gives the same memory, also where its sum would not fit the type."""
    plan = Order("any", 1000, 16, 0, StripePolicy(8, 4)).plan(0)
    sizes = np.ones(1000, dtype) if dtype is np.bool_ else np.full(1000, 200, dtype)
    expected = memory_over_time(plan, sizes.astype(np.int64))
    assert memory_over_time(plan, sizes).tolist() == expected.tolist()
