"""Jobs that follow a front draw each sample once, in a uniform order, and what passes is drawn as it passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.orders.base.joins import LEAST_PACE, MOST_PACE, Join
from brand.orders.base.mapping import Mapping
from brand.orders.policies.shared_policy import JobDraws, Lap, follow, lap_of
from brand.orders.policies.stripe_policy import plan_stripes
from tests import places
from tests.rounds import examples

MAPPING, STRIPE = Mapping(4096, 64, 4), 8
EVERY = np.ones(MAPPING.samples, np.bool_)


def laps_of(mapping: Mapping, stripe: int, seed: int) -> Callable[[int], Lap]:
    """The laps of a seed, each made once."""

    @cache
    def lap(number: int) -> Lap:
        plan = plan_stripes(mapping, stripe, seed, number)
        assert plan.reads is not None
        return lap_of(plan.sample_of, plan.reads, mapping.chunk_size)

    return lap


def drawn(joins: list[Join], part: NDArray[np.bool_] = EVERY, seed: int = 3) -> JobDraws:
    """An epoch of a job of 4,096 samples, or of a part of them."""
    return follow(MAPPING, STRIPE, seed, part, joins, laps_of(MAPPING, STRIPE, seed))


@pytest.mark.parametrize("lap", [0, 1, 7])
def test_a_job_alone_draws_what_stripes_draw(lap: int) -> None:
    """To the bit."""
    found = drawn([Join(0, lap, 0, 0)])
    assert found.places.tolist() == plan_stripes(MAPPING, STRIPE, 3, lap).sample_of.tolist()
    assert found.coordinates.tolist() == list(range(lap * 4096, (lap + 1) * 4096))


@st.composite
def epochs(draw: st.DrawFn) -> tuple[Mapping, int, NDArray[np.bool_], list[Join]]:
    """Data sets with short ends, any part of them, and any joins."""
    chunk_size, samples = draw(st.integers(1, 20)), draw(st.integers(1, 300))
    group = draw(st.integers(1, -(-samples // chunk_size)))
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    part = np.random.default_rng(draw(st.integers(0, 99))).random(samples) < share
    positions = [0, *sorted(draw(st.sets(st.integers(1, samples), max_size=4)))]
    paces = st.one_of(st.just(0), st.just(1024), st.integers(LEAST_PACE, 1 << 14))
    joins = [Join(at, draw(st.integers(0, 3)), draw(st.integers(0, samples - 1)), draw(paces)) for at in positions]
    return Mapping(samples, chunk_size, group), draw(st.integers(1, chunk_size)), part, joins


@examples(200)
@given(epochs(), st.integers(0, 9))
def test_each_sample_of_the_part_once(epoch: tuple[Mapping, int, NDArray[np.bool_], list[Join]], seed: int) -> None:
    """Whatever the joins say. What is drawn as it passes has the coordinate at which it passes."""
    mapping, stripe, part, joins = epoch
    laps = laps_of(mapping, stripe, seed)
    joins = [join for join in joins if join.position <= part.sum()]
    found = follow(mapping, stripe, seed, part, joins, laps)
    assert sorted(found.places.tolist()) == np.flatnonzero(part).tolist()
    for place, coordinate in zip(found.places.tolist(), found.coordinates.tolist(), strict=True):
        lap, position = divmod(coordinate, mapping.samples)
        assert coordinate == -1 or laps(lap).position_of[place] == position


@examples(100)
@given(epochs(), st.integers(0, 9))
def test_a_join_changes_nothing_before_it(epoch: tuple[Mapping, int, NDArray[np.bool_], list[Join]], seed: int) -> None:
    """So a server may tell joins one after the other."""
    mapping, stripe, part, joins = epoch
    joins = [join for join in joins if join.position <= part.sum()]
    laps = laps_of(mapping, stripe, seed)
    every = follow(mapping, stripe, seed, part, joins, laps)
    for count in range(1, len(joins)):
        fewer = follow(mapping, stripe, seed, part, joins[:count], laps)
        assert every.places[: joins[count].position].tolist() == fewer.places[: joins[count].position].tolist()


def test_the_bytes_of_an_order() -> None:
    """WARNING: a change here changes what a resumed run draws."""
    part = np.arange(MAPPING.samples) % 3 > 0
    found = drawn([Join(0, 1, 1000, 1024), Join(900, 2, 77, 0), Join(1800, 2, 1500, 2500)], part)
    assert xxhash.xxh3_64_hexdigest(found.places.astype("<i8").tobytes()) == "aba9f1056514c44c"


@pytest.mark.parametrize("late", [0.0, 0.25, 0.5, 0.75])
def test_a_late_job_of_the_same_speed_shares_what_can_be_shared(late: float) -> None:
    """Of two jobs of which one joins `f` of an epoch late, it shares 1 - f (1 - f): the bound of independent epochs."""
    found = drawn([Join(0, 2, int(late * 4096), 1024)])
    assert (found.coordinates >= 0).mean() == pytest.approx(1 - late * (1 - late), abs=0.02)


@pytest.mark.parametrize("pace", [1200, 1463, 1700, 2048, 3072, 4096])
def test_what_a_slow_job_shares(pace: int) -> None:
    """It takes 1 / p of a lap, and in a second one that it only meets in part what it still needs there."""
    p = pace / 1024
    share = min(1.0, 1 / p + (p - 1) * (1 - 1 / p))
    mapping, joins = Mapping(65_536, 64, 16), [Join(0, 2, 700, pace)]
    found = follow(mapping, STRIPE, 3, np.ones(65_536, np.bool_), joins, laps_of(mapping, STRIPE, 3))
    assert (found.coordinates >= 0).mean() == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("join", [Join(0, 2, 2000, 1024), Join(0, 2, 100, 1463), Join(0, 2, 0, 3000)])
def test_a_follower_stays_near_the_front(join: Join) -> None:
    """Until the last sixteenth of its epoch. Then it runs ahead, by what is begun at a time."""
    found = drawn([join])
    front = 2 * 4096 + join.front + np.arange(4096) * join.pace / 1024
    gap = np.abs(front - found.coordinates)[: 4096 * 15 // 16][found.coordinates[: 4096 * 15 // 16] >= 0]
    assert np.percentile(gap, 95) < 0.02 * 4096
    assert gap.max() < 0.15 * 4096


@places.turns("whole")
@pytest.mark.slow
@pytest.mark.parametrize(
    "joins",
    [
        [Join(0, 1, 512, 1024)],
        [Join(0, 1, 17, 2048)],
        [Join(0, 1, 200, 717)],
        [Join(0, 1, 200, 1024), Join(300, 1, 900, 1500), Join(400, 3, 10, 1024)],
    ],
    ids=["late", "slow", "fast", "three joins"],
)
@pytest.mark.parametrize("whole", [True, False], ids=["all", "part"])
def test_positions_are_uniform(joins: list[Join], whole: bool) -> None:
    """Over 300 orders of other seeds; of a part, whatever share of a stripe is in it."""
    mapping, stripe, orders, bins = Mapping(1024, 32, 4), 4, 300, 16
    part = np.ones(1024, np.bool_)
    if not whole:
        part = np.random.default_rng(0).random(1024) < np.where(np.arange(1024) < 512, 0.9, 0.2)
    size = int(part.sum())
    counts = np.zeros((1024, bins), np.int64)
    for seed in range(orders):
        found = follow(mapping, stripe, seed, part, joins, laps_of(mapping, stripe, seed))
        counts[found.places, np.arange(size) * bins // size] += 1
    expected, freedom = orders / bins, size * (bins - 1)
    square = float(((counts[part] - expected) ** 2 / expected).sum())
    assert abs(square - freedom) < 4.5 * math.sqrt(2 * freedom)
    mates = np.bincount(np.arange(1024) // stripe, weights=part)[np.arange(1024) // stripe][part]
    mean = (counts[part] * (np.arange(bins) + 0.5) / bins).sum(axis=1) / orders
    for members in np.unique(mates):
        few = math.sqrt(1 / 12 / orders / np.count_nonzero(mates == members))
        assert abs(mean[mates == members].mean() - 0.5) < max(0.004, 5 * few) + 0.5 / bins / size


@pytest.mark.parametrize(
    "numbers", [(-1, 0, 0, 0), (0, -1, 0, 0), (0, 0, -1, 0), (0, 0, 0, 1), (0, 0, 0, MOST_PACE + 1)]
)
def test_a_join_that_cannot_be_is_refused(numbers: tuple[int, int, int, int]) -> None:
    """It may come from a state or a message."""
    with pytest.raises(ValueError, match=r"Join\("):
        Join(*numbers)
