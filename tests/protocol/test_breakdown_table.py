"""The paper's Table 5: memory misses and remote requests of an epoch of ImageNet-1k on three nodes, within 4 %.

1,281,167 samples in chunks of 64, memory for a tenth of them, a window of 16,800 draws, and remote abstract memory for
14,300 samples (1.5 GB). A miss is a read of a chunk.
"""

from __future__ import annotations

import pytest

from brand.protocol.mapping import Mapping
from brand.protocol.prefetch import plan_slots_across_nodes
from brand.protocol.slots import Refill

IMAGENET = Mapping(1_281_167, 64, 10)
TABLE: dict[tuple[Refill, int], tuple[float, float]] = {
    ("random", 0): (1.91e5, 8.54e5),
    ("fill_rate", 0): (1.78e5, 8.54e5),
    ("random", 16_800): (1.33e5, 0.46e5),
    ("fill_rate", 16_800): (1.26e5, 0.41e5),
}
"""Refill and window: misses, remote requests."""


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE)
def test_misses_and_remote_requests(row: tuple[Refill, int]) -> None:
    """Brand without optimisation, without prefetching, with random selection, and in full."""
    refill, window = row
    plan = plan_slots_across_nodes(IMAGENET, 3, 3, window, 14_300, refill, 0, 0)
    assert plan.requests is not None
    misses, requests = TABLE[row]
    assert len(plan.reads) == pytest.approx(misses, rel=0.04)
    assert len(plan.requests.positions) == pytest.approx(requests, rel=0.04)
