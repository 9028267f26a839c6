"""The rank of each position of a member, if batches are planned over the mixture, is the rank of its batch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.part import Subset
from brand.orders.base.rank_rule import EpochRanks
from brand.orders.batch_ranks import SampleLengths, digest_of
from brand.orders.batches.batching import BatchLimits
from brand.orders.mixed_batch_ranks import MixedBatchRanks
from brand.orders.mixtures.mixed_order import MixedOrder, seed_of_member
from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from tests.rounds import examples


def member(number: int, size: int) -> Order:
    return Order(f"{number:032x}", size, 4, seed_of_member(5, number), StripePolicy(1, 1))


def rule_of(
    order: MixedOrder, lengths: list[np.ndarray], number: int, batch: int, replicas: int, **limits: Any
) -> MixedBatchRanks:
    by_member = tuple(map(SampleLengths, lengths))
    found = BatchLimits(lengths=digest_of(by_member), **({"window": 12} | limits))
    return MixedBatchRanks(found, by_member, number, order, 1, batch, replicas)


def simple() -> MixedBatchRanks:
    order = MixedOrder.of([member(0, 9), member(1, 5)], 20, 5, (2.0, 1.0))
    return rule_of(order, [np.arange(9), np.arange(5)], 0, 0, 3, size=3)


@pytest.mark.slow
@examples(100)
@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=4),
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(0, 3),
    st.sampled_from([{"size": 3}, {"most": 40}, {"size": 4, "most": 25.5}, {"row": 20, "rows": 2}]),
    st.data(),
)
def test_the_rank_of_a_position_is_the_rank_of_its_batch(
    weights: list[float], samples: int, replicas: int, first: int, limits: dict[str, Any], data: st.DataObject
) -> None:
    """Members of any sizes, of which some samples may be deleted; weights that change; the batches from one on."""
    sizes = data.draw(st.lists(st.integers(2, 30), min_size=len(weights), max_size=len(weights)))
    orders = [member(n, size) for n, size in enumerate(sizes)]
    if data.draw(st.booleans()):
        orders[0] = replace(orders[0], subset=Subset.of(np.arange(sizes[0]) > 0))
    order = MixedOrder.of(orders, samples, 5, weights)
    if data.draw(st.booleans()):
        changed = data.draw(st.lists(st.floats(0, 1), min_size=len(weights), max_size=len(weights)).filter(any))
        order = order.with_weights(changed, *divmod(data.draw(st.integers(1, 3 * samples)), samples))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    lengths = [rng.integers(0, 21, size) for size in sizes]
    made = [rule_of(order, lengths, number, first, replicas, **limits) for number in range(len(sizes))]
    rules = [MixedBatchRanks.from_json(json.loads(json.dumps(rule.to_json()))) for rule in made]
    for rule, own in zip(rules, order.orders, strict=True):
        rule.check_fits(own)
    for epoch, start in ((1, first), (2, 0)):
        by_position = []
        for position in range(samples):
            draw = order.draws(epoch, np.array([position]))
            own = order.orders[int(draw.member[0])]
            assert isinstance(own, Order)
            place = own.plan(int(draw.epoch[0])).sample_of[draw.position]
            by_position.append(int(lengths[int(draw.member[0])][place][0]))
        batches = rules[0].limits.batches(np.array(by_position), order.seed, epoch)
        for number, begin in enumerate(batches.starts.tolist()):
            for position in batches.positions[begin : batches.ends[number]].tolist():
                draw = order.draws(epoch, np.array([position]))
                of, each = int(draw.member[0]), int(draw.epoch[0])
                found = EpochRanks(rules[of], order.orders[of], each).at(draw.position)
                assert found.tolist() == [(number - start) % replicas]


def test_positions_that_are_never_drawn_have_some_rank() -> None:
    """Those before the epoch in which ranks begin, and of a member that gets no weight."""
    orders = [member(0, 40), member(1, 5)]
    lengths = [np.arange(40), np.arange(5)]
    for number, order in enumerate(orders):
        rule = rule_of(MixedOrder.of(orders, 20, 5, (1.0, 0.0)), lengths, number, 0, 2, size=3)
        assert set(rule.ranks_of(order, 0, np.arange(order.samples)).tolist()) == {0, 1}


def test_rules_agree_if_they_name_the_same_ranks_from_now_on() -> None:
    """That of the next epoch does; that of another batch, other weights or another member does not."""
    rule = simple()
    assert rule.agrees_with(replace(rule, epoch=5))
    assert replace(rule, epoch=5).agrees_with(replace(rule, batch=4))
    other_weights = replace(rule, order=rule.order.with_weights((1, 1), 3, 0))
    for other in (replace(rule, batch=4), replace(rule, replicas=2), replace(rule, member=1), other_weights, 5):
        assert not rule.agrees_with(other)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"batch": -1},
        {"replicas": 0},
        {"member": 2},
        {"member": "0"},
        {"lengths": []},
        {"lengths": [{"lengths": "AAAA", "kind": "<i8", "samples": 9}] * 2},
        {"subsets": [[0, "AAAA"]]},
        {"limits": {"window": 1, "lengths": "0" * 32, "size": 3}},
        {"order": {}},
        {"more": 1},
    ],
)
def test_a_wrong_rule_is_refused(change: dict[str, Any]) -> None:
    """Servers read rules from clients and from other servers."""
    rule = simple()
    assert MixedBatchRanks.from_json(rule.to_json()) == rule
    with pytest.raises((ValueError, TypeError, LookupError)):
        MixedBatchRanks.from_json(rule.to_json() | change)


def test_a_rule_of_another_order_or_of_lengths_that_fit_no_batch_is_refused() -> None:
    rule = simple()
    rule.check_fits(member(0, 9))
    with pytest.raises(ValueError, match="member 0 of the mixture has another order"):
        rule.check_fits(member(0, 8))
    with pytest.raises(ValueError, match="lengths from 0 to 8 in batches of at most 7"):
        rule_of(rule.order, [np.arange(9), np.arange(5)], 0, 0, 3, most=7).check_fits(member(0, 9))
    inner = MixedOrder.of([rule.order, member(2, 5)], 20, 5, (1.0, 1.0))
    with pytest.raises(ValueError, match="not of mixtures"):
        rule_of(inner, [np.arange(9), np.arange(5)], 1, 0, 3, size=3)
