"""Weighted epochs: how often each sample is drawn, where its copies are, and subsets that change with each epoch."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brand.node.wire.messages import longest_order, order_facts, unpack_order
from brand.orders.base.part import ONE, RandomSubset, Subset
from brand.orders.mixtures.mixed_order import MixedOrder, numbered_seed
from brand.orders.mixtures.shares import MAX_MEMBERS
from brand.orders.mixtures.weights import MAX_ORDERS, MAX_TIMES, expectations, members_of
from brand.orders.order import Order
from brand.orders.policies.shared_policy import SharedPolicy
from brand.orders.policies.stripe_policy import StripePolicy
from tests.orders.models import chi_square

NEAR = Fraction(1, 1 << 20)
"""An expectation of a few samples is rounded by less than this."""
GOLDEN = [
    [2, 9, 10, 11, 13, 14, 15, 16, 18, 19],
    [2, 4, 7, 8, 9, 13, 14, 17, 18, 19],
    [1, 2, 3, 7, 8, 13, 15, 17, 18, 19],
]
DIGEST = "63221e6ac4a3e28b32f04463335af10e"
HALVES = RandomSubset.of(np.full(6, ONE // 2, np.uint32))


def drawn(weights: list[float], draws: int, seed: int, epoch: int) -> list[int]:
    """How often an epoch draws each sample."""
    found = np.zeros(len(weights), np.int64)
    for member in members_of(expectations(np.array(weights, np.float64), draws)):
        part = member.samples
        mask = part.mask if isinstance(part, Subset) else part.of_epoch(seed, epoch).mask
        found += member.times * mask
    return found.tolist()


@settings(max_examples=500)
@given(
    st.lists(st.one_of(st.integers(0, 9), st.floats(0, 1e9, allow_subnormal=False)), min_size=1, max_size=60),
    st.integers(1, 300),
    st.integers(0, 1 << 64),
    st.integers(0, 9),
)
@example([1.0] * 7, 7, 0, 0)
@example([1.0, 2.0, 4.0], 7 * 64, 0, 0)
@example([0.1] * 10, 3, 0, 0)
@example([1e-300, 1.0], 5, 0, 0)
def test_each_sample_is_drawn_its_expectation_rounded_up_or_down(
    weights: list[float], draws: int, seed: int, epoch: int
) -> None:
    """And all of them together exactly as often as the epoch is long, whatever the weights."""
    if not any(weights):
        return
    expected = [draws * Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    found = drawn(weights, draws, seed, epoch)
    assert sum(found) == draws
    for count, exactly in zip(found, expected, strict=True):
        assert floor(exactly - NEAR) <= count <= ceil(exactly + NEAR)
        if exactly.denominator == 1:
            assert count == exactly


def test_expectations_are_exact() -> None:
    """Whole numbers stay whole, and the sum is the length of the epoch, in units of 2 ** -32."""
    assert expectations(np.array([1.0, 2.0, 0.0, 3.0]), 12).tolist() == [2 * ONE, 4 * ONE, 0, 6 * ONE]
    assert expectations(np.array([1.0, 1.0]), 3).tolist() == [3 * ONE // 2] * 2
    assert sum(expectations(np.array([1.0, 1.0, 1.0]), 1).tolist()) == ONE
    rng = np.random.default_rng(1)
    for samples in (1, 2, 3, 1000, 100_003):
        for draws in (1, samples, 3 * samples + 1):
            weights = rng.pareto(1.0, samples) + 1e-3
            if draws * weights.max() / weights.sum() < MAX_TIMES:
                assert int(expectations(weights, draws).sum()) == draws * ONE


def test_the_orders_of_an_epoch() -> None:
    """An order for each bit of the whole numbers, and one for the fractions."""
    found = members_of(np.array([5 * ONE, ONE + ONE // 2, 0, 6 * ONE, ONE // 2], np.uint64))
    assert [(member.times, member.draws) for member in found] == [(1, 2), (2, 2), (4, 8), (1, 1)]
    first, second, third, random = (member.samples for member in found)
    assert isinstance(first, Subset)
    assert isinstance(second, Subset)
    assert isinstance(third, Subset)
    assert isinstance(random, RandomSubset)
    assert first.places(0, 5).tolist() == [0, 1]
    assert second.places(0, 5).tolist() == [3]
    assert third.places(0, 5).tolist() == [0, 3]
    assert random.fractions.tolist() == [0, ONE // 2, 0, 0, ONE // 2]
    many = members_of(np.array([MAX_TIMES * ONE, (MAX_TIMES - 1) * ONE + 1, 2 * ONE - 1], np.uint64))
    assert Counter(member.times for member in many) == {1: 2, 2: 1, 4: 1, 8: 1, 16: 1, 32: 1, 64: 127}
    assert len(many) <= MAX_ORDERS <= MAX_MEMBERS
    assert sum(member.draws for member in many) == 2 * MAX_TIMES + 1


@pytest.mark.parametrize(
    ("weights", "draws", "what"),
    [
        ([1.0, float("nan")], 2, "weights are finite numbers"),
        ([float("inf"), 1.0], 2, "weights are finite numbers"),
        ([1.0, 0.0, -2.0], 2, "0 or more"),
        ([0.0, 0.0], 2, "one of them is above 0"),
        ([1.0, 9.0], 5000, "fetched more than 4,096 times an epoch"),
    ],
)
def test_weights_that_no_epoch_can_honour(weights: list[float], draws: int, what: str) -> None:
    """The sampler names the sample (`tests/torch/test_weights.py`)."""
    with pytest.raises(ValueError, match=what):
        expectations(np.array(weights), draws)
    assert drawn([1.0], MAX_TIMES, 0, 0) == [MAX_TIMES]


def test_each_sample_of_a_random_subset_has_its_probability() -> None:
    """Over 4,000 epochs; equal fractions are drawn alike, whatever is next to them. 5 standard deviations."""
    fractions = np.array([0.5, 0.25, 0.5, 0.125, 0.5, 0.875, 0.25] * 5 + [0.0] * 3)
    of = RandomSubset.of((fractions * ONE).astype(np.uint32))
    epochs = 4000
    counts = sum(of.chosen(7, epoch).astype(np.int64) for epoch in range(epochs))
    assert isinstance(counts, np.ndarray)
    away = np.abs(counts - epochs * fractions) / np.sqrt(epochs * fractions * (1 - fractions) + 1e-9)
    assert away.max() < 5
    assert not counts[-3:].any()


def test_samples_of_one_fraction_are_a_random_choice() -> None:
    """Three of six, each of the 20 ways equally often: 57 is p = 0.00001 with 19 degrees of freedom."""
    found = Counter(tuple(np.flatnonzero(HALVES.chosen(0, epoch)).tolist()) for epoch in range(4000))
    assert len(found) == 20
    assert chi_square(list(found.values())) < 57


def test_a_class_is_drawn_as_often_as_it_should_be() -> None:
    """Balanced classes: each sample of a class has one fraction, so the class is drawn its share, rounded."""
    sizes = np.array([40, 100, 300])
    weights = np.repeat(1 / sizes, sizes)
    for epoch in range(20):
        counts = np.array(drawn(weights.tolist(), 99, 3, epoch))
        classes = np.add.reduceat(counts, [0, 40, 140])
        assert np.abs(classes - 33).max() <= 1


def test_golden_random_subset() -> None:
    """Runs that are resumed draw these samples. Never change them."""
    of = RandomSubset.of(np.array([ONE // 4, ONE // 2, 3 * (ONE // 4), ONE // 2] * 5, np.uint32))
    assert [np.flatnonzero(of.chosen(5, epoch)).tolist() for epoch in range(3)] == GOLDEN
    assert of.digest == DIGEST
    assert len(of) == 10
    assert repr(of) == f"RandomSubset(10 of 20, {DIGEST})"


def test_what_messages_hold() -> None:
    """Fractions as a text, an order with them, and what is none."""
    rng = np.random.default_rng(2)
    fractions = rng.integers(1, ONE - 1, 1000, dtype=np.uint32)
    fractions[0] = (-int(fractions[1:].sum(dtype=np.uint64))) % ONE
    of = RandomSubset.of(fractions)
    assert RandomSubset.from_text(1000, of.to_text()) == of
    order = Order("any", 1000, 10, 3, StripePolicy(5, 2), of, times=1)
    message = json.dumps(order_facts(order))
    assert len(message) < longest_order(1000)
    assert unpack_order(json.loads(message)) == order
    assert order.draws == len(of)
    assert order.to_json()["times"] == 1
    with pytest.raises(ValueError, match=f"the order is of subset {of.digest}, and not of all samples"):
        Order.from_json(order.to_json(), None)
    for text in (of.to_text()[:-8], "", None, HALVES.to_text(), "GQI="):
        with pytest.raises(ValueError, match=r"fraction|base64|Only|Incorrect"):
            RandomSubset.from_text(1000, text)
    with pytest.raises(ValueError, match="a whole number as their sum"):
        RandomSubset.of(np.array([ONE // 2, 5], np.uint32))


def test_an_epoch_of_an_order_draws_its_own_subset() -> None:
    """Once each, in windows as in a plan; other samples in the next epoch."""
    order = Order("any", 6, 3, 1, StripePolicy(1, 2), HALVES, times=1)
    epochs = [order.plan(epoch).sample_of.tolist() for epoch in range(8)]
    for epoch, places in enumerate(epochs):
        assert sorted(places) == np.flatnonzero(HALVES.chosen(1, epoch)).tolist()
        windows = order.windows(epoch)
        assert windows is not None
        assert [int(windows.window(at, at + 1).sample_of[0]) for at in range(3)] == places
        assert order.places(epoch, 0, 3).tolist() == places
    assert len({tuple(sorted(places)) for places in epochs}) > 1
    ever = order.ever
    assert ever is not None
    assert ever.mask.all()


def test_jobs_that_share_have_no_weights() -> None:
    """Their laps are of all samples."""
    order = Order("any", 6, 3, 1, SharedPolicy(1, 2))
    for wrong in ({"times": 1}, {"subset": HALVES}):
        with pytest.raises(ValueError, match="jobs that share reads have no weights"):
            dataclasses.replace(order, **wrong)


@pytest.mark.slow
def test_each_sample_comes_equally_often_in_every_third() -> None:
    """Of 180 draws, in 300 epochs. A mixture has its members at fixed positions. 23 is p = 0.00001 with two degrees."""
    weights, samples, draws = np.repeat([0.75, 1.0, 2.5, 2.0], [40, 30, 40, 10]), 120, 180
    members = members_of(expectations(weights, draws))
    orders = tuple(
        Order("any", samples, 4, numbered_seed(3, n), StripePolicy(1, 2), member.samples, times=member.times)
        for n, member in enumerate(members)
    )
    mixed = MixedOrder.of(orders, draws, 3, [float(member.draws) for member in members])
    counts, epochs = np.zeros((samples, draws), np.int64), 300
    for epoch in range(epochs):
        found = mixed.draws(epoch, np.arange(draws))
        drawn_of = list(zip(found.member.tolist(), found.epoch.tolist(), found.position.tolist(), strict=True))
        plans = {(n, of): orders[n].plan(of).sample_of for n, of in {(n, of) for n, of, _ in drawn_of}}
        places = [int(plans[n, of][at]) for n, of, at in drawn_of]
        np.add.at(counts, (np.array(places), np.arange(draws)), 1)
    assert np.abs(counts.sum(axis=1) / epochs - draws * weights / weights.sum()).max() < 0.15
    assert counts.sum() == epochs * draws
    for sample in range(samples):
        assert chi_square(counts[sample].reshape(3, 60).sum(axis=1).tolist()) < 23
