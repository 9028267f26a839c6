"""Which samples stay: kept ones against playing the plan sample by sample, tiers against filling them by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.placement import (
    CachedUnits,
    choose_cached,
    choose_kept,
    choose_units,
    place,
    unit_lengths,
    unit_sums,
)
from brand.orders.base.plan import EpochPlan, memory_over_time, peak
from brand.orders.base.policy import Policy
from brand.orders.base.random import RandomStream, permutation
from brand.orders.order import Order
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.stripe_policy import StripePolicy, plan_stripes
from tests.orders.models import masks, model_memory, sized_plans, small_orders, stripes_of_group, table_of
from tests.rounds import examples


def fits(plan: EpochPlan, size_of: list[int], kept: list[bool]) -> int:
    """What is needed at the most when some samples are never released: they, and the most of the others."""
    others = [0 if keep else size for keep, size in zip(kept, size_of, strict=True)]
    return sum(size for keep, size in zip(kept, size_of, strict=True) if keep) + max(model_memory(plan, others))


def stripe_numbers(mapping: Mapping, stripe: int) -> list[list[int]]:
    """The places of each stripe, counting also the stripes that the last chunk does not have."""
    found: list[list[int]] = []
    for chunk in range(mapping.chunks):
        for first in range(0, mapping.chunk_size, stripe):
            end = min(first + stripe, mapping.chunk_size)
            places = range(chunk * mapping.chunk_size + first, chunk * mapping.chunk_size + end)
            found.append([place for place in places if place < mapping.samples])
    return found


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=12), st.lists(st.integers(0, 12), max_size=3))
@examples(60)
def test_tiers_are_filled_in_the_order_of_keys(units: list[tuple[int, int]], rooms: list[int]) -> None:
    """One unit after the other, into the first tier that has room; a tier that a unit did not fit into is full."""
    keys, sizes = (np.array([unit[field] for unit in units], np.int64) for field in (0, 1))
    found = place(keys, sizes, np.array(rooms, np.int64))
    expected, tier, left = [0] * len(units), 0, list(rooms)
    for unit in sorted(range(len(units)), key=lambda unit: units[unit][0]):
        while tier < len(rooms) and left[tier] < units[unit][1]:
            tier += 1
        if tier < len(rooms):
            left[tier] -= units[unit][1]
            expected[unit] = tier + 1
    assert found.tolist() == expected


@pytest.mark.slow
@given(sized_plans(), st.integers(1, 12), st.floats(0, 0.9), st.floats(0, 1), st.integers(0, 5))
def test_the_folder_holds_what_memory_would_keep_next(
    made: tuple[Order, EpochPlan, list[int]], stripe: int, kept_share: float, share: float, seed: int
) -> None:
    """Nothing that is kept, no more than its room, whole stripes, and none behind one that did not fit."""
    order, plan, size_of = made
    sizes, stripe, total = np.array(size_of, np.int64), min(stripe, order.chunk_size), sum(size_of)
    kept = choose_kept(plan, sizes, int(kept_share * total), stripe, seed)
    room, nothing = int(share * total), np.zeros(len(sizes), np.int8)
    cached = choose_cached(order.mapping, np.where(kept, 0, sizes), nothing, np.array([room]), stripe, seed) > 0
    assert not (cached & kept).any()
    assert int(sizes[cached].sum()) <= room
    stripes, left = stripe_numbers(order.mapping, stripe), room
    for number in permutation(len(stripes), seed, RandomStream.KEPT).tolist():
        places = [at for at in stripes[number] if not kept[at] and size_of[at]]
        left -= sum(size_of[at] for at in places)
        assert [bool(cached[at]) for at in places] == [left >= 0] * len(places)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.uint32, np.uint64, np.int64, np.float64])
def test_sizes_of_any_type_keep_the_same(dtype: type) -> None:
    """Also where their sum would not fit the type."""
    plan = Order("any", 1000, 16, 0, StripePolicy(8, 4)).plan(0)
    sizes = np.ones(1000, dtype) if dtype is np.bool_ else np.full(1000, 200, dtype)
    whole = sizes.astype(np.int64)
    room = int(memory_over_time(plan, whole).max()) + int(whole.sum()) // 2
    assert choose_kept(plan, sizes, room, 4, 0).tolist() == choose_kept(plan, whole, room, 4, 0).tolist()


@pytest.mark.slow
@given(sized_plans(), st.integers(1, 12), st.floats(0, 1.1), st.integers(0, 5))
def test_kept_samples_and_the_rest_always_fit(
    made: tuple[Order, EpochPlan, list[int]], stripe: int, share: float, seed: int
) -> None:
    """What is kept and the most of all others at a time are within the room; where even those are not, none is kept."""
    order, plan, size_of = made
    largest, total = max(model_memory(plan, size_of)), sum(size_of)
    room = int(largest * 0.9 + share * (total - largest * 0.9))
    kept = choose_kept(plan, np.array(size_of, np.int64), room, min(stripe, order.chunk_size), seed).tolist()
    assert fits(plan, size_of, kept) <= max(room, largest)
    if room < largest:
        assert not any(size for keep, size in zip(kept, size_of, strict=True) if keep)


@pytest.mark.slow
@given(sized_plans(), st.integers(0, 100), st.integers(1, 12))
def test_all_is_kept_when_all_fits(made: tuple[Order, EpochPlan, list[int]], more: int, stripe: int) -> None:
    """With room for the whole data set, or for more, no sample is ever released."""
    order, plan, size_of = made
    assert choose_kept(plan, np.array(size_of, np.int64), sum(size_of) + more, min(stripe, order.chunk_size), 0).all()


@pytest.mark.slow
@given(small_orders, st.integers(1, 12), st.floats(0, 0.99))
def test_nothing_is_kept_when_the_room_is_too_small(order: Order, unit: int, share: float) -> None:
    """With less than the most that is held at a time, nothing can be kept."""
    plan, sizes = order.plan(0), np.ones(order.samples, np.int64)
    room = int(share * peak(plan, sizes))
    if room < order.samples:
        assert not choose_kept(plan, sizes, room, min(unit, order.chunk_size), 0).any()


@pytest.mark.slow
@given(sized_plans(), st.integers(1, 12), st.floats(0, 1), st.integers(0, 5))
def test_whole_stripes_are_kept_in_the_order_of_the_seed(
    made: tuple[Order, EpochPlan, list[int]], stripe: int, share: float, seed: int
) -> None:
    """The kept samples are those of the first stripes of a permutation, which does not depend on the room."""
    order, plan, size_of = made
    room, stripe = int(share * sum(size_of)), min(stripe, order.chunk_size)
    kept = choose_kept(plan, np.array(size_of, np.int64), room, stripe, seed).tolist()
    stripes = stripe_numbers(order.mapping, stripe)
    in_order = [stripes[number] for number in permutation(len(stripes), seed, RandomStream.KEPT).tolist()]
    count, still = 0, True
    for places in in_order:
        assert len({kept[place] for place in places}) <= 1  # a stripe is kept or not
        if places:
            still = still and kept[places[0]]
            assert kept[places[0]] is still  # none is kept behind one that is not
            count += still
    assert sum(kept) == sum(len(places) for places in [p for p in in_order if p][:count])


@pytest.mark.parametrize("stripe", [1, 3, 4, 10])
@pytest.mark.parametrize("policy", [StripePolicy(40, 4), SlotPolicy(40)], ids=["stripes", "slots"])
def test_some_of_the_stripes_are_kept_those_that_come_first(policy: Policy, stripe: int) -> None:
    """The same where a stripe may not divide the chunk and some are surely kept and some are not."""
    order = Order("any", 1997, 10, 0, policy)
    plan = order.plan(0)
    stripes = stripe_numbers(order.mapping, stripe)
    in_order = [
        stripes[number] for number in permutation(len(stripes), 3, RandomStream.KEPT).tolist() if stripes[number]
    ]
    kept = choose_kept(plan, np.ones(1997, np.int64), 800, stripe, 3).tolist()
    assert 600 < sum(kept) < 800
    found = [[kept[place] for place in places] for places in in_order]
    count = sum(all(of_stripe) for of_stripe in found)
    assert all(all(of_stripe) for of_stripe in found[:count])
    assert not any(any(of_stripe) for of_stripe in found[count:])


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize(("n", "stripe"), [(16, 8), (16, 4), (32, 1)])
def test_the_room_is_used(n: int, stripe: int, share: float) -> None:
    """In a data set of some size all but 1 % of the room is used, with samples of all sizes, too."""
    plan = plan_stripes(Mapping(40_000, 64, n), stripe, 0, 0)
    sizes = 100_000 + bits_of(40_000)
    room = int(share * sizes.sum())
    kept = choose_kept(plan, sizes, room, stripe, 0)
    assert 0.99 * room <= int(sizes[kept].sum()) + peak(plan, np.where(kept, 0, sizes)) <= room


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize(("n", "stripe"), [(16, 8), (16, 4), (32, 1)])
def test_units_are_chosen_without_the_plan(n: int, stripe: int, share: float) -> None:
    """By what the policy says that it holds: all but a tenth of the room is used, and at most a hundredth more."""
    mapping = Mapping(40_000, 64, n)
    plan, sizes = plan_stripes(mapping, stripe, 0, 0), np.ones(40_000, np.int64)
    room, lengths = int(share * 40_000), unit_lengths(mapping, stripe)
    chosen = choose_units(lengths, StripePolicy(n, stripe).held(mapping), room, 0)
    kept = CachedUnits(mapping, stripe, chosen).part()
    assert 0.9 * room <= int(kept.sum()) + peak(plan, np.where(kept, 0, sizes)) <= 1.01 * room
    assert choose_units(lengths, 0, 40_000, 0).all()


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 40), st.data())
def test_units_have_the_samples_of_their_stripe(samples: int, chunk_size: int, unit: int, data: st.DataObject) -> None:
    """Against a list: how long they are, what their samples add up to, and which samples a choice of them has."""
    mapping, unit = Mapping(samples, chunk_size, 1), min(unit, chunk_size)
    stripes = stripe_numbers(mapping, unit)
    size_of = permutation(samples, 1, RandomStream.ACCESS)
    assert unit_lengths(mapping, unit).tolist() == list(map(len, stripes))
    assert unit_sums(mapping, size_of, unit).tolist() == [int(size_of[places].sum()) for places in stripes]
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(stripes), max_size=len(stripes))))
    expected = sorted(place for places, one in zip(stripes, chosen.tolist(), strict=True) if one for place in places)
    mask = data.draw(masks(samples))
    assert unit_lengths(mapping, unit, Subset.of(mask)).tolist() == [int(mask[places].sum()) for places in stripes]
    some = CachedUnits(mapping, unit, chosen, Subset.of(mask)).part()
    assert np.flatnonzero(some).tolist() == [place for place in expected if mask[place]]
    units = CachedUnits(mapping, unit, chosen)
    assert np.flatnonzero(units.part()).tolist() == expected
    first = data.draw(st.integers(0, samples))
    assert np.array_equal(units.part(slice(first, None)), units.part()[first:])
    left = units.without(np.array([0]), chunk_size).part()
    assert np.flatnonzero(left).tolist() == [place for place in expected if place >= chunk_size]


def bits_of(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Random numbers up to 60,000."""
    return permutation(count, 99, RandomStream.ACCESS).astype(np.int64) * 60_000 // count


def test_the_room_is_used_with_every_seed() -> None:
    """With room for half of the data set more than a third of it is kept, whatever the seed."""
    plan, sizes = plan_stripes(Mapping(2000, 64, 8), 16, 0, 0), np.ones(2000, np.int64)
    kept = {seed: int(choose_kept(plan, sizes, 1000, 16, seed).sum()) for seed in range(200)}
    assert {seed: found for seed, found in kept.items() if found < 700} == {}


def test_reads_that_are_left_when_a_part_is_kept() -> None:
    """The design's row for memory of 1/4 as by default: 6.5 reads a chunk and 0.81 of the bytes, within 5 %."""
    mapping = Mapping(512_000, 64, 16)
    plan = plan_stripes(mapping, 8, 0, 0)
    kept = choose_kept(plan, np.ones(512_000, np.int64), 128_000, 8, 0)
    again = ~kept[table_of(plan)["chunk"].astype(np.int64) * 64 + table_of(plan)["first"]]
    assert np.count_nonzero(again) / mapping.chunks == pytest.approx(6.5, rel=0.05)
    assert table_of(plan)["count"][again].sum() / mapping.samples == pytest.approx(0.81, rel=0.05)


def test_the_tables_of_the_model_and_of_the_kept_stripes_are_the_same_stripes() -> None:
    """Kept stripes are those that protocol `stripes` reads."""
    mapping = Mapping(101, 10, 3)
    read = [
        list(range(one.chunk * 10 + one.first, one.chunk * 10 + one.first + one.count))
        for group in range(mapping.groups)
        for one in stripes_of_group(mapping, 4, group)
    ]
    assert [places for places in stripe_numbers(mapping, 4) if places] == read


@pytest.mark.parametrize("room", [-5, 0])
def test_a_node_that_owns_nothing_keeps_nothing_that_takes_room(room: int) -> None:
    """Few chunks for many nodes: all sizes are 0 there, and other runs may have taken more than all of the room."""
    plan = Order("any", 24, 4, 0, StripePolicy(2, 2)).plan(0)
    kept = choose_kept(plan, np.zeros(24, np.int64), room, 2, 0)
    assert kept.all() if room == 0 else not kept.any()
