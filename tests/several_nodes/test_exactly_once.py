"""Several nodes draw from one data set: every sample comes once, and the push brings it before it is asked for."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from brand.orders.base.policy import Policy
from brand.orders.policies.other_systems import PoolPolicy
from brand.orders.policies.uniform import UniformPolicy
from tests import places
from tests.made_orders import STRIPES, order_of, slots_across
from tests.several_nodes.support import Rank, all_open, all_reachable, check_epoch, draw_in_step, node_of, servers
from tests.support import wait_until
from tests.tools.cluster import running_cluster

pytestmark = [places.EVERYWHERE, pytest.mark.slow]


@pytest.mark.parametrize(("protocol", "nodes", "on_each"), [("stripes", 2, 2), ("slots", 3, 1), ("stripes", 5, 1)])
def test_every_sample_once(texts: Path, protocol: str, nodes: int, on_each: int) -> None:
    """In processes joined by gRPC; shares are uneven, as ten groups are no multiple of 3."""
    ranks = nodes * on_each
    order = order_of(texts, STRIPES if protocol == "stripes" else slots_across(nodes, ranks))
    with ExitStack() as stack, servers(texts, nodes, memory=0.5) as found:
        wait_until(lambda: all_reachable(found), "all nodes can be reached")
        clients = [stack.enter_context(closing(node_of(texts, found[r // on_each].address))) for r in range(ranks)]
        drawing = [Rank(client, order, rank, ranks) for rank, client in enumerate(clients)]
        draw_in_step(drawing, range(3))
        for epoch in range(3):
            check_epoch(drawing, epoch)
        counts = {len(np.concatenate(rank.drawn[2])) for rank in drawing}
        assert max(counts) - min(counts) <= 1
        facts = [server.facts() for server in found]
        assert sum(fact["fetched"] for fact in facts) == 3 * order.samples
        assert all(fact["received"] for fact in facts)


def test_uneven_ranks(texts: Path) -> None:
    """One node has three ranks, one has one, and one only serves."""
    order = order_of(texts)
    at = [0, 0, 0, 1]
    with ExitStack() as stack, running_cluster(texts, nodes=3, memory=0.5) as cluster:
        clients = [stack.enter_context(closing(node_of(texts, cluster.addresses[node]))) for node in at]
        drawing = [Rank(client, order, rank, 4) for rank, client in enumerate(clients)]
        draw_in_step(drawing, range(2))
        for epoch in range(2):
            check_epoch(drawing, epoch)
        assert cluster.facts(2)["sent"] > 0


@pytest.mark.parametrize(
    "policy",
    [STRIPES, slots_across(3, 3), UniformPolicy(2), PoolPolicy(2, 8)],
    ids=["stripes", "slots", "uniform", "pool"],
)
def test_the_order_does_not_depend_on_nodes_and_goes_on_with_others(texts: Path, policy: Policy) -> None:
    """An epoch that three nodes begin, two go on with from the middle, and then one: the plan's order throughout."""
    order = order_of(texts, policy)
    middle = 16 * 3 * 5
    found_by_nodes = []
    for nodes, start in ((3, 0), (2, middle), (1, middle)):
        with ExitStack() as stack, running_cluster(texts, nodes=nodes, memory=0.6) as cluster:
            clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
            drawing = [Rank(client, order, rank, nodes, start=start) for rank, client in enumerate(clients)]
            draw_in_step(drawing, [0, 1])
            plan = order.plan(0).sample_of
            drawn = np.full(order.samples, -1)
            for rank in drawing:
                drawn[rank.positions[0]] = np.concatenate(rank.drawn[0])
            assert drawn[start:].tolist() == plan[start:].tolist()
            check_epoch(drawing, 1)
            found_by_nodes.append(drawn[middle:].tolist())
    assert all(drawn == found_by_nodes[0] for drawn in found_by_nodes)


def test_with_locality_the_global_batches_stay_the_same_sets(texts: Path) -> None:
    """Each rank takes what its own node owns first: little crosses, and whole batches are the plan's."""
    order, batch, sent = order_of(texts), 16, {}
    for locality in (False, True):
        with ExitStack() as stack, running_cluster(texts, nodes=3, memory=0.5) as cluster:
            wait_until(lambda cluster=cluster: all_open(cluster), "all nodes can be reached")  # type: ignore[misc]
            clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
            drawing = [Rank(c, order, r, 3, batch, locality=locality) for r, c in enumerate(clients)]
            draw_in_step(drawing, range(3))
            for epoch in range(3):
                check_epoch(drawing, epoch)
                for first in range(0, order.samples - 3 * batch, 3 * batch):
                    step = first // 3 // batch * batch
                    got = np.concatenate([rank.positions[epoch][step : step + batch] for rank in drawing])
                    assert sorted(got.tolist()) == list(range(first, first + 3 * batch))
            sent[locality] = sum(cluster.facts(node)["sent"] for node in cluster.servers)
    assert sent[True] < sent[False] / 3
