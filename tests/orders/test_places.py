"""The places of any positions are those of the whole plan, and only what is around the positions is planned."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.orders import places as places_module
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, PlanWindow
from brand.orders.base.policy import Policy
from brand.orders.order import Order
from brand.orders.places import FIRST, MOST, EpochPlaces
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.storage_order import StoragePolicy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from brand.orders.policies.windows import StripeWindows
from tests.rounds import examples

SAMPLES = 500
POLICIES: list[Policy] = [StripePolicy(5, 4), UniformPolicy(5), StoragePolicy(5, 4), SlotPolicy(5)]
SIZES = [(1, 1, 2), (3, 12, 3), (16, 64, 4), (16, 64, 100)]
"""Positions of the first window and of the largest one, and windows that are kept."""
MADE: list[int] = []
"""Positions of each window and plan that a `CountedPolicy` has made."""


class CountedWindows(StripeWindows):
    """Windows that are counted."""

    def window(self, first: int, end: int) -> PlanWindow:
        MADE.append(end - first)
        return super().window(first, end)

    def whole(self) -> EpochPlan:
        MADE.append(self.draws)
        return super().whole()


@dataclass(frozen=True)
class CountedPolicy(StripePolicy):
    """Stripes whose windows and plans are counted."""

    def windows(self, mapping: Mapping, seed: int, subset: Subset | None, epoch: int) -> CountedWindows:
        return CountedWindows(mapping, self.stripe, seed, epoch, subset)


@pytest.fixture(autouse=True)
def _counted_anew() -> None:
    MADE.clear()


@pytest.fixture(params=SIZES, ids=str)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in zip(("FIRST", "MOST", "KEPT"), request.param, strict=True):
        monkeypatch.setattr(places_module, name, number)


def order_of(policy: Policy, samples: int = SAMPLES, subset: Any = None) -> Order:
    return Order("any", samples, 8 if samples == SAMPLES else 4096, 3, policy, subset)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", [False, True], ids=["all", "subset"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@examples(60)
@given(data=st.data())
def test_any_draws(policy: Policy, part: bool, data: st.DataObject) -> None:
    """In any order, repeated, near each other or not."""
    order = order_of(policy, subset=Subset.of(np.arange(SAMPLES) % 3 > 0) if part else None)
    plan, found = order.plan(2).sample_of, EpochPlaces(order, 2)
    for _ in range(data.draw(st.integers(1, 8))):
        first = data.draw(st.integers(0, order.draws - 1))
        width = data.draw(st.sampled_from((1, 5, 40, order.draws)))
        near = st.integers(first, min(order.draws, first + width) - 1)
        positions = np.array(data.draw(st.lists(near, max_size=12)), np.int64)
        assert found.at(positions).tolist() == plan[positions].tolist()


@pytest.mark.usefixtures("small")
@examples(60)
@given(
    ranks=st.integers(1, 4),
    workers=st.integers(1, 4),
    batch=st.integers(1, 20),
    start=st.integers(0, SAMPLES - 1),
    seed=st.integers(0, 9),
)
def test_ranks_and_workers_draw_an_epoch(ranks: int, workers: int, batch: int, start: int, seed: int) -> None:
    """From any position on; the workers are a few batches apart."""
    order, rng = order_of(POLICIES[0]), random.Random(seed)
    plan, found = order.plan(0).sample_of.tolist(), EpochPlaces(order, 0)
    batches = [
        (number, positions[at : at + batch])
        for positions in (np.arange(start + rank, SAMPLES, ranks) for rank in range(ranks))
        for number, at in enumerate(range(0, len(positions), batch))
    ]
    batches.sort(key=lambda each: each[0] + rng.randrange(workers))
    drawn: dict[int, int] = {}
    for _, positions in batches:
        drawn |= dict(zip(positions.tolist(), found.at(positions).tolist(), strict=True))
    assert drawn == dict(enumerate(plan[start:], start))


@pytest.mark.parametrize("start", [0, 5_000_000, 9_999_000])
def test_a_first_batch_needs_a_small_window(start: int) -> None:
    """The data set has ten million samples. The batch is at the beginning, in the middle or at the end of an epoch."""
    order = order_of(CountedPolicy(16, 64), 10_000_000)
    found = EpochPlaces(order, 0)
    assert found.at(np.arange(start, min(start + 1024, order.draws))).tolist()
    assert len(MADE) <= 2
    assert sum(MADE) <= 3 * FIRST
    assert found.nbytes == 4 * sum(MADE)


def test_no_position_is_made_twice() -> None:
    """By 4 ranks and 8 workers that draw in turns, behind each other by as much as windows are kept; nor all ahead."""
    order = order_of(CountedPolicy(16, 64), 3_000_000)
    found, end = EpochPlaces(order, 0), 2_000_000
    for first in range(0, end, 4 * 1024 * 8):
        for worker in random.Random(first).sample(range(8), 8):
            for rank in range(4):
                at = first + worker * 4 * 1024 + rank
                found.at(np.arange(at, at + 4 * 1024, 4))
    assert end <= sum(MADE) <= end + 2 * MOST
    assert len(MADE) <= end // MOST + 6


@pytest.mark.usefixtures("small")
def test_old_windows_are_forgotten() -> None:
    """Memory does not grow with the epoch, and a forgotten position is planned again."""
    order = order_of(CountedPolicy(5, 4))
    found, kept = EpochPlaces(order, 0), places_module.KEPT * places_module.MOST
    plan = order.plan(0).sample_of
    MADE.clear()
    for first in range(SAMPLES):
        found.at(np.array([first]))
        assert found.nbytes <= plan.itemsize * kept
    assert sum(MADE) == SAMPLES
    assert found.at(np.arange(9)).tolist() == plan[:9].tolist()
    assert kept > SAMPLES or sum(MADE) > SAMPLES


def test_draws_all_over_an_epoch_have_the_whole_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made once, if a draw needs more windows than are kept."""
    monkeypatch.setattr(places_module, "MOST", FIRST)
    order = order_of(CountedPolicy(16, 64), 1_000_000)
    found, rng = EpochPlaces(order, 0), np.random.default_rng(1)
    plan = order.plan(0).sample_of
    MADE.clear()
    for _ in range(5):
        positions = rng.integers(0, order.draws, 1000)
        assert (found.at(positions) == plan[positions]).all()
    assert MADE.count(order.draws) == 1
    assert sum(MADE) <= 2 * order.draws


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("positions", [[-1], [SAMPLES], [3, SAMPLES + 7]], ids=str)
def test_positions_outside_the_epoch(policy: Policy, positions: list[int]) -> None:
    with pytest.raises(IndexError, match=f"of {SAMPLES}"):
        EpochPlaces(order_of(policy), 0).at(np.array(positions))
