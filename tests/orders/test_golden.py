"""Orders that must never change: small ones in full, larger ones by digest.

WARNING. A test that fails here says that the order of users' runs has changed: a resumed run would repeat some samples
and miss others, without a word. Do not just put the new values in. Undo the change, or give the order another version
(`Policy.version`): states of another version are refused inside an epoch.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import Policy
from brand.orders.base.random import RandomStream, bits
from brand.orders.order import Order
from brand.orders.policies.other_systems import PoolPolicy
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.slots import Refill
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from tests.orders.models import table_of

SEEDS_AND_EPOCHS = [(0, 0), (0, 1), (7, 3), (2**128 - 1, 2**16 - 1)]

# fmt: off
DRAWN: dict[Policy, list[list[int]]] = {
    StripePolicy(3, 2): [
        [16, 17, 14, 22, 18, 5, 10, 4, 15, 3, 11, 2, 21, 19, 13, 7, 9, 6, 20, 12, 1, 8, 0],
        [22, 11, 14, 0, 21, 15, 10, 17, 5, 1, 12, 4, 20, 16, 8, 9, 3, 6, 2, 13, 18, 19, 7],
        [12, 13, 10, 22, 17, 20, 11, 7, 14, 2, 16, 15, 18, 6, 8, 3, 5, 21, 9, 4, 0, 1, 19],
        [13, 12, 16, 2, 7, 10, 15, 3, 6, 0, 17, 22, 21, 11, 14, 4, 20, 19, 18, 9, 1, 5, 8],
    ],
    SlotPolicy(3): [
        [16, 18, 17, 13, 21, 8, 9, 1, 12, 10, 5, 6, 14, 19, 15, 11, 3, 0, 22, 20, 7, 2, 4],
        [13, 0, 12, 1, 16, 15, 2, 14, 10, 3, 18, 8, 19, 20, 6, 9, 4, 5, 7, 17, 22, 21, 11],
        [18, 19, 11, 16, 12, 14, 8, 3, 17, 9, 20, 21, 22, 0, 4, 10, 2, 13, 5, 7, 6, 1, 15],
        [15, 12, 16, 9, 8, 11, 13, 10, 2, 1, 14, 22, 21, 0, 17, 4, 20, 18, 19, 3, 7, 6, 5],
    ],
    SlotPolicy(3, "random"): [
        [16, 18, 17, 13, 21, 8, 9, 1, 12, 10, 5, 6, 14, 19, 15, 11, 7, 0, 22, 20, 3, 2, 4],
        [13, 0, 12, 1, 16, 15, 2, 14, 10, 3, 18, 8, 19, 20, 6, 9, 4, 5, 7, 17, 22, 21, 11],
        [22, 15, 11, 20, 12, 14, 8, 3, 21, 9, 16, 17, 18, 0, 4, 10, 2, 13, 5, 7, 6, 1, 19],
        [15, 12, 20, 9, 8, 11, 13, 10, 2, 1, 14, 18, 17, 0, 21, 4, 16, 22, 19, 3, 7, 6, 5],
    ],
    PoolPolicy(3, 2): [
        [16, 13, 17, 12, 14, 19, 15, 18, 0, 1, 9, 10, 3, 8, 11, 2, 22, 21, 6, 5, 7, 20, 4],
        [20, 5, 6, 7, 4, 22, 21, 0, 2, 8, 10, 1, 9, 11, 3, 17, 12, 19, 18, 14, 15, 16, 13],
        [3, 5, 4, 0, 6, 7, 2, 1, 12, 8, 11, 13, 14, 10, 9, 15, 22, 19, 16, 18, 17, 20, 21],
        [1, 22, 21, 0, 20, 3, 2, 15, 12, 9, 8, 11, 13, 10, 14, 16, 6, 4, 17, 18, 19, 7, 5],
    ],
    UniformPolicy(3): [
        [16, 22, 13, 21, 17, 0, 1, 9, 12, 6, 5, 10, 14, 19, 15, 3, 7, 8, 18, 20, 11, 2, 4],
        [17, 0, 20, 5, 12, 19, 6, 18, 2, 7, 14, 8, 15, 16, 10, 1, 4, 9, 11, 13, 22, 21, 3],
        [22, 19, 3, 12, 16, 18, 8, 11, 17, 5, 20, 13, 14, 4, 0, 10, 6, 21, 9, 7, 2, 1, 15],
        [15, 16, 12, 9, 8, 11, 13, 10, 6, 1, 22, 14, 21, 4, 17, 0, 20, 18, 19, 3, 7, 2, 5],
    ],
}
"""For each seed and epoch what is drawn of 23 samples in chunks of four, three a group."""

READS: dict[Policy, list[tuple[int, int, int, int]]] = {
    StripePolicy(3, 2): [
        (0, 4, 0, 2), (2, 5, 2, 1), (2, 3, 2, 2), (4, 4, 2, 2), (5, 1, 0, 2), (6, 2, 2, 2),
        (9, 0, 2, 2), (12, 5, 0, 2), (14, 3, 0, 2), (15, 1, 2, 2), (16, 2, 0, 2), (20, 0, 0, 2),
    ],
    SlotPolicy(3): [
        (0, 4, 0, 4), (3, 3, 0, 4), (4, 5, 0, 3), (5, 2, 0, 4), (7, 0, 0, 4), (10, 1, 0, 4),
        (14, 3, 0, 4), (16, 0, 0, 4), (18, 5, 0, 3), (20, 1, 0, 4),
    ],
    SlotPolicy(3, "random"): [
        (0, 4, 0, 4), (3, 3, 0, 4), (4, 5, 0, 3), (5, 2, 0, 4), (7, 0, 0, 4), (10, 1, 0, 4),
        (14, 3, 0, 4), (16, 1, 0, 4), (18, 5, 0, 3), (20, 0, 0, 4), (22, 1, 0, 4),
    ],
    PoolPolicy(3, 2): [
        (0, 3, 0, 4), (0, 4, 0, 4), (8, 2, 0, 4), (8, 0, 0, 4), (16, 1, 0, 4), (16, 5, 0, 3),
    ],
    UniformPolicy(3): [
        (0, 4, 0, 1), (1, 5, 2, 1), (2, 3, 1, 1), (3, 5, 1, 1), (4, 4, 1, 1), (5, 0, 0, 1),
        (6, 0, 1, 1), (7, 2, 1, 1), (8, 3, 0, 1), (9, 1, 2, 1), (10, 1, 1, 1), (11, 2, 2, 1),
        (12, 3, 2, 1), (13, 4, 3, 1), (14, 3, 3, 1), (15, 0, 3, 1), (16, 1, 3, 1), (17, 2, 0, 1),
        (18, 4, 2, 1), (19, 5, 0, 1), (20, 2, 3, 1), (21, 0, 2, 1), (22, 1, 0, 1),
    ],
}
"""Deadline, chunk, first sample and count of the reads of the first of these plans."""
# fmt: on

DIGESTS: dict[Policy, str] = {
    StripePolicy(16, 8): "40c1838f3e223ed29b536a5a6dd7e2578e0edd891529f5c1f64b4550a9002946",
    StripePolicy(16, 1): "3d9d719f9c47f0679f7636621d5f0e28603ae11f70c628be78fc1df2c0e10c19",
    StripePolicy(16, 5): "fdb26cbd3836743ac738af05a107b04641414cc4682a10e1fe9b6dd5acfbed4a",
    SlotPolicy(16): "f5e93fdd9ab03caf1fd9bfce177e24f277ba092e8d6df5b1c15339074c45ef24",
    SlotPolicy(16, "random"): "3b9e7406cc2e031a4d56bec73a8c897d155f16cb5977a4b6665f7504eaa8c576",
    PoolPolicy(16, 100): "15fe30f63e37751f8f3ee5ea8bbde7172fc62800a7348b1c76fcc8360c691b1c",
    UniformPolicy(16): "5de4e49d37fd8292d0b9d1740a940bd9df345f6c8d31f72c41d79b6cd36eecc7",
}
"""SHA-256 of both tables and of what is held: 100,003 samples in chunks of 64, 16 a group, seed 2024, epoch 5."""


ACROSS_DIGESTS: dict[Refill, str] = {
    "fill_rate": "f3b535034a2ac504f8d57c5bb88eba8081b33f87d0aaf3c39330faa719ae6132",
    "random": "68e704d60f5a1c166d4733061575ed8a820f52749c974b258005f037d559766c",
}
"""SHA-256 of all three tables of that size with protocol `slots` across 3 nodes of 2 ranks, window 1,300, limit 500."""


def digest(plan: EpochPlan) -> str:
    """Of all numbers of a plan as 64 bits, little-endian: what is drawn, then each read and the places it holds, then
    each request and the positions that are sent with it.
    """
    found = hashlib.sha256(plan.sample_of.astype("<i8").tobytes())
    for number, read in enumerate(table_of(plan).tolist()):
        found.update(np.array(read, "<i8").tobytes())
        found.update(plan.places_held(number).astype("<i8").tobytes())
    if plan.requests is not None:
        for number, position in enumerate(plan.requests.positions.tolist()):
            found.update(np.array(position, "<i8").tobytes())
            found.update(plan.requests.sent_with(number).astype("<i8").tobytes())
    return found.hexdigest()


def test_words() -> None:
    """The random words under everything: seed 1, purpose `ACCESS`, epoch 2, step 3."""
    assert bits(6, 1, RandomStream.ACCESS, 2, 3).tolist() == [
        0x2C7775A03B446DA5,
        0x1EE9531E59FCA06C,
        0x98BFE53573263C92,
        0x82F4BBE8D8BF023B,
        0x1076E77089A2DE8F,
        0xD9129B885D05753C,
    ]


@pytest.mark.parametrize("which", range(len(SEEDS_AND_EPOCHS)))
@pytest.mark.parametrize("policy", DRAWN, ids=repr)
def test_small_orders(policy: Policy, which: int) -> None:
    """What is drawn, sample by sample."""
    seed, epoch = SEEDS_AND_EPOCHS[which]
    assert Order("golden", 23, 4, seed, policy).plan(epoch).sample_of.tolist() == DRAWN[policy][which]


@pytest.mark.parametrize("policy", READS, ids=repr)
def test_small_reads(policy: Policy) -> None:
    """What is read by when."""
    assert table_of(Order("golden", 23, 4, 0, policy).plan(0)).tolist() == READS[policy]


@pytest.mark.slow
@pytest.mark.parametrize("policy", DIGESTS, ids=repr)
def test_larger_plans(policy: Policy) -> None:
    """All of a plan, by its digest."""
    assert digest(Order("golden", 100_003, 64, 2024, policy).plan(5)) == DIGESTS[policy]


@pytest.mark.slow
@pytest.mark.parametrize("refill", ACROSS_DIGESTS)
def test_a_larger_plan_across_nodes(refill: Refill) -> None:
    """All of a plan with its requests, by its digest."""
    policy = SlotPolicy(16, refill, nodes=3, ranks=6, window=1300, remote=500)
    assert digest(Order("golden", 100_003, 64, 2024, policy).plan(5)) == ACROSS_DIGESTS[refill]
