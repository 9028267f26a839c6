"""The order of a mixture: each member in its own order, whatever the ranks; weights that change; states."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.mixtures.mixed_order import MixedOrder, ranks_of_rounds, seed_of_member
from brand.orders.order import MAX_EPOCH, Order
from brand.orders.policies.stripe_policy import StripePolicy
from brand.testing.shuffling import measure
from tests.rounds import examples

Drawn = tuple[int, int, int]
"""Member, its epoch, and the position in that."""


def order_of(sizes: Sequence[int], weights: Sequence[float], samples: int = 50) -> MixedOrder:
    """A mixture of members with these sizes."""
    orders = tuple(
        Order(f"{number:032x}", size, 4, seed_of_member(5, number), StripePolicy(1, 1))
        for number, size in enumerate(sizes)
    )
    return MixedOrder.of(orders, samples, 5, [*map(float, weights)])


def drawn(order: MixedOrder, epoch: int, positions: Sequence[int]) -> list[Drawn]:
    """What these positions draw."""
    found = order.draws(epoch, np.array(positions, np.int64))
    return list(zip(found.member.tolist(), found.epoch.tolist(), found.position.tolist(), strict=True))


def all_of(order: MixedOrder, epochs: int) -> list[Drawn]:
    """What the first epochs draw."""
    return [each for epoch in range(epochs) for each in drawn(order, epoch, range(order.samples))]


some_orders = st.builds(
    lambda members, samples: order_of([size for size, _ in members], [weight for _, weight in members], samples),
    st.lists(st.tuples(st.integers(1, 30), st.floats(0.001, 1)), min_size=1, max_size=5),
    st.integers(1, 60),
)


@pytest.mark.slow
@given(some_orders, st.integers(1, 5))
def test_each_sample_of_a_member_comes_once_before_any_comes_twice(order: MixedOrder, epochs: int) -> None:
    """Draw number d of a member is position d % n of its epoch d // n, over all epochs of the mixture."""
    come = Counter[int]()
    for member, epoch, position in all_of(order, epochs):
        assert (epoch, position) == divmod(come[member], order.sizes[member])
        come[member] += 1
    assert order.counts(epochs, 0) == tuple(come[member] for member in range(len(order.orders)))


@pytest.mark.slow
@given(some_orders, st.data())
def test_a_run_goes_on_at_every_position_with_any_ranks(order: MixedOrder, data: st.DataObject) -> None:
    """Whatever the number of ranks before and after: together they draw what one rank draws that never stops."""
    whole = all_of(order, 2)
    stop = data.draw(st.integers(0, order.samples))
    found: list[Drawn] = []
    for epoch, start, end in ((0, 0, stop), (0, stop, order.samples), (1, 0, order.samples)):
        ranks = data.draw(st.integers(1, 7))
        rounds = range(-(-(end - start) // ranks))
        turned = ranks_of_rounds(order.seed, epoch, start, rounds, ranks)
        positions = [
            start + number * ranks + (rank + turn) % ranks
            for rank in range(ranks)
            for number, turn in zip(rounds, turned.tolist(), strict=True)
        ]
        assert sorted(positions) == list(range(start, start + len(rounds) * ranks))
        again = MixedOrder.from_json(json.loads(json.dumps(order.to_json())))
        found += drawn(again, epoch, sorted(position for position in positions if position < end))
    assert found == whole


@given(st.integers(0, 2**64), st.integers(0, 9), st.integers(0, 1000), st.integers(0, 40), st.integers(1, 9))
def test_rounds_are_turned_the_same_from_any_round_on(
    seed: int, epoch: int, start: int, first: int, ranks: int
) -> None:
    """A loader asks for some rounds at a time."""
    whole = ranks_of_rounds(seed, epoch, start, range(60), ranks)
    assert ranks_of_rounds(seed, epoch, start, range(first, 60), ranks).tolist() == whole[first:].tolist()
    assert set(whole.tolist()) <= set(range(ranks))


def test_no_rank_always_meets_the_same_member() -> None:
    """Members that come in turn, and as many ranks: each rank gets about half of its samples from each."""
    order = order_of([1000, 1000], [1, 1], 2000)
    members = np.array([member for member, _, _ in all_of(order, 1)])
    assert members[:6].tolist() == [0, 1, 0, 1, 0, 1]
    turned = ranks_of_rounds(order.seed, 0, 0, range(1000), 2)
    for rank in range(2):
        mine = members[np.arange(1000) * 2 + (rank + turned) % 2]
        assert 440 < mine.sum() < 560


@pytest.mark.slow
@examples(60)
@given(some_orders, st.lists(st.tuples(st.integers(0, 150), st.integers(0, 99)), max_size=4), st.data())
def test_weights_change_and_members_go_on(
    order: MixedOrder, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Before a change all is as it was; after it members go on where they were, with the new shares."""
    for at, _ in sorted(changes):
        epoch, position = divmod(at, order.samples)
        before = all_of(order, 4)
        size = len(order.orders)
        weights = data.draw(st.lists(st.floats(0.01, 1), min_size=size, max_size=size))
        changed = order.with_weights(weights, epoch, position)
        assert all_of(changed, 4)[:at] == before[:at]
        assert changed.weights_at(epoch, position) == tuple(weights)
        assert changed.with_weights(weights, epoch, position) == changed
        order = MixedOrder.from_json(json.loads(json.dumps(changed.to_json())))
        assert order == changed
    come = Counter[int]()
    for member, epoch, position in all_of(order, 4):
        assert (epoch, position) == divmod(come[member], order.sizes[member])
        come[member] += 1


def test_a_change_replaces_what_was_to_come_later() -> None:
    """So a curriculum is set in order; what is set again at its own position leaves later weights alone."""
    order = order_of([9, 9], [1, 0]).with_weights([1, 1], 1, 0).with_weights([0, 1], 2, 10)
    assert [stretch.first for stretch in order.pattern.stretches] == [0, 50, 110]
    assert order.with_weights([1, 1], 1, 0) == order
    assert [stretch.first for stretch in order.with_weights([2, 1], 1, 0).pattern.stretches] == [0, 50]
    members = [member for member, _, _ in all_of(order, 3)]
    assert (members[:50], members[50:110].count(0), members[110:]) == ([0] * 50, 30, [1] * 40)


@pytest.mark.slow
def test_a_mixture_mixes_as_well_as_one_data_set() -> None:
    """Members whose shares are their sizes, beside one data set of their sizes together."""
    sizes, policy = (6400, 3200), StripePolicy(16, 8)
    orders = tuple(Order("any", size, 64, seed_of_member(1, n), policy) for n, size in enumerate(sizes))
    order = MixedOrder.of(orders, sum(sizes), 1, (6400.0, 3200.0))
    drawn_ = order.draws(0, np.arange(sum(sizes)))
    places = np.empty(sum(sizes), np.int64)
    for member, first in enumerate((0, sizes[0])):
        here = drawn_.member == member
        places[here] = orders[member].plan(0).sample_of[drawn_.position[here]] + first
    one = measure(Order("any", sum(sizes), 64, 1, policy).plan(0).sample_of, chunk_size=64, batch=256)
    both = measure(places, chunk_size=64, batch=256)
    assert both.batch_collisions < one.batch_collisions + 0.1
    assert both.chunk_distance > one.chunk_distance - 0.03
    assert both.adjacent_distance > one.adjacent_distance - 0.03


def test_golden_draws() -> None:
    """Never change these: they fix the order of mixtures that users resume."""
    order = order_of([5, 3], [0.7, 0.3], 6).with_weights([1, 2], 1, 1)
    assert drawn(order, 1, range(6)) == [(0, 0, 4), (1, 0, 2), (0, 1, 0), (1, 1, 0), (1, 1, 1), (0, 1, 1)]
    assert ranks_of_rounds(5, 1, 6, range(8), 3).tolist() == [0, 1, 1, 0, 2, 2, 2, 1]
    assert seed_of_member(5, 1) == 279504584520852033834476271775897853726


def test_a_member_that_would_begin_too_many_epochs_is_named() -> None:
    """Tickets have 16 bits for an epoch."""
    order = order_of([2, 100], [1, 1], 100)
    last = (MAX_EPOCH + 1) * 2 // 50
    order.draws(last - 2, np.arange(50))
    with pytest.raises(ValueError, match=r"member 0 has 2 samples and would begin its epoch 65,536.*smaller weight"):
        order.draws(last, np.arange(100))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda value: value.pop("seed"), "has members, samples, seed and weights"),
        (lambda value: value.update(more=1), "has members, samples, seed and weights"),
        (lambda value: value.update(members=[]), "another number of members"),
        (lambda value: value.update(members=[{}]), "an order has the fields"),
        (lambda value: value.update(samples=0), "samples"),
        (lambda value: value.update(samples="9"), "samples"),
        (lambda value: value.update(seed=-1), "seed -1"),
        (lambda value: value.update(weights=[]), "begin at 0"),
        (lambda value: value.update(weights=[[1, [1, 1]]]), "begin at 0"),
        (lambda value: value.update(weights=[[0, [1, 1]], [5, [1, 2]], [5, [2, 1]]]), "begin at 0 and ascend"),
        (lambda value: value.update(weights=[[0, [1, 1, 1]]]), "another number of members"),
        (lambda value: value.update(weights=[[0, [1, -1]]]), "weight -1"),
        (lambda value: value.update(weights=[[0, [1, "1"]]]), "weight '1'"),
        (lambda value: value.update(weights=[[0, [1, float("nan")]]]), "weight nan"),
        (lambda value: value.update(weights=[[0]]), "a first position and a number for each member"),
        (lambda value: value.update(weights=[[-1, [1, 1]]]), "first"),
        (lambda value: value.update(weights=[[n, [1, 1]] for n in range(5000)]), "more than 4,095 times"),
    ],
)
def test_what_is_no_order_of_a_mixture(change: Callable[[dict[str, Any]], object], why: str) -> None:
    """A state is distrusted."""
    value = order_of([5, 3], [0.7, 0.3]).to_json()
    change(value)
    with pytest.raises(ValueError, match=why):
        MixedOrder.from_json(value)
