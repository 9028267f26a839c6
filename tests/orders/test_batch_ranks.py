"""The rank of each position, if batches are planned from lengths, is the rank of the batch that has it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.part import Subset
from brand.orders.batch_ranks import BatchRanks, SampleLengths
from brand.orders.batches.batching import BatchLimits
from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from tests.rounds import examples


def order_of(samples: int) -> Order:
    return Order("0" * 32, samples, 4, 7, StripePolicy(1, 1))


def rule_of(lengths: np.ndarray, batch: int, replicas: int, **limits: Any) -> BatchRanks:
    found = SampleLengths(lengths)
    return BatchRanks(BatchLimits(lengths=found.digest, **({"window": 12} | limits)), found, 1, batch, replicas)


@pytest.mark.slow
@examples(100)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=90),
    st.integers(1, 5),
    st.integers(0, 4),
    st.sampled_from([{"size": 3}, {"most": 40}, {"size": 4, "most": 25.5}, {"row": 20, "rows": 2}]),
    st.booleans(),
)
def test_ranks_take_batches_in_turn(
    lengths: list[int], replicas: int, first: int, limits: dict[str, Any], floats: bool
) -> None:
    """From the first batch of the epoch that has begun, and of all batches of later epochs."""
    values = np.array(lengths, np.float64 if floats and "row" not in limits else np.int64)
    order = order_of(len(lengths))
    rule = BatchRanks.from_json(json.loads(json.dumps(rule_of(values, first, replicas, **limits).to_json())))
    assert rule == rule_of(values, first, replicas, **limits)
    for epoch, start in ((1, first), (2, 0)):
        batches = rule.limits.batches(values[order.plan(epoch).sample_of], order.seed, epoch)
        found = rule.ranks_of(order, epoch, np.arange(len(lengths)))
        for number, begin in enumerate(batches.starts.tolist()):
            positions = batches.positions[begin : batches.ends[number]]
            assert set(found[positions].tolist()) == {(number - start) % replicas}


def test_rules_agree_if_they_name_the_same_ranks_from_now_on() -> None:
    """That of the next epoch does; that of another batch, or of other lengths, does not."""
    lengths = np.arange(20)
    rule = rule_of(lengths, 0, 2, size=3)
    later = BatchRanks(rule.limits, rule.lengths, 5, 0, 2)
    assert rule.agrees_with(later)
    assert later.agrees_with(rule_of(lengths, 4, 2, size=3))
    for other in (
        rule_of(lengths, 4, 2, size=3),
        rule_of(lengths, 0, 3, size=3),
        rule_of(lengths[::-1], 0, 2, size=3),
        5,
    ):
        assert not rule.agrees_with(other)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"batch": -1},
        {"replicas": 0},
        {"kind": "<u4"},
        {"samples": 19},
        {"samples": 0},
        {"lengths": "AAAA"},
        {"lengths": "no base64"},
        {"lengths": 5},
        {"limits": {"window": 1, "lengths": "0" * 32, "size": 3}},
        {"limits": {"window": 0}},
        {"more": 1},
    ],
)
def test_a_wrong_rule_is_refused(change: dict[str, Any]) -> None:
    """Servers read rules from clients and from other servers."""
    rule = rule_of(np.arange(20), 0, 2, size=3)
    assert BatchRanks.from_json(rule.to_json()) == rule
    with pytest.raises(ValueError, match=r"\S"):
        BatchRanks.from_json(rule.to_json() | change)


def test_lengths_that_are_no_lengths_are_refused() -> None:
    """NaN, and numbers below -1, which stands for samples that are never drawn."""
    for wrong in (np.array([1.0, np.nan]), np.array([3, -2])):
        with pytest.raises(ValueError, match=r"lengths of samples are numbers from 0 on"):
            BatchRanks.from_json(rule_of(wrong, 0, 2, size=3).to_json())
    for lengths, why in (
        ([1, 2], "2 lengths for an order of 5 samples"),
        ([1, 2, 3, 4, 50], "lengths from 1 to 50 in batches of at most 40"),
        ([1, 2, 3, 4, -1], "lengths from -1 to 4"),
    ):
        with pytest.raises(ValueError, match=why):
            rule_of(np.array(lengths), 0, 2, most=40).check_fits(order_of(5))
    mask = np.array([True] * 4 + [False])
    rule_of(np.array([1, 2, 3, 4, -1]), 0, 2, most=40).check_fits(replace(order_of(5), subset=Subset.of(mask)))
