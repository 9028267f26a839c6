"""A job that is alone plans as `stripes` do; one that follows reads each of its samples once, when it is first due."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import xxhash
from hypothesis import given
from numpy.typing import NDArray

from brand.orders.base.joins import LEAST_PACE, Join, alone
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, Track, narrowed, read_of_sample
from brand.orders.order import Order
from brand.orders.policies.shared_policy import SharedPolicy, follow, lap_of
from brand.orders.policies.stripe_policy import StripePolicy, plan_stripes
from tests.rounds import examples

DATA_SET = "0" * 32


def order_of(mapping: Mapping, stripe: int, part: NDArray[np.bool_] | None = None, seed: int = 3) -> Order:
    """An order of a job of this data set."""
    policy = SharedPolicy(mapping.group_chunks, stripe)
    chosen = None if part is None else Subset.of(part)
    return Order(DATA_SET, mapping.samples, mapping.chunk_size, seed, policy, chosen)


@st.composite
def data_sets(draw: st.DrawFn) -> tuple[Mapping, int, NDArray[np.bool_] | None]:
    """Sizes with short ends, a stripe, and any part."""
    chunk_size, samples = draw(st.integers(1, 20)), draw(st.integers(1, 300))
    group = draw(st.integers(1, -(-samples // chunk_size)))
    part = np.random.default_rng(draw(st.integers(0, 99))).random(samples) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    some = part if bool(part.any()) and draw(st.booleans()) else None
    return Mapping(samples, chunk_size, group), draw(st.integers(1, chunk_size)), some


def same(one: EpochPlan, other: EpochPlan) -> bool:
    """Whether two plans draw and read the same."""
    assert one.reads is not None
    assert other.reads is not None
    return bool(
        one.sample_of.tolist() == other.sample_of.tolist()
        and one.reads.tolist() == other.reads.tolist()
        and read_of_sample(one).tolist() == read_of_sample(other).tolist()
    )


@given(data_sets(), st.integers(0, 5))
@examples(50)
def test_a_job_alone_plans_as_stripes_do(sizes: tuple[Mapping, int, NDArray[np.bool_] | None], epoch: int) -> None:
    """To the bit: draws, reads and deadlines. A part is the rest of the plan of all, without the others."""
    mapping, stripe, part = sizes
    order = order_of(mapping, stripe, part)
    plain = replace(order, policy=StripePolicy(mapping.group_chunks, stripe), subset=None).plan(epoch)
    expected = plain if part is None else narrowed(plain, part)
    assert same(order.plan(epoch), expected)
    assert same(order.plan(epoch + 1, alone(epoch)), expected)


@given(data_sets(), st.data())
@examples(80)
def test_a_follower_s_reads_bring_each_sample_when_it_is_due(
    sizes: tuple[Mapping, int, NDArray[np.bool_] | None], data: st.DataObject
) -> None:
    """Draws are those of `follow`. Each read spans what it holds, of one chunk, and is due at the first draw of it."""
    mapping, stripe, part = sizes
    order, wanted = order_of(mapping, stripe, part), mapping.samples if part is None else int(part.sum())
    alone_in_it = data.draw(st.booleans())
    positions = [0] if alone_in_it else [0, *sorted(data.draw(st.sets(st.integers(1, wanted), max_size=3)))]
    paces = st.one_of(st.just(0), st.integers(LEAST_PACE, 1 << 13))
    fronts = st.integers(0, mapping.samples - 1)
    joins = [Join(at, data.draw(st.integers(0, 3)), data.draw(fronts), data.draw(paces)) for at in positions]
    plan = order.plan(9, joins)
    every = np.ones(mapping.samples, np.bool_) if part is None else part

    def lap(number: int) -> object:
        whole = plan_stripes(mapping, stripe, order.seed, number)
        assert whole.reads is not None
        return lap_of(whole.sample_of, whole.reads, mapping.chunk_size)

    drawn = follow(mapping, stripe, order.seed, every, joins, lap)  # type: ignore[arg-type]
    assert plan.sample_of.tolist() == drawn.places.tolist()
    assert plan.reads is not None
    position_of = {place: position for position, place in enumerate(plan.sample_of.tolist())}
    held = [plan.places_held(number).tolist() for number in range(plan.read_count)]
    assert sorted(place for places in held for place in places) == np.flatnonzero(every).tolist()
    assert plan.reads["deadline"].tolist() == sorted(plan.reads["deadline"].tolist())
    for number, places in enumerate(held):
        first, end = plan.places_read(number)
        assert (first, end) == (places[0], places[-1] + 1)
        assert len({(place // mapping.chunk_size, place % mapping.chunk_size // stripe) for place in places}) == 1
        first_draw = min(position_of[place] for place in places)
        assert plan.deadline(number) == first_draw or (len(joins) == 1 and plan.deadline(number) < first_draw)
    assert plan.track is not None
    starts = [join.lap * mapping.samples + join.front for join in joins]
    for join, start in zip(joins, starts, strict=True):
        if join.pace and join.position % Track.STEP == 0 and join.position < wanted:
            assert plan.track.at(join.position) == start


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=400), st.integers(0, 500))
def test_a_track_is_right_at_its_steps_and_between_them(fronts: list[int], first: int) -> None:
    """Against the coordinates themselves; between two steps it lies between them."""
    fronts = sorted(fronts)
    track = Track.of(np.array(fronts), first, fronts[-1] + 1)
    for position, front in enumerate(fronts):
        if position % Track.STEP == 0:
            assert track.at(position) == front + first
    found = [track.at(position) for position in range(len(fronts) + 3)]
    assert found == sorted(found)
    assert found[-1] == fronts[-1] + 1 + first


def test_an_order_there_and_back() -> None:
    """JSON of the policy's own fields; jobs with another choice of rejoining share all the same."""
    order = order_of(Mapping(4096, 64, 4), 8)
    value = order.to_json()
    assert value["protocol"] == "shared"
    assert Order.from_json(value) == order
    never = replace(order, policy=SharedPolicy(4, 8, 0))
    assert Order.from_json(never.to_json()) == never
    assert never.policy.common == order.policy.common
    assert (order.policy.rejoins, never.policy.rejoins) == (True, False)
    with pytest.raises(ValueError, match="rejoin=2"):
        SharedPolicy(4, 8, 2)


def test_golden() -> None:
    """The order and the reads of a job that comes late, half as fast, and rejoins."""
    joins = (Join(0, 1, 1500, 2048), Join(2000, 3, 100, 1500))
    plan = order_of(Mapping(4096, 64, 4), 8).plan(0, joins)
    assert plan.reads is not None
    wide = [("deadline", "<i8"), ("chunk", "<i4"), ("first", "<i4"), ("count", "<i4")]
    digest = xxhash.xxh3_64_hexdigest(plan.sample_of.astype("<i8").tobytes() + plan.reads.astype(wide).tobytes())
    assert digest == "cbb424a54692ece9"
