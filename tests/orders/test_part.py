"""Subsets: a plan without the other samples, and the places of subsets as bits."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.part import Subset
from brand.orders.base.placement import choose_kept
from brand.orders.base.plan import memory_over_time, narrowed, read_of_sample
from brand.orders.order import Order
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.stripe_policy import StripePolicy
from tests.orders.models import chi_square, masks, model_memory, orders, reads_of

MASK = np.array([True, False, False, True, True, False, False, False, False, True])
PART = Subset.of(MASK)


@pytest.mark.slow
@given(orders(), st.integers(0, 3), st.data())
def test_a_plan_of_a_part_is_the_plan_without_the_others(order: Order, epoch: int, data: st.DataObject) -> None:
    """The same order; each sample is in one read, which is due when the first of its samples is drawn, and tight.

    `stripes` has an order of its own for each subset (`test_stripes`).
    """
    if isinstance(order.policy, StripePolicy):
        return
    mask = data.draw(masks(order.samples))
    if order.policy.foreseen is not None:
        with pytest.raises(ValueError, match="several nodes do not fetch a subset"):
            dataclasses.replace(order, subset=Subset.of(mask))
        return
    order = dataclasses.replace(order, subset=Subset.of(mask))
    whole, plan = dataclasses.replace(order, subset=None).plan(epoch), order.plan(epoch)
    assert plan.sample_of.tolist() == [place for place in whole.sample_of.tolist() if mask[place]]
    assert order.draws == len(plan.sample_of) == mask.sum()
    position_of = {place: position for position, place in enumerate(plan.sample_of.tolist())}
    expected = []
    for read in reads_of(whole):
        held = [place for place in sorted(read.held) if mask[place]]
        if held:
            expected.append((min(position_of[place] for place in held), held))
    found = reads_of(plan)
    assert sorted((read.deadline, sorted(read.held)) for read in found) == sorted(expected)
    assert [read.deadline for read in found] == sorted(read.deadline for read in found)
    for read in found:
        first = read.chunk * order.chunk_size + read.first
        assert (first, first + read.count - 1) == (min(read.held), max(read.held))
    sizes = np.arange(order.samples) % 7
    assert memory_over_time(plan, sizes).tolist() == model_memory(plan, sizes.tolist())
    read_of = read_of_sample(plan)
    assert (read_of[~mask] == -1).all()
    assert all(place in found[read_of[place]].held for place in np.flatnonzero(mask).tolist())


@given(orders(), st.data())
def test_the_part_of_all_is_the_plan(order: Order, data: st.DataObject) -> None:
    """The same draws; what a server keeps of a part fits, and is of the part."""
    if order.policy.foreseen is not None:
        return
    everything = np.ones(order.samples, np.bool_)
    plan = order.plan(0)
    assert narrowed(plan, everything).sample_of.tolist() == plan.sample_of.tolist()
    mask = data.draw(masks(order.samples))
    some, sizes = narrowed(plan, mask), np.where(mask, 1 + np.arange(order.samples) % 5, 0)
    room = data.draw(st.integers(0, int(sizes.sum()) - 1))
    kept = choose_kept(some, sizes, room, 4, order.seed)
    rest = memory_over_time(some, np.where(kept, 0, sizes)).max()
    assert not kept.any() or sizes[kept].sum() + rest <= room


def test_the_samples_of_a_part_come_equally_often_at_every_position() -> None:
    """Over 2,000 epochs, two samples of each stripe of four. With 19 degrees of freedom 57 is p = 0.00001."""
    mask = np.arange(40) % 4 % 3 == 1
    order = Order("any", 40, 8, 0, StripePolicy(2, 2), Subset.of(mask))
    counts = np.zeros((order.draws, 40), np.int64)
    for epoch in range(2000):
        counts[np.arange(order.draws), order.plan(epoch).sample_of] += 1
    for place in np.flatnonzero(mask).tolist():
        assert chi_square(counts[:, place]) < 57


def test_all_orders_of_the_groups_of_a_part_are_equally_likely() -> None:
    """Two samples of one group, one of each of two others, over 3,000 epochs. 43 is p = 0.00001 with 11 degrees."""
    order = Order("any", 40, 4, 0, StripePolicy(2, 2), Subset.of(np.isin(np.arange(40), [1, 7, 20, 39])))
    found = Counter(tuple((order.plan(epoch).sample_of // 8).tolist()) for epoch in range(3000))
    assert len(found) == 12
    assert chi_square(list(found.values())) < 43


def test_which_samples_of_a_part_are_in_spans() -> None:
    """Their number and their places, for spans that begin and end anywhere, empty ones too."""
    rng = np.random.default_rng(4)
    for samples in (1, 7, 64, 65, 500, 1024):
        mask = rng.random(samples) < 0.4
        mask[-1] = True
        part, first = Subset.of(mask), rng.integers(0, samples + 1, 200)
        end = np.minimum(first + rng.integers(0, 70, 200), samples)
        expected = [np.flatnonzero(mask[a:b]) + a for a, b in zip(first.tolist(), end.tolist(), strict=True)]
        some = np.arange(samples)[::-2]
        assert part.at(some).tolist() == mask[some].tolist()
        assert part.counts(first, end).tolist() == [len(places) for places in expected]
        span, place = part.members(first, end - first)
        assert span.tolist() == np.repeat(np.arange(200), [len(places) for places in expected]).tolist()
        assert place.tolist() == np.concatenate(expected).tolist()
        for number in range(20):
            assert part.places(first[number], end[number]).tolist() == expected[number].tolist()
            assert part.part(first[number], end[number]).tolist() == mask[first[number] : end[number]].tolist()


def test_bits_and_digest() -> None:
    """What states and messages hold."""
    assert (PART.samples, PART.bits, len(PART)) == (10, bytes([0b00011001, 0b10]), 4)
    assert PART.mask.tolist() == MASK.tolist()
    assert PART.digest == "2b1ce561b8a1e0a7420a42ecef36d905"
    assert PART.to_text() == "GQI="
    assert Subset.from_text(10, "GQI=") == PART
    assert repr(PART) == "Subset(4 of 10, 2b1ce561b8a1e0a7420a42ecef36d905)"


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        (10, "GQ=="),
        (10, "GQIA"),
        (10, "GQY="),
        (10, "AAA="),
        (9, "GQI="),
        (17, "GQI="),
        (10, "G I="),
        (10, None),
        (10, 3),
    ],
)
def test_what_is_no_part_is_refused(samples: int, text: object) -> None:
    """Too few bits, too many, bits behind the last sample, no sample, and what is no text of bits."""
    with pytest.raises(ValueError, match=r"subset|bits|base64|Only|Non-"):
        Subset.from_text(samples, text)


def test_an_order_names_its_part() -> None:
    """By its digest: the part itself has to be at hand, and to be the same one."""
    order = Order("any", 10, 4, 0, StripePolicy(1, 2), PART)
    value = json.loads(json.dumps(order.to_json()))
    assert value["part"] == PART.digest
    assert Order.from_json(value, PART) == order
    other = Subset.of(~MASK)
    for given_part in (None, other):
        with pytest.raises(ValueError, match=f"the order is of subset {PART.digest}, and not of "):
            Order.from_json(value, given_part)
    del value["part"]
    with pytest.raises(ValueError, match=f"the order is of all samples, and not of subset {PART.digest}"):
        Order.from_json(value, PART)
    with pytest.raises(ValueError, match="a subset of 10 samples, and the order has 11"):
        Order("any", 11, 4, 0, StripePolicy(1, 2), PART)


def test_what_nodes_foresee_is_of_all_samples() -> None:
    """An order by which nodes foresee what others ask them for has no part."""
    with pytest.raises(ValueError, match="several nodes do not fetch a subset"):
        Order("any", 10, 4, 0, SlotPolicy(1, nodes=2, ranks=2, window=4, remote=4), PART)
