"""The rank of each position of a member, found from its number, is the rank that draws it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.rank_rule import EpochRanks
from brand.orders.mixtures.member_ranks import MAX_LEVELS, MemberRanks
from brand.orders.mixtures.mixed_order import MixedOrder, ranks_of_rounds, seed_of_member
from brand.orders.mixtures.shares import Pattern, Stretch
from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from tests.rounds import examples


def member(number: int, size: int) -> Order:
    return Order(f"{number:032x}", size, 4, seed_of_member(5, number), StripePolicy(1, 1))


def rule_of(order: MixedOrder, number: int, first: int, ranks: int) -> MemberRanks:
    return MemberRanks(((number, order.pattern),), order.sizes[number], order.samples, order.seed, first, ranks)


def dealt(order: MixedOrder, first: int, ranks: int, epochs: int) -> np.ndarray:
    """The rank of each position of the sequence from `first` on, one by one, as samplers divide them."""
    found = []
    epoch, start = divmod(first, order.samples)
    for each in range(epoch, epoch + epochs):
        count = order.samples - start
        turned = ranks_of_rounds(order.seed, each, start, range(-(-count // ranks)), ranks)
        found += [(at % ranks - int(turned[at // ranks])) % ranks for at in range(count)]
        start = 0
    return np.array(found)


some_weights = st.lists(st.floats(0.01, 1), min_size=1, max_size=5)


@pytest.mark.slow
@examples(200)
@given(some_weights, st.integers(1, 60), st.integers(1, 7), st.data())
def test_the_rank_of_a_position_is_the_rank_that_draws_it(
    weights: list[float], samples: int, ranks: int, data: st.DataObject
) -> None:
    """Members of any sizes, whose epochs begin and end inside those of the mixture; weights that change; a resume."""
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=len(weights), max_size=len(weights)))
    order = MixedOrder.of([member(n, size) for n, size in enumerate(sizes)], samples, 5, weights)
    if data.draw(st.booleans()):
        changed = data.draw(st.lists(st.floats(0, 1), min_size=len(weights), max_size=len(weights)).filter(any))
        order = order.with_weights(changed, *divmod(data.draw(st.integers(1, 3 * samples)), samples))
    first = data.draw(st.integers(0, 2 * samples))
    expected = dealt(order, first, ranks, 3)
    at = np.arange(first, first + len(expected))
    members, numbers = order.pattern.drawn(at)
    for number, size in enumerate(sizes):
        rule = MemberRanks.from_json(json.loads(json.dumps(rule_of(order, number, first, ranks).to_json())))
        here = members == number
        assert order.pattern.positions(number, numbers[here]).tolist() == at[here].tolist()
        epochs, positions = np.divmod(numbers[here], size)
        for epoch in np.unique(epochs).tolist():
            inside = epochs == epoch
            found = rule.ranks_of(order.orders[number], epoch, positions[inside])
            assert found.tolist() == expected[here][inside].tolist()
            one = EpochRanks(rule, order.orders[number], epoch)
            assert [int(one.at(positions[[n]])[0]) for n in np.flatnonzero(inside)] == found.tolist()


@pytest.mark.slow
@examples(50)
@given(st.integers(1, 40), st.integers(1, 5), st.data())
def test_the_same_for_a_mixture_in_a_mixture(samples: int, ranks: int, data: st.DataObject) -> None:
    """The layers of pairs are the members of a mixture that is a member itself."""
    inner = MixedOrder.of([member(0, 7), member(1, 3)], 10, 4, (7.0, 3.0))
    outer = MixedOrder.of([member(2, 11), inner], samples, 5, (1.0, data.draw(st.floats(0.2, 3))))
    first = data.draw(st.integers(0, 2 * samples))
    expected = dealt(outer, first, ranks, 3)
    members, numbers = outer.pattern.drawn(np.arange(first, first + len(expected)))
    ranks_here = expected[members == 1]
    deep, before = inner.pattern.drawn(numbers[members == 1])
    for number, size in enumerate(inner.sizes):
        levels = (number, inner.pattern), (1, outer.pattern)
        rule = MemberRanks(levels, size, outer.samples, outer.seed, first, ranks)
        epochs, positions = np.divmod(before[deep == number], size)
        found = [
            int(rule.ranks_of(inner.orders[number], e, np.array([p]))[0])
            for e, p in zip(epochs.tolist(), positions, strict=True)
        ]
        assert found == ranks_here[deep == number].tolist()


def test_rules_agree_if_they_name_the_same_ranks_from_now_on() -> None:
    """That of the next epoch of a mixture agrees with the last one; that of a run that went on elsewhere does not."""
    order = MixedOrder.of([member(0, 9), member(1, 5)], 20, 5, (2.0, 1.0))
    rule = rule_of(order, 0, 0, 3)
    assert rule.agrees_with(rule_of(order, 0, 40, 3))
    assert rule_of(order, 0, 40, 3).agrees_with(rule)
    assert rule_of(order, 0, 7, 3).agrees_with(rule_of(order, 0, 20, 3))
    for other in (rule_of(order, 0, 7, 3), rule_of(order, 0, 0, 2), rule_of(order, 1, 0, 3), None):
        assert not rule.agrees_with(other)
    assert not rule.agrees_with(rule_of(order.with_weights((1, 1), 1, 0), 0, 20, 3))


def test_draws_that_never_come_have_some_rank() -> None:
    """A member without a weight from some position on."""
    pattern = Pattern((Stretch(0, (1.0, 1.0)), Stretch(10, (1.0, 0.0))))
    rule = MemberRanks(((1, pattern),), 100, 10, 5, 0, 4)
    ranks = rule.ranks_of(member(1, 100), 0, np.arange(100))
    assert set(ranks.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "change",
    [
        {"draws": 0},
        {"samples": 0},
        {"seed": -1},
        {"first": -1},
        {"replicas": 0},
        {"replicas": 1 << 17},
        {"levels": []},
        {"levels": [[0, [[0, [1.0]]]]] * (MAX_LEVELS + 1)},
        {"levels": [[1, [[0, [1.0]]]]]},
        {"levels": [[0, [[0, [-1.0]]]]]},
        {"levels": [[0, [[3, [1.0]]]]]},
        {"levels": [[0, []]]},
        {"levels": "many"},
        {"more": 1},
    ],
)
def test_a_wrong_rule_is_refused(change: dict[str, object]) -> None:
    """Servers read rules from clients and from other servers."""
    rule = rule_of(MixedOrder.of([member(0, 9)], 20, 5, (2.0,)), 0, 0, 3)
    assert MemberRanks.from_json(rule.to_json()) == replace(rule)
    with pytest.raises(ValueError, match=r"."):
        MemberRanks.from_json(rule.to_json() | change)
