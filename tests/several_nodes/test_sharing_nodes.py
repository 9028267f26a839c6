"""Two jobs on the same nodes, with real servers: each draws every sample once, and one read serves both."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from brand.orders.base.policy import Policy
from brand.orders.order import Order
from brand.orders.policies.other_systems import CoordlPolicy
from brand.orders.policies.shared_policy import SharedPolicy
from tests import places
from tests.made_orders import order_of
from tests.several_nodes.support import Rank, all_open, all_reachable, draw_in_step, node_of, servers
from tests.support import wait_until
from tests.tools.cluster import running_cluster

pytestmark = [places.EVERYWHERE, pytest.mark.slow]

JOBS = "one", "two"


def check_jobs(drawing: dict[str, list[Rank]], epochs: int) -> None:
    """All ranks of a job have drawn each sample once in each epoch."""
    for ranks in drawing.values():
        for epoch in range(epochs):
            found = np.concatenate([np.concatenate(rank.drawn[epoch]) for rank in ranks])
            assert np.sort(found).tolist() == list(range(ranks[0].order.samples))


def ranks_of(stack: ExitStack, path: Path, order: Order, addresses: Sequence[str]) -> dict[str, list[Rank]]:
    """A rank of each job at each of these servers."""
    return {
        name: [
            Rank(stack.enter_context(closing(node_of(path, address, name))), order, rank, len(addresses))
            for rank, address in enumerate(addresses)
        ]
        for name in JOBS
    }


def test_two_jobs_on_two_nodes_share_reads(texts: Path) -> None:
    """In processes joined by gRPC, in step: about half a read a draw, over both nodes."""
    order, epochs = order_of(texts, SharedPolicy(4, 4)), 4
    with ExitStack() as stack, servers(texts, 2, memory=0.25) as found:
        wait_until(lambda: all_reachable(found), "all nodes can be reached")
        drawing = ranks_of(stack, texts, order, [server.address for server in found])
        draw_in_step([*itertools.chain(*drawing.values())], range(epochs))
        check_jobs(drawing, epochs)
        facts = [server.facts() for server in found]
    read = sum(fact["read_bytes"] for fact in facts) / facts[0]["data_bytes"]
    drawn = sum(fact["fetched"] for fact in facts) / order.samples
    assert drawn == 2 * epochs
    assert read / drawn < 0.7, "each job reads for itself"


@pytest.mark.parametrize(
    ("policy", "epochs", "memory"), [(SharedPolicy(4, 4), 3, 0.4), (CoordlPolicy(4, 4, 2, 256), 2, 0.6)]
)
def test_jobs_survive_the_death_of_the_leader(texts: Path, policy: Policy, epochs: int, memory: float) -> None:
    """It only serves. Both jobs go on, draw every sample once, and begin new epochs without it."""
    order = order_of(texts, policy)
    with ExitStack() as stack, running_cluster(texts, nodes=3, memory=memory) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        drawing = ranks_of(stack, texts, order, cluster.addresses[1:])
        killed = threading.Event()

        def between(batches: int) -> None:
            if batches == 20:
                cluster.kill(0)
                killed.set()

        draw_in_step([*itertools.chain(*drawing.values())], range(epochs), between)
        assert killed.is_set()
        check_jobs(drawing, epochs)


def test_jobs_survive_the_restart_of_a_server(texts: Path) -> None:
    """Of the leader, at which both have ranks: clients tell it where their jobs have joined others."""
    order, epochs = order_of(texts, SharedPolicy(4, 4)), 2
    with ExitStack() as stack, running_cluster(texts, nodes=2, memory=0.4) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        drawing = ranks_of(stack, texts, order, cluster.addresses)

        def between(batches: int) -> None:
            if batches == 12:
                cluster.kill(0)
                cluster.restart(0)

        draw_in_step([*itertools.chain(*drawing.values())], range(epochs), between)
        check_jobs(drawing, epochs)


def test_with_locality_a_job_divides_what_it_has_joined(texts: Path) -> None:
    """Positions are divided when no node can draw otherwise any more, and each sample comes once."""
    order, epochs = order_of(texts, SharedPolicy(4, 4)), 2
    with ExitStack() as stack, running_cluster(texts, nodes=3, memory=0.5) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        drawing = {
            name: [
                Rank(stack.enter_context(closing(node_of(texts, address, name))), order, rank, 2, locality=True)
                for rank, address in enumerate(cluster.addresses[number : number + 2])
            ]
            for number, name in enumerate(JOBS)
        }
        draw_in_step([*itertools.chain(*drawing.values())], range(epochs))
        check_jobs(drawing, epochs)
