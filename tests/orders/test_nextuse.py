"""What is worth holding: next uses and counts against looking at each draw, and holding by epoch against plain sets."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base import random as base_random
from brand.orders.base.part import Subset
from brand.orders.base.placement import most_wanted, unit_at, unit_count
from brand.orders.base.random import RandomStream, permutation
from brand.orders.nextuse import FARTHEST, TURNS, Frequency, NextUse, Ranks, next_use
from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from tests.rounds import examples


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are counted in parts of so few positions that they have many."""
    monkeypatch.setattr(base_random, "BLOCK", 7)


@st.composite
def drawn_orders(draw: st.DrawFn) -> tuple[Order, Ranks, int, int]:
    """An order, the ranks of a node, samples of a unit, and the last epoch."""
    samples, chunk = draw(st.integers(1, 200)), draw(st.integers(1, 20))
    stripe = draw(st.sampled_from([0, 1, 3]))
    policy = StripePolicy(1, min(stripe, chunk)) if stripe else UniformPolicy(1)
    chosen = np.array(draw(st.lists(st.booleans(), min_size=samples, max_size=samples)))
    narrow = draw(st.booleans()) and bool(chosen.any())
    subset = Subset.of(chosen) if narrow else None
    order = Order("any", samples, chunk, draw(st.integers(0, 9)), policy, subset)
    replicas = draw(st.integers(1, 6))
    here = draw(st.sets(st.integers(0, replicas - 1), min_size=1))
    return order, Ranks(tuple(sorted(here)), replicas), draw(st.integers(1, chunk)), draw(st.integers(0, 12))


def units_drawn(order: Order, ranks: Ranks, unit: int, epoch: int) -> list[int]:
    """The unit of each draw of these ranks, position by position."""
    sample_of = order.plan(epoch).sample_of.tolist()
    places = [place for position, place in enumerate(sample_of) if position % ranks.replicas in ranks.here]
    per_chunk = -(-order.chunk_size // unit)
    return [place // order.chunk_size * per_chunk + place % order.chunk_size // unit for place in places]


@examples(60)
@given(drawn_orders(), st.integers(0, 12))
def test_the_next_use_is_the_first_epoch_that_draws_a_unit(made: tuple[Order, Ranks, int, int], epoch: int) -> None:
    """Epoch by epoch; units that are not drawn as far ahead as it looks have none."""
    order, ranks, unit, last = made
    ahead = min(FARTHEST, max(TURNS, round(TURNS * ranks.replicas / len(ranks.here))))
    epochs = range(epoch + 1, min(epoch + ahead, last) + 1)
    drawn = [set(units_drawn(order, ranks, unit, each)) for each in epochs]
    table = NextUse(order, ranks, unit, last)
    if epoch:
        table.key(epoch - 1)
    until, again = table.key(epoch)
    for at in range(unit_count(order.mapping, unit)):
        first = next((distance for distance, units in enumerate(drawn, 1) if at in units), None)
        assert bool(again[at]) == (first is not None)
        assert first is None or until[at] == first
    assert not table.foresee(epoch)


@examples(60)
@given(drawn_orders(), st.integers(0, 12))
def test_the_most_frequent_units_come_first(made: tuple[Order, Ranks, int, int], epoch: int) -> None:
    """Counted over all epochs that are left; of equal ones that which is drawn in an earlier epoch."""
    order, ranks, unit, last = made
    count, first = Counter[int](), dict[int, int]()
    for each in range(epoch, max(epoch, last) + 1):
        found = units_drawn(order, ranks, unit, each)
        count.update(found)
        first |= {at: each for at in found if at not in first}
    key, drawn = Frequency(order, ranks, unit, last).key(epoch)
    assert set(np.flatnonzero(drawn).tolist()) == set(count)
    expected = sorted((-count[at], first[at]) for at in count)
    by_key = sorted(count, key=lambda at: int(key[at]))
    assert [(-count[at], first[at]) for at in by_key] == expected


@examples(40)
@given(drawn_orders(), st.integers(0, 60))
def test_what_stays_after_each_epoch_is_beladys_choice(made: tuple[Order, Ranks, int, int], capacity: int) -> None:
    """Of all that was held or drawn, what is drawn again soonest, as many as there is room for: with sets, by hand."""
    order, ranks, unit, _ = made
    units, last = unit_count(order.mapping, unit), 9
    tie = {at: rank for rank, at in enumerate(permutation(units, order.seed, RandomStream.KEPT).tolist())}
    table, held, model = NextUse(order, ranks, unit, last), np.zeros(units, np.bool_), set[int]()
    for epoch in range(last + 1):
        now = set(units_drawn(order, ranks, unit, epoch))
        until, again = table.key(epoch)
        here = held.copy()
        here[list(now)] = True
        held = most_wanted(until, here & again, np.ones(units, np.int64), np.array([capacity]), order.seed) > 0
        later = {each: set(units_drawn(order, ranks, unit, each)) for each in range(epoch + 1, last + 1)}
        soonest = {at: each for each in reversed(later) for at in later[each]}
        model = set(
            sorted((at for at in model | now if at in soonest), key=lambda at: (soonest[at], tie[at]))[:capacity]
        )
        assert set(np.flatnonzero(held).tolist()) == model


def test_the_ranks_of_all_nodes_draw_all_places_once() -> None:
    """From any start; each rank in the order of its positions."""
    sample_of = permutation(103, 1, RandomStream.ACCESS)
    parts = [Ranks((0, 3), 4), Ranks((1,), 4), Ranks((2,), 4)]
    found = np.concatenate([places for ranks in parts for places in ranks.places(sample_of, 7)])
    assert sorted(found.tolist()) == sorted(sample_of[7:].tolist())
    assert Ranks((2,), 4).places(sample_of, 7)[0].tolist() == sample_of[9::4].tolist()
    assert [ranks.share for ranks in parts] == [0.5, 0.25, 0.25]
    assert not Ranks((1,), 4).all
    assert Ranks((0, 1), 2).all


def test_a_unit_that_is_never_drawn_has_a_distance_of_its_own() -> None:
    """One more than there are epochs, also where there is none."""
    bits = [np.packbits(np.array(each, np.bool_)) for each in ([0, 1, 0], [1, 1, 0])]
    assert next_use(bits, 3).tolist() == [2, 1, 3]
    assert next_use([], 3).tolist() == [1, 1, 1]


@pytest.mark.parametrize("unit", [1, 3, 8])
def test_units_do_not_cross_chunks(unit: int) -> None:
    """The last unit of a chunk may be short."""
    mapping = Order("any", 30, 8, 0, UniformPolicy(1)).mapping
    found = unit_at(mapping, unit, np.arange(30)).tolist()
    expected = [place // 8 * -(-8 // unit) + place % 8 // unit for place in range(30)]
    assert found == expected
    assert max(found) < unit_count(mapping, unit)
