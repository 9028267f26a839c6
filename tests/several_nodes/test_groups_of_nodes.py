"""Model-parallel groups with ranks on several nodes: each node reads its samples once, and sends them to all others."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.rounds import Chance, rounds
from tests.several_nodes.world import Cluster, walk

WALKS, STEPS = 20, 350
SAMPLES = 192


def epochs_in_step(nodes: int, on_each: int, group: tuple[int, int], order: dict[str, Any], epochs: int) -> Cluster:
    """All ranks of a training draw some epochs in step, with memory for half of the data on each node."""
    cluster = Cluster([96] * SAMPLES, 4, 100, 50, nodes, on_each, 4, order, group=group)
    cluster.join()
    while min(rank.epoch for rank in cluster.ranks) < epochs:
        for rank in cluster.ranks:
            rank.go_on()
        cluster.rest()
        for world in cluster.worlds:
            for lease in list(world.held):
                world.release(lease)
    return cluster


def counts(cluster: Cluster) -> list[tuple[int, int]]:
    """The samples that each node has read for its run, and those that its clients read themselves."""
    found = []
    for world in cluster.worlds:
        [run] = world.core.epochs.runs.values()
        found.append((run.loaded, world.core.draws._counters.direct))
    return found


@pytest.mark.parametrize("order", [{"stripe": 2, "group_chunks": 4}, {"protocol": "uniform"}], ids=str)
@pytest.mark.parametrize(
    ("nodes", "on_each", "group"), [(2, 1, (1, 2)), (2, 4, (2, 2)), (3, 2, (1, 3)), (4, 2, (2, 2))]
)
def test_a_sample_is_read_once_for_all_nodes_of_a_group(
    nodes: int, on_each: int, group: tuple[int, int], order: dict[str, Any]
) -> None:
    """In step, all samples come from memory, and an epoch reads no more than one of ranks without groups."""
    cluster = epochs_in_step(nodes, on_each, group, order, 2)
    apart = epochs_in_step(nodes, on_each, (1, 1), order, 2)
    assert sum(loaded for loaded, _ in counts(cluster)) <= sum(loaded for loaded, _ in counts(apart))
    assert all(direct == 0 for _, direct in counts(cluster))
    for epoch in range(2):
        assert len(cluster.given("run", epoch)) == SAMPLES
    cluster.end()


@pytest.mark.slow
@rounds(1)
def test_every_draw_of_a_group_on_several_nodes_is_answered(chance: Chance, caplog: pytest.LogCaptureFixture) -> None:
    """Streams that end, servers that are replaced, members at any distance: each answer is the plan's."""
    caplog.set_level(logging.CRITICAL)
    for seed in chance.seeds(WALKS):
        walk(seed, STEPS, groups=True)
