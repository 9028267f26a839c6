"""Samples of 300 kB and 3 MB on several nodes: sent as smaller ones are, and nothing of them is left if a node dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import brand
from brand.node.decide.peers import parts, peering
from brand.node.decide.peers.receiving import SILENCE_S
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.owners import owner_of_chunk
from brand.orders.base.policy import Policy
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.stripe_policy import StripePolicy
from tests.made_orders import order_of
from tests.node.world import PAGE, World
from tests.several_nodes import world
from tests.several_nodes.support import Rank, all_open, all_reachable, check_epoch, draw_in_step, node_of, servers
from tests.several_nodes.world import Cluster
from tests.support import wait_until
from tests.tools.cluster import running_cluster

STRIPES = StripePolicy(2, stripe=2)
SLOTS = SlotPolicy(2, nodes=3, ranks=3, window=6, remote=6)
ORDERS = pytest.mark.parametrize("policy", [STRIPES, SLOTS], ids=["stripes", "slots"])


@pytest.fixture(scope="module", params=["300 kB", "3 MB"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 samples of 300 kB or 24 of 3 MB, some a little smaller, that differ; chunks of two."""
    size, count = {"300 kB": (300_000, 48), "3 MB": (3_000_000, 24)}[request.param]
    path, rng = tmp_path_factory.mktemp("large") / "large.brand", np.random.default_rng(0)
    samples = ({"blob": rng.bytes(size - number % 5 * 999)} for number in range(count))
    brand.pack(samples, path, {"blob": "bytes"}, chunk_size=2, compression="none", jobs=1)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@ORDERS
def test_nodes_send_large_samples_as_the_plan_foresees(large: Path, policy: Policy) -> None:
    """No rank reads one itself. The requests are those of the plan: with `stripes`, there are none."""
    epochs, order = range(3), order_of(large, policy)
    with ExitStack() as stack, running_cluster(large, nodes=3, memory=0.9, peer_memory=0.5) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        clients = [stack.enter_context(closing(node_of(large, address))) for address in cluster.addresses]
        drawing = [Rank(client, order, rank, 3, batch=2) for rank, client in enumerate(clients)]
        draw_in_step(drawing, epochs)
        for epoch in epochs:
            check_epoch(drawing, epoch)
        facts = [cluster.facts(node) for node in range(3)]
    plans, owner = [order.plan(epoch) for epoch in epochs], owner_of_chunk(order.mapping.chunks, 2, 3)
    assert sum(fact["requests"] for fact in facts) == sum(
        0 if plan.requests is None else len(plan.requests.positions) for plan in plans
    )
    late = [fact[name] for fact in facts for name in ("direct", "on_demand", "timeouts", "remote_reads")]
    assert late == [0] * len(late)
    assert sum(fact["received"] for fact in facts) >= sum(
        int((owner[np.concatenate(rank.drawn[epoch]) // order.chunk_size] != rank.rank).sum())
        for rank in drawing
        for epoch in epochs
    )


@pytest.mark.slow
def test_a_node_is_killed_while_it_sends(large: Path) -> None:
    """By `kill -9`, and it comes back: the others draw each sample once, and hold nothing of it when they are done."""
    order = order_of(large, STRIPES)
    with servers(large, 3, memory=0.9, peer_memory=0.5) as found:
        wait_until(lambda: all_reachable(found), "all nodes can be reached")

        def disturb(batches: int) -> None:
            if batches == 3:
                found[2].kill()
            elif batches == 9:
                found[2].start()
                found[2].tell([server.listens_at for server in found])

        with ExitStack() as stack:
            clients = [stack.enter_context(closing(node_of(large, server.address))) for server in found[:2]]
            drawing = [Rank(client, order, rank, 2, batch=2) for rank, client in enumerate(clients)]
            draw_in_step(drawing, range(3), disturb)
            for epoch in range(3):
                check_epoch(drawing, epoch)
        assert all(server.facts()["received"] for server in found[:2])
        for server in found:
            wait_until(lambda server=server: _only_cached(server.facts()["memory"]), "memory is free")  # type: ignore[misc]


@pytest.mark.slow
@ORDERS
def test_a_link_is_cut_while_samples_cross(large: Path, policy: Policy) -> None:
    """It is slow, so that many cuts end a stream inside of a sample."""
    order = order_of(large, policy)
    with ExitStack() as stack, running_cluster(large, nodes=3, memory=0.9, peer_memory=0.5) as cluster:
        for link in cluster.links.values():
            link.bytes_per_s = 40e6
        clients = [stack.enter_context(closing(node_of(large, address))) for address in cluster.addresses]
        drawing = [Rank(client, order, rank, 3, batch=2) for rank, client in enumerate(clients)]

        def disturb(batches: int) -> None:
            pair = ((0, 1), (2, 0), (1, 2))[batches // 2 % 3]
            if batches % 2:
                cluster.links[pair].cut()
            else:
                cluster.links[pair].mend()

        draw_in_step(drawing, range(3), disturb)
        for epoch in range(3):
            check_epoch(drawing, epoch)


@contextmanager
def two_nodes() -> Iterator[tuple[Cluster, dict[NodeNumber, Any], dict[NodeNumber, Any]]]:
    """A cluster whose node 1 sends samples of five pages in parts of two to node 0: what arrives, and what departs."""
    with mock.patch.object(parts, "MESSAGE_BYTES", 2 * PAGE), mock.patch.object(peering, "MAX_UNSENT", 1):
        order = {"group_chunks": 2, "stripe": 2}
        cluster = Cluster([500] * 24, 2, pages=130, remote_pages=60, nodes=2, on_each=1, batch=2, order=order)
        cluster.join()
        for rank in cluster.ranks:
            rank.go_on()
        receives, sends = (node.turn.peering for node in cluster.worlds)
        assert receives is not None
        assert sends is not None
        yield cluster, receives.receiving.arriving._samples, sends.sending.departing._samples


def work(cluster: Cluster) -> None:
    """All nodes do what they can do alone."""
    for node in cluster.worlds:
        node.step()
        while node.jobs or node.reads:
            node.finish_job() if node.jobs else node.finish_read()


def deliver(cluster: Cluster) -> None:
    """One message of each stream arrives."""
    for pair in cluster.pairs:
        cluster.network.deliver(*pair)
    for number, node in enumerate(cluster.worlds):
        if cluster.network.waiting_at(number):
            node.hear()


def finish(cluster: Cluster) -> None:
    """The ranks draw the epoch to its end, each sample once."""
    while behind := [rank for rank in cluster.ranks if rank.epoch < 1]:
        for rank in behind:
            rank.go_on()
        cluster.settle()
    cluster.end()
    assert cluster.given("run", 0).keys() == set(range(24))


def test_a_sample_in_memory_is_held_from_the_first_of_its_parts_on() -> None:
    """It is cached here, and is not any more before the last part arrives, as a sample that an earlier epoch holds."""
    with two_nodes() as (cluster, arriving, departing):
        work(cluster)
        while not departing:
            deliver(cluster)
            work(cluster)
        residents, place = cluster.worlds[0].core.residents, np.array([departing[NodeNumber(0)].place])
        heads, pages = residents.pool.take(place)
        residents.pool.fill(pages, cluster.worlds[1].core.residents.contents(place))
        residents.keep(np.arange(24) == place)
        residents.put(place, heads)
        residents.let_go(place)
        while not arriving:
            deliver(cluster)
        residents.keep(np.zeros(24, np.bool_))
        assert residents.present(place).all()
        finish(cluster)


@pytest.mark.parametrize("how", ["cut", "restart", "late"])
def test_a_sample_that_does_not_arrive_leaves_no_page(how: str) -> None:
    """A stream ends between two parts: the pages are free at once, on both nodes. A draw gives up before the last part
    arrives: they are free when it does. Each sample is drawn once."""
    with two_nodes() as (cluster, arriving, departing):
        here = cluster.worlds[0]
        while not arriving:
            work(cluster)
            deliver(cluster)
        assert departing.keys() == {0}
        free, reserved = here.allocator.free, int(here.core.residents.sent_pages[1])
        if how == "late":
            _give_up(here, cluster.ranks[0])
        else:
            cluster.network.cut(0, 1) if how == "cut" else cluster.restart(1)
            cluster.talk()
            assert not arriving
            assert here.allocator.free == free + 5
            assert here.core.residents.sent_pages[1] == reserved - 5
            assert how == "restart" or not departing
        cluster.join()
        finish(cluster)


def _give_up(here: World, rank: world.Rank) -> None:
    """Draw until a sample is missing that another node sends, and let the rank wait for it in vain."""
    while not rank.waits:
        rank.go_on()
        here.step()
    here.now_s += SILENCE_S + 0.1
    here.step()
    here.now_s += SILENCE_S + 0.1
    here.step()
    assert not rank.waits


def _only_cached(memory: dict[str, int]) -> bool:
    """Whether nothing is held for an epoch, and no page is reserved."""
    return memory["used"] == memory["cached"]
