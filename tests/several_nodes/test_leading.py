"""Jobs that share on several nodes: every node joins them in the same way, or no node draws; nobody waits for long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from brand.node.decide.peers.receiving import SILENCE_S
from brand.node.decide.sharing.consensus import ANSWER_S, LIMIT_S
from brand.orders.base.joins import Join, alone
from brand.orders.policies.shared_policy import UNIT
from tests.rounds import Chance, rounds
from tests.several_nodes.world import Cluster

pytestmark = pytest.mark.slow

SAMPLES, SIZE = 384, 96
REMOTE = 64
NAMES = "other", "run"
SHARED: dict[str, Any] = {"protocol": "shared", "group_chunks": 8, "stripe": 4, "seed": 1}


def cluster_of(nodes: int, *, share: float = 0.8, batch: int = 16, **homes: list[int]) -> Cluster:
    """Nodes with two jobs, `run` and `other`, on all of them or on their `homes`."""
    pages = int(SAMPLES * share / nodes) + REMOTE
    return Cluster(
        *([SIZE] * SAMPLES, 16, pages, REMOTE, nodes, 1, batch, SHARED),
        depth=3,
        second=SHARED,
        homes=homes,
    )


def lose(cluster: Cluster, node: int) -> None:
    """No other node can reach this one, or hear it."""
    for pair in cluster.pairs:
        if node in pair:
            cluster.network.cut(*pair)
    cluster.rest()


def release(cluster: Cluster) -> None:
    """Clients have copied what they have got."""
    for world in cluster.worlds:
        for lease in list(world.held):
            world.release(lease)


def go(cluster: Cluster, names: Sequence[str] = NAMES, seconds: float = 0.05) -> None:
    """All ranks of these jobs draw a batch, in step."""
    for rank in cluster.ranks:
        if rank.name in names and not rank.waits:
            rank.go_on()
    cluster.rest()
    release(cluster)
    cluster.rest()
    cluster.later(seconds)


def draw_epochs(cluster: Cluster, epochs: int, seconds: float = 0.05) -> None:
    """All ranks draw so many epochs, and have got all that they have asked for."""
    while min(rank.epoch for rank in cluster.ranks) < epochs or any(rank.waits for rank in cluster.ranks):
        go(cluster, seconds=seconds)


def given(cluster: Cluster, name: str, epoch: int) -> list[int]:
    """The places that all ranks of a job have got in an epoch, sorted."""
    return sorted(cluster.given(name, epoch).values())


def joins_of(cluster: Cluster, name: str, epoch: int, at: Sequence[int] = (0, 1, 2)) -> set[tuple[Join, ...]]:
    """With which joins these nodes draw an epoch of a job."""
    found = set()
    for world in [world for node, world in enumerate(cluster.worlds) if node in at]:
        for number, run in world.core.epochs.runs.items():
            if run.name == name:
                found.add(world.joins((number, epoch)))
    return found - {()}


def read(cluster: Cluster) -> int:
    """Samples that all nodes have read."""
    return sum(sum(world.read_bytes.values()) for world in cluster.worlds) // SIZE


@pytest.mark.parametrize("nodes", [2, 3])
def test_two_jobs_in_step_on_all_nodes_read_everything_once(nodes: int) -> None:
    """The owner's read serves both, and every rank of both: half a read a draw."""
    cluster = cluster_of(nodes)
    cluster.join()
    draw_epochs(cluster, 2)
    for epoch in range(2):
        for name in NAMES:
            assert given(cluster, name, epoch) == list(range(SAMPLES))
            assert len(joins_of(cluster, name, epoch)) == 1
    assert read(cluster) < 2.9 * SAMPLES  # in two epochs of each, and what is read ahead for the third
    exact = sum(world.core.counters.draws.direct for world in cluster.worlds)
    assert exact < 0.02 * 4 * SAMPLES
    cluster.end()


def test_a_job_elsewhere_joins_where_the_leader_sees_the_front() -> None:
    """No rank of either job is at the leader's node, and they have no node in common: it hears how far they are."""
    cluster = cluster_of(3, run=[1], other=[2])
    cluster.join()
    while cluster.ranks[0].position != SAMPLES // 2:
        go(cluster, ("run",))
    cluster.later(1.0)
    go(cluster)
    go(cluster)
    (joins,) = joins_of(cluster, "other", 0)
    assert joins[0].lap == 0
    assert abs(joins[0].front - SAMPLES // 2) <= 16
    assert joins[0].pace == UNIT
    draw_epochs(cluster, 1)
    assert given(cluster, "other", 0) == given(cluster, "run", 0) == list(range(SAMPLES))


def test_a_job_alone_draws_as_stripes_do_on_any_node() -> None:
    """Lap after lap, whoever decides."""
    cluster = cluster_of(2)
    cluster.join()
    for _ in range(3):
        go(cluster, ("run",))
    assert joins_of(cluster, "run", 0) == {alone(0)}
    [live] = cluster.worlds[1].epochs().values()
    stripes = cluster.worlds[0].register(99, "stripes", **SHARED | {"protocol": "stripes"})
    plan = cluster.worlds[0].runs[stripes].order.plan(0)
    assert live.epoch.plan.sample_of.tolist() == plan.sample_of.tolist()


def test_the_leader_is_not_waited_for_longer_than_two_seconds() -> None:
    """It is lost before it has decided. The node of rank 0 decides that the job draws for itself."""
    cluster = cluster_of(3, run=[1, 2], other=[2, 1])
    cluster.join()
    lose(cluster, 0)
    for _ in range(2):
        go(cluster, seconds=0.0)
    assert all(rank.waits for rank in cluster.ranks)
    assert joins_of(cluster, "run", 0) == set()
    cluster.later(ANSWER_S + 0.1)
    cluster.rest()
    assert not any(rank.waits for rank in cluster.ranks)
    assert joins_of(cluster, "run", 0) == {alone(0)}
    notices = [text for world in cluster.worlds for text in world.core.epochs.runs.take_notices()]
    assert sorted(notices) == [
        f"node 0 does not answer: job {name} reads epoch 0 without joining other jobs" for name in NAMES
    ]


def test_two_nodes_that_cannot_hear_each_other_draw_nothing() -> None:
    """Either could have decided otherwise: each refuses its ranks in the end, and says whom it misses."""
    cluster = cluster_of(2)
    cluster.join()
    for rank in cluster.ranks:
        rank.go_on()
    for pair in cluster.pairs:
        cluster.network.cut(*pair)
    cluster.rest()
    for rank in cluster.ranks:
        rank.go_on()
    for _ in range(10):
        cluster.later(LIMIT_S / 9)
        cluster.rest()
    assert not any(world.given for world in cluster.worlds)
    for rank in cluster.ranks:
        other = 1 if rank.world is cluster.worlds[0] else 0
        assert f"no vote from node {other}" in rank.world.refused[rank.client]


def test_what_stands_goes_on_without_the_others() -> None:
    """An epoch that nodes have agreed on is drawn on, and so is the next one that they have read ahead."""
    cluster = cluster_of(2)
    cluster.join()
    while cluster.ranks[0].position is None or cluster.ranks[0].position < 3 * SAMPLES // 4:
        go(cluster)
    assert len(joins_of(cluster, "run", 1)) == 1
    for pair in cluster.pairs:
        cluster.network.cut(*pair)
    while cluster.ranks[0].epoch == 0:
        go(cluster)
        cluster.later(SILENCE_S)
    go(cluster)
    go(cluster)
    cluster.later(SILENCE_S + 0.1)
    cluster.rest()
    assert not any(rank.waits for rank in cluster.ranks)
    assert given(cluster, "run", 0) == list(range(SAMPLES))


@rounds(2)
def test_a_leader_that_is_lost_at_any_moment_holds_nobody_up(chance: Chance) -> None:
    """It only serves. No draw waits longer than the leader is waited for, and every epoch is drawn exactly once.

    Once the jobs do without it, they draw laps of their own, as `stripes` does.
    """
    rng = chance.rng
    cluster = cluster_of(3, run=[1, 2], other=[2, 1])
    cluster.join()
    lost_at, back_at = rng.randrange(40), rng.choice([41, 50, 10**6])
    waited_s = 0.0
    for number in range(4 * SAMPLES // 32):
        if number == lost_at:
            lose(cluster, 0)
        if number == back_at:
            cluster.join()
        go(cluster, seconds=0.1)
        waited_s = waited_s + 0.1 if any(rank.waits for rank in cluster.ranks) else 0.0
        assert waited_s < ANSWER_S + 0.5
    draw_epochs(cluster, 2, 0.2)
    for name in NAMES:
        for epoch in range(2):
            assert given(cluster, name, epoch) == list(range(SAMPLES))
            assert len(joins_of(cluster, name, epoch, at=(1, 2))) == 1
    if back_at > 100:
        for name in NAMES:
            last = max(rank.epoch for rank in cluster.ranks if rank.name == name)
            (joins,) = joins_of(cluster, name, last, at=(1, 2)) or {alone(last)}
            assert (joins[0].front, joins[0].pace) == (0, 0)
