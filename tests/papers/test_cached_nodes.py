"""The prediction for three nodes with cache folders (bench/cached_nodes.py), beside the order of HDMLP's policies."""

from __future__ import annotations

import numpy as np

from bench.cached_nodes import ARMS, FOLDER, simulated_bytes
from brand.orders.order import Order
from tests.node.test_alone import SIZE, UNIFORM

SAMPLES, EPOCHS = 900, 20


def test_the_placements_are_in_the_order_of_the_paper() -> None:
    """Frequency before random before none (HDMLP, section 6). The next use is better than each of them."""
    order = Order("0" * 32, SAMPLES, 64, 1, UNIFORM)
    sizes, limit = np.full(SAMPLES, SIZE, np.uint32), int(FOLDER * SAMPLES * SIZE)
    alone = {arm.placement: arm for arm in ARMS if not arm.connected}
    storage = [
        simulated_bytes(order, sizes, alone[placement], limit, EPOCHS)[1:, 0].sum()
        for placement in (None, "even", "frequency", "next")
    ]
    assert (np.diff(storage) < -0.05 * storage[0]).all()
