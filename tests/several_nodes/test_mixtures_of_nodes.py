"""Mixtures whose ranks are on several nodes: each node sends what ranks of other nodes draw of each member."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from brand.errors import UsageError
from brand.node.wire import peer_messages as wire
from brand.node.wire.drawing import Begin, Drawing
from brand.node.wire.network import PeerStream
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.peer_messages import EpochAnnounced
from brand.orders.batch_ranks import BatchRanks, SampleLengths
from brand.orders.batches.batching import BatchLimits
from tests.rounds import Chance, rounds
from tests.several_nodes.mixed import (
    BatchedWalk,
    MixedBatchedWalk,
    MixedRank,
    add_ranks,
    batch_ranks,
    check_end,
    mixed_batch_ranks,
    mixed_walk,
)
from tests.several_nodes.world import Cluster

WALKS, STEPS = 12, 450


def from_memory(cluster: Cluster, ranks: Sequence[MixedRank], epochs: int, lead: int = 1) -> list[Any]:
    """Have ranks draw epochs, at most `lead` batches apart. Check that all samples are in memory in time."""
    cluster.join()
    for _ in range(10_000):
        if min(rank.epoch for rank in ranks) >= epochs:
            break
        for rank in ranks:
            if rank.steps - min(other.steps for other in ranks) < lead and not rank.waits:
                rank.go_on()
        for _ in range(4):
            cluster.rest()
            for rank in ranks:
                if rank.coming:
                    rank.go_on()
            for world in cluster.worlds:
                for lease in list(world.held):
                    world.release(lease)
    else:
        raise AssertionError("a draw waits for a sample that is not in memory in time")
    counters = [world.core.counters for world in cluster.worlds]
    assert sum(each.draws.direct for each in counters) == 0
    assert [each.nodes.timeouts for each in counters] == [0] * cluster.nodes
    return counters


@pytest.mark.slow
@rounds(1)
def test_every_draw_of_a_mixture_is_answered(chance: Chance, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever arrives late, whichever stream ends, and if servers are replaced: no position is drawn twice."""
    caplog.set_level(logging.CRITICAL)
    for seed in chance.seeds(WALKS):
        mixed_walk(seed, STEPS)


@pytest.mark.slow
@rounds(1)
def test_every_draw_of_planned_batches_is_answered(chance: Chance, caplog: pytest.LogCaptureFixture) -> None:
    """Each rank draws whole batches, whose positions are out of order."""
    caplog.set_level(logging.CRITICAL)
    for seed in chance.seeds(WALKS):
        mixed_walk(seed, STEPS, BatchedWalk)


@pytest.mark.slow
@rounds(1)
def test_every_draw_of_planned_batches_of_a_mixture_is_answered(
    chance: Chance, caplog: pytest.LogCaptureFixture
) -> None:
    """Batches also draw the rest of an epoch of a member after the next one has begun."""
    caplog.set_level(logging.CRITICAL)
    for seed in chance.seeds(WALKS):
        mixed_walk(seed, STEPS, MixedBatchedWalk)


@pytest.mark.parametrize("limits", [{"size": 4}, {"row": 20, "rows": 3}], ids=["lengths", "packed"])
def test_batches_of_ranks_in_step_come_from_memory(limits: dict[str, int]) -> None:
    """Nodes send each sample in time to the node whose rank has the batch, in windows that memory can hold."""
    cluster = Cluster([96] * 96, 4, 140, 60, nodes=2, on_each=2, batch=4, order={}, homes={"run": []})
    lengths = SampleLengths(np.arange(96) * 7 % 20 + 1)
    ranks = batch_ranks(cluster, {"group_chunks": 3, "stripe": 2}, BatchLimits(16, lengths.digest, **limits), lengths)
    counters = from_memory(cluster, ranks, epochs=3)
    assert min(each.nodes.received for each in counters) > 30
    check_end(cluster)


@pytest.mark.parametrize("workers", [False, True], ids=["threads", "workers"])
@pytest.mark.parametrize("sizes", [{"size": 1}, {"row": 20, "rows": 1}], ids=["lengths", "packed"])
def test_batches_of_a_mixture_come_from_memory(sizes: dict[str, int], *, workers: bool) -> None:
    """A rank of each node has several batches in a window, some of them from an epoch that it has gone past."""
    cluster = Cluster([96] * 96, 4, 140, 60, nodes=2, on_each=1, batch=4, order={}, homes={"run": []})
    base = {"group_chunks": 3, "stripe": 2}
    members = [base | {"seed": 1}, base | {"seed": 2, "part": -4}]
    lengths = [np.arange(96) * step % 20 + 1 for step in (7, 11)]
    ranks = mixed_batch_ranks(cluster, members, [1.0, 1.0], 70, 16, lengths, sizes, workers=workers)
    counters = from_memory(cluster, ranks, epochs=4)
    assert min(each.nodes.received for each in counters) > 30
    check_end(cluster)


@pytest.mark.parametrize("workers", [False, True], ids=["threads", "workers"])
@pytest.mark.parametrize("lead", [1, 3])
def test_undisturbed_ranks_get_every_sample_from_memory(lead: int, *, workers: bool) -> None:
    """Each sample is read once in an epoch of a member, and sent in time to the node whose rank draws it."""
    members = [{"group_chunks": 3, "stripe": 2, "seed": 1}, {"group_chunks": 3, "stripe": 2, "seed": 2, "part": -4}]
    cluster = Cluster([96] * 96, 4, 140, 60, nodes=2, on_each=2, batch=4, order=members[0], homes={"run": []})
    ranks = add_ranks(cluster, members, [3.0, 1.0], samples=64, batch=4, workers=workers)
    counters = from_memory(cluster, ranks, epochs=4, lead=lead)
    assert min(each.nodes.received for each in counters) > 60
    assert sum(each.draws.fetched for each in counters) == 4 * 64
    check_end(cluster)


def test_a_rule_that_does_not_fit_its_order_is_refused() -> None:
    """A client and another node are refused, before anything of the epoch is known."""
    cluster = Cluster([96] * 24, 4, 60, 20, nodes=2, on_each=1, batch=4, order={}, homes={"run": []})
    cluster.join()
    lengths = SampleLengths(np.arange(23))
    rule = BatchRanks(BatchLimits(16, lengths.digest, size=4), lengths, 0, 0, 2)
    world = cluster.worlds[0]
    run = world.register(1)
    with pytest.raises(UsageError, match="23 lengths for an order of 24 samples"):
        world.begin(1, run, 0, rank=0, replicas=2, rule=rule)
    begin = Begin(0, 2, (1,), node=NodeNumber(1), rule=rule)
    told = EpochAnnounced(Drawing("run", 0, world.runs[run].order, 0, begin, 1), False)
    cluster.network.peer(1).send(PeerStream(NodeNumber(0), asks=True), wire.pack(told))
    cluster.talk()
    assert ["23 lengths for an order of 24" in reason for _, _, reason in cluster.network.hung_up] == [True]
    assert not world.epochs()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 13, 36])
def test_ranks_that_come_late_to_other_weights_are_not_refused(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Walks that found faults: ranks of a node began with new weights while others still had the old ones."""
    caplog.set_level(logging.CRITICAL)
    mixed_walk(seed, 600)
