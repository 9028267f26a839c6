"""What a running cluster counts is what the plan foresees."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brand.orders.policies.slots import REFILLS, Refill
from tests.made_orders import order_of, slots_across
from tests.several_nodes.support import Rank, all_open, draw_in_step, node_of, servers
from tests.support import wait_until
from tests.tools.cluster import running_cluster

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("refill", REFILLS)
@pytest.mark.parametrize("ahead", [0, 40])
def test_slots_on_three_nodes_count_what_the_plan_foresees(texts: Path, ahead: int, refill: Refill) -> None:
    """Requests exactly: they depend on the plan alone. Chunks read exactly, but for what was read for a next epoch.

    The four variants of the paper's section 5.3: with and without prefetching, by fill rate or at random.
    """
    epochs = range(2)
    order = order_of(texts, replace(slots_across(3, 3, ahead), refill=refill))
    plans = [order.plan(epoch) for epoch in range(len(epochs) + 1)]
    with ExitStack() as stack, running_cluster(texts, nodes=3, memory=0.6) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
        draw_in_step([Rank(client, order, rank, 3) for rank, client in enumerate(clients)], epochs)
        facts = [cluster.facts(node) for node in range(3)]
    requests = [0 if plan.requests is None else len(plan.requests.positions) for plan in plans]
    assert sum(fact["requests"] for fact in facts) == sum(requests[:-1])
    assert sum(fact["timeouts"] + fact["remote_reads"] for fact in facts) == 0
    reads = [plan.read_count for plan in plans]
    assert sum(reads[:-1]) <= sum(fact["reads"] for fact in facts) <= sum(reads)


@pytest.mark.usefixtures("patient")
def test_stripes_on_three_nodes_ask_for_nothing(texts: Path) -> None:
    """After the first global batch: the push brings every sample of another node before it is asked for."""
    order = order_of(texts)
    with ExitStack() as stack, running_cluster(texts, nodes=3, memory=0.5) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
        drawing = [Rank(client, order, rank, 3) for rank, client in enumerate(clients)]
        draw_in_step(drawing, range(5))
        facts = [cluster.facts(node) for node in range(3)]
        chunk_owner = np.arange(order.mapping.groups) * 3 // order.mapping.groups
        elsewhere = sum(
            int((chunk_owner[np.concatenate(rank.drawn[epoch]) // order.mapping.group_size] != rank.rank).sum())
            for rank in drawing
            for epoch in range(5)
        )
    assert elsewhere > 3000
    assert sum(fact["received"] for fact in facts) >= elsewhere
    assert sum(fact["requests"] + fact["remote_reads"] + fact["timeouts"] + fact["direct"] for fact in facts) == 0


def test_a_training_that_has_ended_leaves_nothing_on_any_node(texts: Path) -> None:
    """Nodes do not keep each other's runs alive: their memory is free for the next training."""
    order = order_of(texts)
    with servers(texts, 3, memory=0.5) as found:
        with ExitStack() as stack:
            clients = [stack.enter_context(closing(node_of(texts, server.address))) for server in found]
            draw_in_step([Rank(client, order, rank, 3) for rank, client in enumerate(clients)], range(2))
        wait_until(lambda: not any(server.facts()["epochs"] for server in found), "no epoch is under way")
        wait_until(lambda: all(_only_kept(server.facts()["memory"]) for server in found), "memory is free")


def _only_kept(memory: dict[str, int]) -> bool:
    """Whether nothing is held for an epoch."""
    return memory["used"] == memory["cached"]


def test_no_run_is_left(texts: Path) -> None:
    """Nor does a node remember trainings of others that have ended: their number is limited."""
    order = order_of(texts)
    with running_cluster(texts, nodes=2, memory=0.5) as cluster:
        with ExitStack() as stack:
            clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
            draw_in_step([Rank(client, order, rank, 2) for rank, client in enumerate(clients)], [0])
        wait_until(lambda: not any(s.node._state.core.epochs.runs for s in cluster.servers.values()), "no run is known")
