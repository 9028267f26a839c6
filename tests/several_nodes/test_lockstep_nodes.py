"""Jobs in lock step on several nodes: nobody is far ahead, each sample is read once for all, and every wait ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.node.decide.peers.receiving import SILENCE_S
from brand.node.decide.sharing.consensus import ANSWER_S
from brand.node.decide.sharing.job_sharing import AWAY_S, GATHER_S
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.joins import alone
from brand.orders.policies.other_systems import CoordlPolicy
from tests import places
from tests.made_orders import order_of
from tests.rounds import Chance, rounds
from tests.several_nodes.support import all_open, draw_in_step
from tests.several_nodes.test_leading import lose, release
from tests.several_nodes.test_sharing_nodes import JOBS, check_jobs, ranks_of
from tests.several_nodes.world import Cluster
from tests.several_nodes.world import Rank as MadeRank
from tests.support import wait_until
from tests.tools.cluster import running_cluster

pytestmark = pytest.mark.slow

SAMPLES, SIZE, WINDOW, BATCH = 384, 96, 48, 8
REMOTE = 64
NAMES = "other", "run"
STEP: dict[str, Any] = {
    "protocol": "coordl", "group_chunks": 8, "stripe": 4, "seed": 1, "jobs": 2, "window": WINDOW
}  # fmt: skip


def cluster_of(nodes: int, *, jobs: int = 2, **homes: list[int]) -> Cluster:
    """Nodes with two jobs, `run` and `other`, on all of them or on their `homes`. `jobs` of them begin together."""
    pages, order = int(SAMPLES * 1.2 / nodes) + REMOTE, STEP | {"jobs": jobs}
    cluster = Cluster(
        *([SIZE] * SAMPLES, 16, pages, REMOTE, nodes, 1, BATCH, order), depth=3, second=order, homes=homes
    )
    cluster.join()
    return cluster


def of_job(cluster: Cluster, name: str) -> list[MadeRank]:
    return [rank for rank in cluster.ranks if rank.name == name]


def front(cluster: Cluster, name: str) -> int:
    """How many samples all ranks of a job have been given, over all epochs."""
    given = {epoch: cluster.given(name, epoch) for epoch in range(1 + max(r.epoch for r in of_job(cluster, name)))}
    return sum(map(len, given.values()))


def go(cluster: Cluster, ranks: Sequence[MadeRank], seconds: float = 0.1) -> None:
    """These ranks go on, if they have what they have asked for."""
    for rank in ranks:
        if not rank.waits:
            rank.go_on()
    cluster.rest()
    release(cluster)
    cluster.rest()
    cluster.later(seconds)
    cluster.rest()


def read(cluster: Cluster) -> int:
    """Samples that all nodes have read."""
    return sum(sum(world.read_bytes.values()) for world in cluster.worlds) // SIZE


@rounds(2)
def test_all_draw_the_same_order_and_nobody_is_far_ahead(chance: Chance) -> None:
    """Whatever ranks ask in whatever order, on nodes that both jobs have, or that they have not in common."""
    rng = chance.rng
    homes: dict[str, Any] = rng.choice([{}, {"run": [0, 1], "other": [1, 2]}, {"run": [1], "other": [2, 0]}])
    cluster = cluster_of(3, **homes)
    most = 0
    while min(rank.epoch for rank in cluster.ranks) < 2:
        eager = rng.choice(NAMES)
        for _ in range(rng.randint(1, 12)):
            behind = min(rank.steps for rank in of_job(cluster, eager))
            # As with gradients that are averaged: the ranks of a job step together.
            go(cluster, [r for r in of_job(cluster, eager) if r.steps == behind], rng.choice([0.0, 0.1, 0.3]))
        ahead = front(cluster, "run") - front(cluster, "other")
        most = max(most, abs(ahead))
    assert WINDOW // 2 <= most <= WINDOW + 3 * BATCH * 2
    for epoch in range(2):
        found = [cluster.given(name, epoch) for name in NAMES]
        assert found[0] == found[1]
        assert sorted(found[0].values()) == list(range(SAMPLES))
    cluster.end()


def test_each_sample_is_read_once_for_all() -> None:
    """By its home node, for both jobs and all ranks, with memory for what they mix and for the window."""
    cluster = cluster_of(3)
    while min(rank.epoch for rank in cluster.ranks) < 1 or any(rank.waits for rank in cluster.ranks):
        go(cluster, cluster.ranks)
    reads_of_next = sum(
        size
        for world in cluster.worlds
        for key, live in world.epochs().items()
        for (number, _), size in world.read_bytes.items()
        if key[1] > 0 and number == live.epoch.number
    )
    assert SAMPLES <= read(cluster) - reads_of_next // SIZE < 1.05 * SAMPLES
    assert sum(world.core.counters.draws.direct for world in cluster.worlds) == 0


def test_nobody_begins_before_all_are_there_on_any_node() -> None:
    """The second job is on other nodes. Who waits in vain is refused after a minute, by an error with names."""
    cluster = cluster_of(3, run=[0, 1], other=[2])
    run, other = of_job(cluster, "run"), of_job(cluster, "other")
    for _ in range(3):
        go(cluster, run, 1.0)
    assert all(rank.waits for rank in run)
    go(cluster, other)
    go(cluster, other)
    assert not any(rank.waits for rank in cluster.ranks)
    lonely = cluster_of(3, run=[0, 1], other=[2])
    for _ in range(8):
        go(lonely, of_job(lonely, "run"), GATHER_S / 6)
    for rank in of_job(lonely, "run"):
        assert "1 of 2 jobs in lock step (run) have begun within 60 s" in rank.world.refused[rank.client]


def test_a_report_proves_that_all_jobs_were_there() -> None:
    """The other job has ended before the second node heard of it: that node's rank goes on as the first node's does."""
    cluster = cluster_of(3, run=[0, 1], other=[2])
    run, [other] = of_job(cluster, "run"), of_job(cluster, "other")
    for pair in ((1, 2), (2, 1)):
        cluster.network.cut(*pair)
    go(cluster, run)
    for _ in range(3):
        go(cluster, [*run, other])
    other.world.leave(other.client)
    cluster.rest()
    for _ in range(4):
        go(cluster, run, SILENCE_S)
    assert min(rank.steps for rank in run) > 2
    assert not any(rank.waits for rank in run)
    assert not any(world.refused for world in cluster.worlds)


@pytest.mark.parametrize("how", ["killed", "stopped", "lost"])
def test_a_job_that_is_gone_or_away_is_not_waited_for(how: str) -> None:
    """A killed one at once, one of a lost node at once, a stopped one after a while."""
    cluster = cluster_of(3, run=[0, 1], other=[2])
    run, [other] = of_job(cluster, "run"), of_job(cluster, "other")
    for _ in range(4):
        go(cluster, cluster.ranks)
    for _ in range(20):
        go(cluster, run)
    assert all(rank.waits for rank in run)
    held_at = front(cluster, "run")
    assert held_at - front(cluster, "other") <= WINDOW + 2 * BATCH
    if how == "killed":
        other.world.leave(other.client)
        cluster.rest()
    elif how == "lost":
        lose(cluster, 2)
        cluster.later(SILENCE_S)
    else:
        cluster.later(AWAY_S - 8)
        cluster.rest()
        assert front(cluster, "run") == held_at
        cluster.later(9)
    cluster.rest()
    for _ in range(10):
        go(cluster, run, SILENCE_S if how == "lost" else 0.1)
    assert front(cluster, "run") >= held_at + 8 * 2 * BATCH
    if how == "stopped":
        while other.epoch == 0 or other.waits:
            go(cluster, cluster.ranks)
        assert sorted(cluster.given("other", 0).values()) == list(range(SAMPLES))


def test_without_a_leader_jobs_stay_in_step() -> None:
    """It only serves, and is lost: the node of rank 0 decides the same laps, so jobs still wait for each other."""
    cluster = cluster_of(3, run=[1, 2], other=[2, 1])
    for _ in range(6):
        go(cluster, cluster.ranks)
    lose(cluster, 0)
    cluster.later(SILENCE_S)
    waited_s = 0.0
    while min(rank.epoch for rank in cluster.ranks) < 3:
        go(cluster, cluster.ranks, 0.25)
        waited_s = waited_s + 0.25 if all(rank.waits for rank in cluster.ranks) else 0.0
        assert waited_s < ANSWER_S + SILENCE_S + 1
        assert abs(front(cluster, "run") - front(cluster, "other")) <= WINDOW + 4 * BATCH
    for epoch in range(3):
        for name in NAMES:
            assert sorted(cluster.given(name, epoch).values()) == list(range(SAMPLES))
        for world in cluster.worlds[1:]:
            for number in world.core.epochs.runs:
                assert world.joins((number, epoch)) in ((), alone(epoch))
    texts = [text for world in cluster.worlds for text in world.core.epochs.runs.take_notices()]
    assert any("as this node knows the jobs" in text for text in texts)


def test_without_a_leader_a_later_job_joins_the_lap_under_way() -> None:
    """Not a lap of its own, in which it could wait for nobody."""
    cluster = cluster_of(3, jobs=1, run=[1], other=[2])
    run, other = of_job(cluster, "run"), of_job(cluster, "other")
    while run[0].epoch < 1 or run[0].waits:
        go(cluster, run)
    for _ in range(5):
        go(cluster, run)
    lose(cluster, 0)
    for _ in range(20):
        go(cluster, other, 0.5)
    world = other[0].world
    assert front(cluster, "other") > 0
    assert world.joins((other[0].run, 0)) == alone(1)


def test_a_replaced_server_learns_how_far_the_others_are() -> None:
    """Their ranks draw nothing meanwhile, so nothing changes that would be reported."""
    cluster = cluster_of(3, run=[1], other=[2])
    run, other = of_job(cluster, "run"), of_job(cluster, "other")
    for _ in range(12):
        go(cluster, cluster.ranks)
    for _ in range(4):
        go(cluster, run)
    cluster.restart(2)
    cluster.join()
    for _ in range(8):
        go(cluster, other, 0.3)
    known = [live.epoch.progress.elsewhere for live in other[0].world.epochs().values()]
    assert {NodeNumber(1): front(cluster, "run")} in known


def test_a_replaced_server_learns_that_all_were_there() -> None:
    """Node 1 is replaced in the first epoch, after the other job has ended: the job goes on at once."""
    cluster = cluster_of(2, run=[0, 1], other=[0])
    run, [other] = of_job(cluster, "run"), of_job(cluster, "other")
    for _ in range(5):
        go(cluster, cluster.ranks)
    other.world.leave(other.client)
    cluster.rest()
    cluster.restart(1)
    cluster.join()
    for _ in range(SAMPLES // BATCH):
        go(cluster, run, 0.3)
        cluster.join()
    assert not any(world.refused for world in cluster.worlds)
    assert sorted(cluster.given("run", 0).values()) == list(range(SAMPLES))


@places.EVERYWHERE
@pytest.mark.parametrize("nodes", [2, 3])
def test_real_servers_keep_the_jobs_in_step(texts: Path, nodes: int) -> None:
    """Joined by gRPC: each job draws each sample once in the same order, and about half a read serves a draw."""
    order, epochs = order_of(texts, CoordlPolicy(4, 4, 2, 256)), 3
    with ExitStack() as stack, running_cluster(texts, nodes=nodes, memory=0.6) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        drawing = ranks_of(stack, texts, order, cluster.addresses)
        draw_in_step([*itertools.chain(*drawing.values())], range(epochs))
        check_jobs(drawing, epochs)
        for epoch in range(epochs):
            one, two = ([np.concatenate(rank.drawn[epoch]).tolist() for rank in drawing[name]] for name in JOBS)
            assert one == two
        facts = [cluster.facts(node) for node in cluster.servers]
    drawn = sum(fact["fetched"] for fact in facts) / order.samples
    assert drawn == 2 * epochs
    assert sum(fact["read_bytes"] for fact in facts) / facts[0]["data_bytes"] / drawn < 0.7
