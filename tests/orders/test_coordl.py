"""A lap of jobs in lock step is an epoch of `stripes`; JSON has all that they must agree on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from brand.node.setup.choose import Facts, choose_order
from brand.orders import Shared
from brand.orders.base.joins import Join, alone
from brand.orders.base.part import Subset
from brand.orders.order import Order
from brand.orders.policies.other_systems import CoorDL, CoordlPolicy
from brand.orders.policies.stripe_policy import LapPolicy, StripePolicy

ORDER = Order("0" * 32, 1000, 64, 3, CoordlPolicy(4, 8, 2, 100))


def test_a_lap_is_an_epoch_of_stripes() -> None:
    """Of the number that the first join names; the rest of what a state may say does not count."""
    plain = replace(ORDER, policy=StripePolicy(4, 8))
    for joins in (alone(5), (Join(0, 5, 70, 1024), Join(9, 6, 0, 0))):
        plan, wanted = ORDER.plan(0, joins), plain.plan(5)
        assert plan.sample_of.tolist() == wanted.sample_of.tolist()
        assert plan.reads is not None
        assert wanted.reads is not None
        assert plan.reads.tolist() == wanted.reads.tolist()
        assert plan.track is not None
        assert [plan.track.at(position) for position in (0, 1, 64, 999, 1000)] == [5000, 5001, 5064, 5999, 6000]


def test_an_order_there_and_back() -> None:
    """Jobs that name other numbers have nothing in common."""
    value = ORDER.to_json()
    assert {name: value[name] for name in ("protocol", "jobs", "window", "stripe")} == {
        "protocol": "coordl",
        "jobs": 2,
        "window": 100,
        "stripe": 8,
    }
    assert Order.from_json(value) == ORDER
    assert ORDER.policy.common != CoordlPolicy(4, 8, 3, 100).common
    assert not ORDER.policy.rejoins


def test_jobs_that_share_shuffle_in_half_of_the_memory() -> None:
    """The rest holds what one has read until the others draw it; jobs in lock step are within a quarter of it."""
    facts = Facts("0" * 32, 60_000, 64, 600.0, 40_000)
    half = choose_order(facts, 0, "stripes", 1 / 32, None).policy
    assert isinstance(half, StripePolicy)
    for option in (Shared(), CoorDL(jobs=2)):
        policy = choose_order(facts, 0, option, 1 / 16, None).policy
        assert isinstance(policy, LapPolicy)
        assert (policy.group_chunks, policy.stripe) == (half.group_chunks, half.stripe)
    assert isinstance(policy, CoordlPolicy)
    assert policy.window == 60_000 // 64
    large = choose_order(facts, 0, "stripes", 1 / 4, None).policy
    assert choose_order(facts, 0, "shared", 1 / 4, None).policy.group_chunks == large.group_chunks


def test_what_cannot_be_is_refused() -> None:
    """Numbers out of range, and a part."""
    with pytest.raises(ValueError, match="jobs=0"):
        CoordlPolicy(4, 8, 0)
    with pytest.raises(ValueError, match="window=0"):
        CoordlPolicy(4, 8, 2, 0)
    with pytest.raises(ValueError, match="jobs in lock step fetch the same samples"):
        replace(ORDER, subset=Subset.of(np.arange(1000) % 2 == 0))
