"""A node whose memory is full while other nodes wait for its samples."""

from __future__ import annotations

from brand.node.decide.peers.sending import queue_to
from brand.node.wire.numbers import NodeNumber
from tests.several_nodes.world import Cluster

SIZES = [90] * 96
ORDER = {"protocol": "uniform", "group_chunks": 1, "seed": 1}


def test_the_memory_cache_is_kept_while_a_node_waits_for_what_is_in_memory() -> None:
    """The node reads ahead, so its memory is full. Its cached samples make space only for a read that a node waits for.

    The other node asks for a sample that was read and waits to be sent: no read would help.
    """
    cluster = Cluster(SIZES, 4, 40, 4, 2, 1, 2, ORDER)
    cluster.join()
    for _ in range(2):  # both begin, and one of them draws its first batch, with which memory is chosen
        for rank in cluster.ranks:
            rank.go_on()
        cluster.settle()
    here, there = cluster.worlds
    core = here.core
    ((key, live),) = core.epochs.lives.live()
    plan, states = live.epoch.plan, live.epoch.states
    queue = queue_to(live.epoch, NodeNumber(1))
    held = [at for at in queue.next().tolist() if core.residents.present(plan.sample_of[[at]])[0]]
    kept = core.residents.kept_pages
    assert held
    assert kept
    assert core.reads.no_room
    (client, run) = cluster.ranks[1].client, cluster.ranks[1].run
    assert there.draw(client, run, key[1], held[-1:])
    urgent = 0
    while client in there.asked:
        urgent += queue.urgent
        waits = states.waited_for(plan.sample_of[queue.unanswered])
        assert core.epochs.features.waited_for == bool(queue.urgent)
        assert core.epochs.features.waits_for_reads == waits.any()
        cluster.later(0.25)
        cluster.round()
    assert urgent
    assert core.residents.kept_pages == kept
