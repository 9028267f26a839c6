"""Orders that are decided while jobs draw (JOADER), on several nodes: the first node decides, the others follow."""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from brand.node.client.client import Client
from brand.node.decide.draws.draws import LONGEST_WAIT_S
from brand.node.decide.online.order_messages import HEAR_S
from brand.node.decide.peers.receiving import SILENCE_S
from brand.node.wire.drawing import Announcement
from brand.orders.policies.other_systems import JoaderPolicy
from tests import places
from tests.made_orders import order_of
from tests.rounds import Chance, rounds
from tests.several_nodes.support import all_open, all_reachable, draw_in_step, node_of, servers
from tests.several_nodes.test_leading import release
from tests.several_nodes.test_lockstep_nodes import SAMPLES, SIZE, go, of_job, read
from tests.several_nodes.test_sharing_nodes import check_jobs, ranks_of
from tests.several_nodes.world import Cluster
from tests.support import wait_until
from tests.tools.cluster import running_cluster

pytestmark = pytest.mark.slow

REMOTE = 64
LONG = 1000
"""More steps than any test takes."""
NAMES = "run", "other"


def cluster_of(nodes: int, memory: float = 1.2, *, seed: int = 1, join: bool = True, **homes: list[int]) -> Cluster:
    """Nodes with two jobs, `run` and `other`, on all of them or on their `homes`, that draw together."""
    order: dict[str, Any] = {"protocol": "joader", "group_chunks": 8, "seed": seed}
    pages = int(SAMPLES * memory / nodes) + REMOTE
    cluster = Cluster(*([SIZE] * SAMPLES, 16, pages, REMOTE, nodes, 1, 8, order), depth=3, second=order, homes=homes)
    if join:
        cluster.join()
    return cluster


def finish(cluster: Cluster, epochs: int) -> None:
    """All ranks draw these epochs, each sample once."""
    for _ in range(LONG):
        if min(rank.epoch for rank in cluster.ranks) == epochs and not any(rank.waits for rank in cluster.ranks):
            break
        go(cluster, [rank for rank in cluster.ranks if rank.epoch < epochs])
    check(cluster, epochs)


def check(cluster: Cluster, epochs: int) -> None:
    for name, epoch in itertools.product(NAMES, range(epochs)):
        assert sorted(cluster.given(name, epoch).values()) == list(range(SAMPLES))
    assert not any(world.refused for world in cluster.worlds)


@pytest.mark.parametrize(
    "homes", [{}, {"run": [0], "other": [1]}, {"run": [2, 1], "other": [1]}, {"run": [0, 1], "other": [2]}], ids=str
)
def test_each_sample_is_drawn_once_and_read_for_both(homes: dict[str, Any]) -> None:
    """By the nodes that own it, whatever nodes the jobs have, without direct reads."""
    cluster = cluster_of(3, **homes)
    finish(cluster, 2)
    assert read(cluster) < 0.5 * 2 * 2 * SAMPLES
    assert sum(world.core.counters.draws.direct for world in cluster.worlds) == 0
    cluster.end()


def test_two_jobs_on_two_nodes_draw_together() -> None:
    """In rounds, as on one node: with little memory, one read serves both."""
    cluster = cluster_of(2, 0.2, run=[0], other=[1])
    while min(rank.epoch for rank in cluster.ranks) < 1:
        go(cluster, cluster.ranks)
    check(cluster, 1)
    assert read(cluster) < 0.62 * 2 * SAMPLES


@rounds(2)
def test_a_server_that_replaces_the_first_one_decides_the_same_order(chance: Chance) -> None:
    """It hears from the other nodes and from its clients what was decided before it decides more."""
    homes: dict[str, Any] = chance.rng.choice([{}, {"run": [0, 1], "other": [1, 2]}, {"run": [1, 2], "other": [2]}])
    cluster, deaths = cluster_of(3, seed=chance.rng.randrange(9), **homes), 0
    while min(rank.epoch for rank in cluster.ranks) < 2:
        for _ in range(chance.rng.randint(1, 5)):
            go(cluster, [rank for rank in cluster.ranks if chance.rng.random() < 0.8], 0.3)
        if deaths < 10 and not any(rank.epoch > 1 for rank in cluster.ranks):
            cluster.restart(0)
            cluster.join()
            deaths += 1
    check(cluster, 2)


def test_without_the_first_node_nothing_is_decided_and_the_wait_has_a_limit() -> None:
    """Decided positions are answered; then draws wait, and are refused with the reason."""
    cluster = cluster_of(3, run=[1], other=[2])
    for _ in range(4):
        go(cluster, cluster.ranks)
    for node in (1, 2):
        cluster.network.cut(0, node)
        cluster.network.cut(node, 0)
    for _ in range(SAMPLES // 8):
        go(cluster, cluster.ranks)
    assert all(rank.waits for rank in cluster.ranks)
    assert all(len(cluster.given(name, 0)) < SAMPLES / 4 for name in NAMES)
    go(cluster, [], LONGEST_WAIT_S + 1)
    for rank in cluster.ranks:
        assert "node 0 decides it" in rank.world.refused[rank.client]


def test_the_first_node_waits_for_a_node_that_may_know_more() -> None:
    """It was replaced, and decides nothing before the last node has come back."""
    cluster = cluster_of(3, run=[0, 1], other=[2])
    for _ in range(4):
        go(cluster, cluster.ranks)
    [other] = of_job(cluster, "other")
    before = cluster.given("other", 0)
    cluster.restart(0)
    for pair in ((0, 1), (1, 0)):
        cluster.network.open(*pair)
    cluster.talk()
    for _ in range(20):
        go(cluster, of_job(cluster, "run"), 0.2)
    assert all(rank.waits for rank in of_job(cluster, "run"))
    cluster.join()
    while other.epoch < 1 or other.waits:
        go(cluster, cluster.ranks)
    assert before.items() <= cluster.given("other", 0).items()
    check(cluster, 1)


def test_the_first_node_waits_with_a_limit_for_a_node_that_never_comes() -> None:
    """Then it decides without that node, also the next epochs, for which it waits no longer."""
    cluster = cluster_of(3, join=False, run=[0, 1], other=[1])
    for pair in ((0, 1), (1, 0)):
        cluster.network.open(*pair)
    cluster.talk()
    for _ in range(10):
        go(cluster, cluster.ranks, 1.0)
    assert all(rank.waits for rank in cluster.ranks)
    go(cluster, [], HEAR_S - 9)
    for _ in range(LONG):
        if min(rank.epoch for rank in cluster.ranks) == 2:
            break
        go(cluster, cluster.ranks, SILENCE_S)
    check(cluster, 2)


def each_does_something(cluster: Cluster) -> None:
    """And all arrives that nodes say, but for what the second node asks or tells the first one."""
    for world in cluster.worlds:
        world.step()
        while world.jobs or world.reads:
            world.finish_job() if world.jobs else world.finish_read()
    for pair, to in ((0, 1), 0), ((0, 1), 1), ((1, 0), 1):
        while cluster.network.deliver(*pair, to=to):
            pass
    for world in cluster.worlds:
        world.hear()
    release(cluster)


def test_the_first_node_answers_only_what_the_others_have_confirmed() -> None:
    """So they can tell a server that replaces it all that any client has got."""
    cluster = cluster_of(2, run=[0], other=[1])
    for _ in range(3):
        go(cluster, cluster.ranks)
    [rank], world = of_job(cluster, "run"), cluster.worlds[0]
    for _ in range(LONG):
        if not rank.waits:
            rank.go_on()
        each_does_something(cluster)
        waiting, order = world.core.draws.waiting, world.online.orders[rank.key]
        if waiting and waiting[0].waits_for == "server":
            break
    assert order.final <= waiting[0].positions.max() < order.decided
    cluster.rest()
    assert not rank.waits


def test_a_node_that_follows_no_longer_confirms_nothing() -> None:
    """The rank of the other node has left, and the first node, whose server was replaced, does not wait for it."""
    cluster = cluster_of(2, run=[0, 1], other=[0])
    for _ in range(4):
        go(cluster, cluster.ranks)
    cluster.restart(0)
    cluster.join()
    here, there = of_job(cluster, "run")
    there.world.leave(there.client)
    before = here.steps
    for _ in range(40):
        go(cluster, [here], 0.5)
    assert here.steps > before + 5


def test_orders_over_nodes_are_uniform() -> None:
    """Positions of 8 groups of samples in 8 parts of the epoch, of two jobs on two nodes: chi-square of 60 seeds."""
    counts = {name: np.zeros((8, 8)) for name in NAMES}
    for seed in range(60):
        cluster = cluster_of(2, run=[0], other=[1], seed=seed)
        while min(rank.epoch for rank in cluster.ranks) < 1 or any(rank.waits for rank in cluster.ranks):
            go(cluster, cluster.ranks)
        for name in NAMES:
            for position, place in cluster.given(name, 0).items():
                counts[name][8 * position // SAMPLES, 8 * place // SAMPLES] += 1
    for name in NAMES:
        expected = counts[name].sum() / 64
        chi_square = float(((counts[name] - expected) ** 2 / expected).sum())
        assert chi_square < 85.4, f"{name}: 49 degrees of freedom, exceeded by chance once in 1,000"


@places.EVERYWHERE
@pytest.mark.parametrize("nodes", [2, 3])
def test_real_servers_decide_one_order(texts: Path, nodes: int) -> None:
    """Joined by gRPC: each job draws each sample once, and less than a read serves a draw."""
    order, epochs = order_of(texts, JoaderPolicy(4)), 3
    with ExitStack() as stack, running_cluster(texts, nodes=nodes, memory=0.4) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        drawing = ranks_of(stack, texts, order, cluster.addresses)
        draw_in_step([*itertools.chain(*drawing.values())], range(epochs))
        check_jobs(drawing, epochs)
        facts = [cluster.facts(node) for node in cluster.servers]
    drawn = sum(fact["fetched"] for fact in facts) / order.samples
    assert drawn == 2 * epochs
    assert sum(fact["read_bytes"] for fact in facts) / facts[0]["data_bytes"] / drawn < 0.7


@places.EVERYWHERE
@pytest.mark.parametrize("nodes", [2, 3])
@rounds(1)
def test_jobs_survive_deaths_of_the_first_server(texts: Path, chance: Chance, nodes: int) -> None:
    """In processes of their own: it is killed and started again, and each job draws each sample once.

    With `--rounds 5` it dies 20 times; each death costs up to `RECOVERY_S`.
    """
    order, epochs, most = order_of(texts, JoaderPolicy(4)), 4, 4
    with ExitStack() as stack, servers(texts, nodes, memory=0.4) as found:
        wait_until(lambda: all_reachable(found), "all nodes can be reached")
        drawing = ranks_of(stack, texts, order, [server.address for server in found])
        deaths: list[int] = []
        after = {chance.rng.randrange(10, 100) for _ in range(most)}

        def between(batches: int) -> None:
            if batches in after:
                found[0].kill()
                found[0].start()
                for server in found:
                    server.tell([other.listens_at for other in found])
                deaths.append(batches)

        draw_in_step([*itertools.chain(*drawing.values())], range(epochs), between)
        check_jobs(drawing, epochs)
    assert deaths == sorted(after)


def test_a_rank_that_is_an_epoch_ahead_tells_what_the_slower_one_lacks(texts: Path) -> None:
    """On one node: the server is replaced while one rank draws the end of an epoch that the other has finished."""
    order = order_of(texts, JoaderPolicy(4))
    with ExitStack() as stack, servers(texts, 1, memory=0.4) as [server]:
        ahead, behind = (stack.enter_context(closing(node_of(texts, server.address))) for _ in range(2))
        drawn: list[int] = []

        def draw(node: Client, rank: int, epoch: int, positions: NDArray[np.int64]) -> None:
            for part in node.draw(order, epoch, positions, owner=os.getpid()):
                drawn.extend(part.places.tolist() if not epoch else ())

        positions = [np.arange(rank, order.samples, 2) for rank in range(2)]
        for rank, node in (1, behind), (0, ahead):
            node.begin(order, 1, Announcement(0, 0, rank, 2, 0), turn=0)
            draw(node, rank, 0, positions[rank][: 50 if rank else None])
        ahead.begin(order, 1, Announcement(1, 0, 0, 2, 0), turn=0)
        draw(ahead, 0, 1, positions[0][:8])
        server.kill()
        server.start()
        draw(ahead, 0, 1, positions[0][8:16])
        draw(behind, 1, 0, positions[1][50:])
    assert sorted(drawn) == list(range(order.samples))
