"""The design's table of how well orders are shuffled: every figure within 5 %, and no bias over epochs.

Data of 512,000 samples, chunks of 64, batches of 256. The figures say how far an order is from a uniform shuffle:
pairs of a chunk in a batch (uniform: 1), mean distance in the epoch of two samples of a chunk and of two samples that
lie side by side in storage (uniform: 1/3).
"""

from __future__ import annotations

import numpy as np
import pytest

from brand.orders.base.policy import Policy
from brand.orders.order import Order
from brand.orders.policies.other_systems import PoolPolicy
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from brand.testing.shuffling import Shuffling, measure, uniformity
from tests.orders.models import chi_square

SAMPLES, CHUNK, BATCH = 512_000, 64, 256

TABLE = {
    ("slots", 2, 1): (1.31, 0.266, 0.268),
    ("slots", 4, 1): (1.45, 0.259, 0.260),
    ("slots", 10, 1): (1.65, 0.284, 0.285),
    ("slots", 16, 1): (1.97, 0.297, 0.298),
    ("stripes", 4, 1): (1.00, 0.333, 0.333),
    ("stripes", 10, 1): (1.00, 0.333, 0.333),
    ("stripes", 16, 1): (1.00, 0.333, 0.333),
    ("stripes", 32, 1): (1.00, 0.333, 0.333),
    ("stripes", 4, 4): (0.88, 0.336, 0.215),
    ("stripes", 4, 8): (0.75, 0.335, 0.176),
    ("stripes", 4, 16): (0.63, 0.329, 0.15),
    ("stripes", 10, 4): (0.69, 0.337, 0.144),
    ("stripes", 10, 8): (0.48, 0.336, 0.104),
    ("stripes", 10, 16): (0.32, 0.327, 0.08),
    ("stripes", 16, 4): (0.51, 0.338, 0.124),
    ("stripes", 16, 8): (0.092, 0.336, 0.083),
    ("stripes", 16, 16): (0.45, 0.325, 0.06),
    ("stripes", 32, 4): (0.038, 0.338, None),
    ("stripes", 32, 8): (0.19, 0.335, None),
    ("stripes", 32, 16): (0.89, 0.322, None),
}
"""(protocol, n, stripe): batch collisions, chunk distance, adjacent distance; n = 1 / memory."""


def shuffling(protocol: str, n: int, stripe: int) -> tuple[Shuffling, float]:
    """The figures of epoch 0, and the distance of neighbours as the design counts it.

    The design also counts neighbours on either side of a border between chunks, the tool only those within a chunk. As
    one chunk of everything, all are within.
    """
    policy = SlotPolicy(n) if protocol == "slots" else StripePolicy(n, stripe)
    drawn = Order("any", SAMPLES, CHUNK, 0, policy).plan(0).sample_of
    everywhere = measure(drawn, chunk_size=SAMPLES, batch=BATCH).adjacent_distance
    return measure(drawn, chunk_size=CHUNK, batch=BATCH), everywhere


@pytest.mark.slow
@pytest.mark.parametrize("row", [row if row[1] == 16 else pytest.param(row, marks=pytest.mark.tables) for row in TABLE])
def test_each_figure_is_that_of_the_table(row: tuple[str, int, int]) -> None:
    """Pairs of a chunk within a batch; distance of two samples of a chunk, and of two that lie side by side."""
    collisions, chunk, adjacent = TABLE[row]
    found, everywhere = shuffling(*row)
    assert found.batch_collisions == pytest.approx(collisions, rel=0.05)
    assert found.chunk_distance == pytest.approx(chunk, rel=0.05)
    if adjacent is not None:
        assert everywhere == pytest.approx(adjacent, rel=0.05)


def test_the_chunks_of_a_group_take_turns() -> None:
    """A million small records: samples of a chunk meet in a batch about as often as by chance, and all over the epoch.

    If stripes are in random order, these figures are 1.89 and 0.297.
    """
    drawn = Order("any", 1_000_000, 8192, 0, StripePolicy(16, 1024)).plan(1).sample_of
    found = measure(drawn, chunk_size=8192, batch=1024)
    assert found.batch_collisions < 1.1
    assert found.chunk_distance == pytest.approx(1 / 3, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [StripePolicy(16, 1), StripePolicy(16, 8), SlotPolicy(16), PoolPolicy(1, 40), UniformPolicy(1)], ids=repr
)
def test_an_epoch_tells_nothing_about_the_next(policy: Policy) -> None:
    """A sample, and a block of samples, comes in the same part of several epochs as often as by chance."""
    pytest.importorskip("scipy")
    order = Order("any", 64 * 16 * 40, 64, 0, policy)
    found = uniformity(order.plan(epoch).sample_of for epoch in range(12))
    assert found.repeats.p > 0.01
    assert found.drift.p > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "policy"),
    [
        (4, StripePolicy(5, 1)),
        (4, StripePolicy(5, 2)),
        (5, StripePolicy(4, 5)),
        (4, SlotPolicy(5)),
        (4, PoolPolicy(1, 5)),
        (4, PoolPolicy(1, 4)),
        (4, UniformPolicy(1)),
    ],
)
def test_every_sample_comes_at_any_time_equally_often(size: int, policy: Policy) -> None:
    """Over 1,000 epochs the positions of each sample of a set of whole groups are uniform, by chi-square."""
    order = Order("any", 60, size, 0, policy)
    tenth_of = np.zeros((60, 10), np.int64)
    for epoch in range(1000):
        tenth_of[order.plan(epoch).sample_of, np.arange(60) // 6] += 1
    assert max(chi_square(row) for row in tenth_of) < 33.7  # 1 in 10,000, with nine degrees of freedom
