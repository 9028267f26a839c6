"""The model of servers that are alone, beside the decisions of a server (bench/cached_nodes.py)."""

from __future__ import annotations

import numpy as np
import pytest

from bench.cached_nodes import FOLDER, MEMORY, NODES, alone_bytes
from brand.node.decide.state.choosing import Placement
from brand.orders.order import Order
from tests.node.test_alone import SIZE, UNIFORM, Player

SAMPLES, EPOCHS = 900, 5


def test_the_placements_are_in_the_order_of_the_paper() -> None:
    """Frequency before random before none (HDMLP, section 6). The next use is better than each of them."""
    order = Order("0" * 32, SAMPLES, 64, 1, UNIFORM)
    sizes = np.full(SAMPLES, SIZE, np.uint32)
    limit = int(FOLDER * SAMPLES * SIZE)
    placements: tuple[Placement | None, ...] = (None, "even", "frequency", "next")
    storage = [alone_bytes(order, sizes, placement, limit, 20)[1:, 0].sum() for placement in placements]
    assert (np.diff(storage) < -0.05 * storage[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["even", "frequency", "next"])
def test_the_model_reads_what_a_server_reads(placement: Placement) -> None:
    """Within 4 % of what the rank fetches, from the second epoch on; the model has three ranks, the server one."""
    memory, room = int(MEMORY * SAMPLES), int(FOLDER * SAMPLES)
    player = Player(SAMPLES, room, placement, EPOCHS, replicas=NODES, memory=memory)
    played = np.array(player.play(1, range(EPOCHS)))[1:].mean(axis=0) / (SAMPLES / NODES)
    sizes = np.full(SAMPLES, SIZE, np.uint32)
    model = alone_bytes(player.order, sizes, placement, player.limit, EPOCHS)[1:].mean(axis=0) / sizes.sum()
    assert played == pytest.approx(model[[2, 0]], abs=0.04)
