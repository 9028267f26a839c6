"""Slower is allowed, but not always: how much of what is drawn comes from memory where clients do not draw in step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brand.node.decide.epochs import pacing
from brand.orders.policies.stripe_policy import StripePolicy
from brand.testing.node import running_server
from tests.made_orders import order_of
from tests.node.support import RawClient, draw, greeted

LARGE_GROUPS = StripePolicy(8, stripe=4)
MEMORY = 0.25
"""Abstract memory is an eighth of the samples, so there is room for twice that."""


def share(client: RawClient, order: int, epoch: int, positions: range) -> float:
    """Draw in batches of 20; which part came from memory."""
    here = 0
    for first in range(0, len(positions), 20):
        here += int(np.count_nonzero(draw(client, order, epoch, positions[first : first + 20]).state))
    return here / len(positions)


@pytest.mark.slow
def test_in_step_everything_comes_from_memory(texts: Path) -> None:
    """One rank that draws position after position, three epochs."""
    with running_server(texts, memory=MEMORY) as server, greeted(server.address, texts) as client:
        order = client.order(order_of(texts, LARGE_GROUPS))
        for epoch in range(3):
            client.begin(order, epoch)
            assert share(client, order, epoch, range(1200)) == 1.0


def test_after_a_skip(texts: Path) -> None:
    """Skipped batches (a resumed loop that skips indices): what they would have needed is given up soon."""
    with running_server(texts, memory=MEMORY) as server, greeted(server.address, texts) as client:
        order = client.order(order_of(texts, LARGE_GROUPS))
        client.begin(order, 0)
        share(client, order, 0, range(20))
        share(client, order, 0, range(400, 800))
        assert share(client, order, 0, range(800, 1200)) > 0.5


def test_one_of_two_ranks(texts: Path) -> None:
    """The other rank draws from a server of its own (another node; ranks made without an environment)."""
    with running_server(texts, memory=MEMORY) as server, greeted(server.address, texts) as client:
        order = client.order(order_of(texts, LARGE_GROUPS))
        client.begin(order, 0, replicas=2)
        share(client, order, 0, range(0, 800, 2))
        assert share(client, order, 0, range(800, 1200, 2)) > 0.5


def test_beside_a_run_that_pauses(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trainings at one server, one of which stands still in mid-epoch, longer than `IDLE_S`."""
    monkeypatch.setattr(pacing, "IDLE_S", 0.0)
    with (
        running_server(texts, memory=0.15) as server,
        greeted(server.address, texts) as first,
        greeted(server.address, texts) as second,
    ):
        paused = first.order(order_of(texts, LARGE_GROUPS, seed=1))
        first.begin(paused, 0)
        share(first, paused, 0, range(400))
        order = second.order(order_of(texts, LARGE_GROUPS, seed=2))
        second.begin(order, 0)
        assert share(second, order, 0, range(1200)) > 0.5
