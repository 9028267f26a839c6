"""Several nodes in one process, on a network where anything arrives at any time: the books of each are always right."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.cluster.process import server_of
from brand.node.decide.draws.draws import LONGEST_WAIT_S
from brand.node.decide.peers.receiving import SILENCE_S
from brand.node.decide.state.states import HELD
from brand.node.serve import lifetime
from brand.node.setup.server_spec import Member, ServerSpec
from brand.node.wire import peer_messages as wire
from brand.node.wire.network import PeerStream
from brand.testing.node import random_address, running
from tests.rounds import Chance, rounds
from tests.several_nodes.world import Cluster, Walk, walk

WALKS, STEPS = 12, 350
"""The walks of a round, and the steps of a walk. The hundred rounds of `make explore` take 420,000 steps."""
SLOTS = {"protocol": "slots", "group_chunks": 2, "nodes": 2, "ranks": 2, "window": 8, "remote": 8}


def two_nodes() -> Cluster:
    """Two nodes with a rank each, that reach each other; little memory is short."""
    cluster = Cluster([96] * 64, 4, pages=60, remote_pages=20, nodes=2, on_each=1, batch=6, order=SLOTS)
    cluster.join()
    return cluster


@pytest.mark.slow
@rounds(1)
def test_every_page_has_one_owner_on_every_node(chance: Chance, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever arrives late, whoever is slow, whichever stream ends: each answer is the plan's, and none is missing."""
    caplog.set_level(logging.CRITICAL)
    for seed in chance.seeds(WALKS):
        walk(seed, STEPS)


@pytest.mark.slow
@rounds(1)
def test_trainings_that_share_draw_alike_on_every_node(chance: Chance, caplog: pytest.LogCaptureFixture) -> None:
    """Also where servers start anew and streams end while nodes agree on joins."""
    caplog.set_level(logging.CRITICAL)
    for seed in chance.seeds(WALKS):
        walk(seed, STEPS, sharing=True)


@pytest.mark.slow
@rounds(1)
def test_trainings_in_lock_step_never_wait_for_ever(chance: Chance, caplog: pytest.LogCaptureFixture) -> None:
    """Neither if ranks of one training are at different positions, servers restart, or reports are lost."""
    caplog.set_level(logging.CRITICAL)
    for seed in chance.seeds(WALKS):
        walk(seed, STEPS, sharing=True, in_step=True)


@pytest.mark.slow
@rounds(1)
def test_one_order_is_decided_for_all_nodes(chance: Chance, caplog: pytest.LogCaptureFixture) -> None:
    """Streams end and servers are replaced meanwhile. No sample comes twice, and each draw is answered."""
    caplog.set_level(logging.CRITICAL)
    for seed in chance.seeds(WALKS):
        walk(seed, STEPS, sharing=True, online=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [518, 552, 665, 1663, 3862, 4443, 6390])
def test_an_order_that_was_decided_is_not_decided_again(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Walks that found faults, such as: a run has ended on the first node, and goes on where its order is known."""
    caplog.set_level(logging.CRITICAL)
    walk(seed, 600, sharing=True, online=True)


@pytest.mark.slow
def test_a_run_is_released_after_the_stream_that_told_of_it_has_opened_again(caplog: pytest.LogCaptureFixture) -> None:
    """A walk that left a run on a node: the vote that names the run arrived after the stream's opening was noted."""
    caplog.set_level(logging.CRITICAL)
    walk(389, 600, sharing=True, in_step=True)


@pytest.mark.slow
@rounds(1)
def test_samples_larger_than_a_message_take_pages_once(chance: Chance, caplog: pytest.LogCaptureFixture) -> None:
    """They are sent in parts: a stream that ends between two parts, or a node that is slow, leaves no page behind."""
    caplog.set_level(logging.CRITICAL)
    for number, seed in enumerate(chance.seeds(WALKS)):
        walk(seed, STEPS, sharing=number % 2 == 1, in_parts=True)


def test_an_epoch_that_comes_late_is_asked_for_once() -> None:
    """A draw has waited for ranks of other nodes: what the plan foresees is asked for, and nothing of it is hurried."""
    cluster = two_nodes()
    first, second = cluster.ranks
    first.go_on()
    first.go_on()
    cluster.round()
    cluster.later(0.5)
    assert not cluster.worlds[0].epochs(), "the epoch waits for the other rank"
    second.go_on()
    cluster.talk()
    cluster.worlds[1].step()
    cluster.talk()
    counters = cluster.worlds[0].core.counters.nodes
    plan = next(iter(cluster.worlds[0].plans.values()))
    assert plan.requests is not None
    foreseen = np.isin(np.arange(0, 12, 2), plan.requests.positions).sum()
    cluster.worlds[0].step()
    cluster.talk()
    cluster.settle()
    assert foreseen > 1
    assert (counters.requests, counters.on_demand) == (foreseen, 0)


def test_a_position_that_is_drawn_twice_is_asked_for_once() -> None:
    """A batch may name a sample twice: it is in memory once, and its owner sends it once."""
    cluster = two_nodes()
    for rank in cluster.ranks:
        rank.go_on()
    cluster.round()
    rank = cluster.ranks[0]
    requests = rank.world.epochs()[rank.run, 0].epoch.requests
    assert requests is not None
    asked = [position for position in requests.positions.tolist() if position % 2 == rank.rank][:3]
    assert rank.world.draw(rank.client, rank.run, 0, asked + asked[::-1])
    cluster.settle()
    assert rank.world.core.counters.nodes.requests == len(asked)


def test_a_node_that_asks_twice_is_sent_once() -> None:
    """Also where it breaks the rules, and names what is not its to draw: the owner's memory stays its own."""
    cluster = two_nodes()
    for rank in cluster.ranks:
        rank.go_on()
    cluster.rest()
    rank = cluster.ranks[0]
    worlds = rank.world, cluster.worlds[1]
    epoch, owner = (world.epochs()[rank.run, 0].epoch for world in worlds)
    held = np.flatnonzero(owner.states.are(HELD, owner.plan.sample_of))
    assert len(held) > 4
    for positions in (np.repeat(held, 2), np.tile(np.arange(64), 2)):
        cluster.network.peer(0).send(
            PeerStream(1, asks=True), wire.pack(wire.SampleRequest(epoch.number, 1 << 20, positions))
        )
        cluster.talk()
        cluster.worlds[1].step()
    cluster.end()


@pytest.mark.slow
def test_nodes_that_begin_at_different_positions_draw_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever is faster: every rank is refused before its first draw is answered, and hears who begins where."""
    caplog.set_level(logging.CRITICAL)
    for seed in range(40):
        walk = Walk(seed)
        walk.trouble, walk.slow = 0.0, min(walk.slow, 0.02)
        walk.restarts = walk.fetches = 0.0
        if walk.cluster.second is not None:
            continue  # a training that agrees goes on
        ranks = walk.cluster.ranks
        for rank in ranks:
            rank.start = 0 if rank.rank < walk.cluster.on_each else 1
        if len(walk.cluster.sizes) <= len(ranks):
            continue  # a rank without a position goes on to the next epoch
        for _ in range(150):
            walk.step()
        walk.cluster.join()
        for rank in ranks:
            if rank.position is None and not rank.waits:
                rank.go_on()
        walk.cluster.rest()
        for rank in ranks:
            assert rank.world.answered == []
            assert "begins epoch 0 at position" in rank.world.refused[rank.client]


def test_the_first_draw_of_an_epoch_waits_until_others_have_said_what_they_begin() -> None:
    """Once: those that are behind with their next epoch hold nobody up."""
    cluster = two_nodes()
    first, second = cluster.ranks
    first.go_on()
    first.go_on()
    cluster.rest()
    cluster.later(LONGEST_WAIT_S - 1)
    cluster.rest()
    assert first.waits
    second.go_on()
    cluster.rest()
    assert not first.waits
    first.go_on()
    cluster.rest()
    assert not first.waits


@pytest.mark.parametrize(
    ("cut", "limit_s"),
    [([], LONGEST_WAIT_S), ([(0, 1), (1, 0)], SILENCE_S), ([(0, 1)], SILENCE_S), ([(1, 0)], SILENCE_S)],
)
def test_nobody_is_waited_for_without_a_limit(cut: list[tuple[int, int]], limit_s: float) -> None:
    """A rank that never begins is not waited for longer than storage is; less long where a node says nothing more."""
    cluster = two_nodes()
    rank = cluster.ranks[0]
    rank.go_on()
    for pair in cut:
        cluster.network.cut(*pair)
    rank.go_on()
    cluster.rest()
    cluster.later(limit_s - 0.5)
    cluster.rest()
    assert rank.waits
    cluster.later(1.0)
    cluster.rest()
    assert not rank.waits


@pytest.mark.parametrize("order", [{"group_chunks": 3, "stripe": 2}, SLOTS | {"group_chunks": 3}])
def test_undisturbed_ranks_in_step_get_every_sample_from_memory(order: dict[str, Any]) -> None:
    """Two epochs in little memory: each sample is read or sent in time, and none is given up on the way."""
    cluster = Cluster([96] * 96, 4, pages=60, remote_pages=16, nodes=2, on_each=1, batch=4, order=order)
    cluster.join()
    while cluster.ranks[0].epoch < 2:
        for rank in cluster.ranks:
            rank.go_on()
        cluster.rest()
        for world in cluster.worlds:
            for lease in list(world.held):
                world.release(lease)
        cluster.rest()
    for world in cluster.worlds:
        counters = world.core.counters
        assert (counters.draws.fetched, counters.draws.direct, counters.nodes.timeouts) == (96, 0, 0)
        assert counters.nodes.received > 20
    cluster.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [{"group_chunks": 3, "stripe": 2}, SLOTS | {"group_chunks": 3, "nodes": 3, "ranks": 3, "window": 40, "remote": 40}],
    ids=["stripes", "slots"],
)
def test_a_server_that_is_replaced_leaves_few_samples_to_direct_reads(order: dict[str, Any]) -> None:
    """Its rank says what it has drawn: all nodes read and send the other samples in time, and into free memory."""
    cluster, direct = Cluster([96] * 288, 4, pages=100, remote_pages=24, nodes=3, on_each=1, batch=4, order=order), 0
    cluster.join()
    first = cluster.ranks[0]
    while first.epoch < 3:
        for rank in cluster.ranks:
            rank.go_on()
        cluster.rest()
        for world in cluster.worlds:
            for number, held in list(world.held.items()):
                direct += int((held.lease.state == 0).sum())
                world.release(number)
        cluster.rest()
        if first.steps == 24 + 8:  # a third of epoch 1
            assert direct == 0
            cluster.restart(2)
            cluster.join()
    assert direct < (24 - 8) * 4 / 5, "of the 64 samples that the rank has not drawn"
    cluster.end()


def test_a_draw_does_not_wait_for_a_node_that_is_lost() -> None:
    """No time passes: what the lost node should have sent is read exactly at once, and sent again when it is back."""
    cluster = Cluster([96] * 64, 4, pages=60, remote_pages=8, nodes=2, on_each=1, batch=8, order={"group_chunks": 2})
    cluster.join()
    for rank in cluster.ranks:
        rank.go_on()
    cluster.rest()
    for pair in cluster.pairs:
        cluster.network.cut(*pair)
    cluster.rest()
    first = cluster.ranks[0]
    for _ in range(3):
        first.go_on()
        cluster.rest()
        assert not first.waits
        for lease in list(first.world.held):
            first.world.release(lease)
    counters = first.world.core.counters
    assert counters.draws.direct > 0
    cluster.join()
    before = counters.nodes.received
    cluster.rest()
    assert counters.nodes.received > before


def test_a_rank_that_is_done_before_others_have_planned_is_not_waited_for() -> None:
    """With `locality`, where positions are divided once all ranks have begun: one of them has, and has left."""
    cluster = two_nodes()
    slow, fast = cluster.ranks
    for rank in (slow, fast):
        rank.world.begin(rank.client, rank.run, 0, rank=rank.rank, replicas=2, batch=4)
    cluster.talk()
    for world in cluster.worlds:
        world.step()
    cluster.talk()
    fast.world.finish_job()
    assert fast.world.epochs(), "all ranks have begun, as far as this node knows"
    fast.world.leave(fast.client)
    fast.world.step()
    cluster.talk()
    slow.world.finish_job()
    [live] = slow.world.epochs().values()
    mine = live.epoch.division.positions(slow.rank)
    theirs = live.epoch.division.positions(fast.rank)
    assert sorted([*mine.tolist(), *theirs.tolist()]) == list(range(64))


def test_a_cluster_is_complete_when_all_have_met() -> None:
    """Both ways, at some time: a stream that ends later does not make it incomplete."""
    cluster = Cluster([96] * 64, 4, pages=60, remote_pages=20, nodes=3, on_each=1, batch=6, order={"group_chunks": 2})
    peers = [world.turn.peering.peers for world in cluster.worlds if world.turn.peering is not None]
    for pair in cluster.pairs:
        assert not all(one.complete for one in peers)
        cluster.network.open(*pair)
        cluster.talk()
    assert all(one.complete for one in peers)
    cluster.network.cut(0, 1)
    cluster.talk()
    assert all(one.complete for one in peers)


def test_a_server_that_waits_for_others_misses_no_clients(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the nodes of a cluster take to start, those that are there already do not end meanwhile."""
    monkeypatch.setattr(lifetime, "LINGER_S", -1.0)
    member = Member(0, 2, "a token for tests only, 32 bytes")
    server = server_of(ServerSpec(texts, random_address(), 0.5, (os.getpid(),), member))
    with running(str(texts), server) as found:
        for _ in range(3):
            assert found.facts()["clients"] == 1
