"""The policies: every MB has a source, nothing is where there is no room, and the best samples are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.papers.demand import PEERS, STORAGE, Demand
from bench.papers.policies import POLICIES
from bench.papers.scene import Scene
from brand.errors import UsageError
from tests.papers.models import scenes
from tests.rounds import examples


def demanded(scene: Scene, policy: str) -> Demand:
    """What a policy asks."""
    return POLICIES[policy](scene, scene.draws())


@pytest.mark.slow
@given(scenes(), st.sampled_from(sorted(set(POLICIES) - {"brand"})))
@examples(100, deadline=None)
def test_every_mb_that_is_trained_has_one_source(scene: Scene, policy: str) -> None:
    """The sum over the sources is what the nodes draw, in every iteration. (Brand draws in an order of its own.)"""
    draws = scene.draws()
    drawn = scene.sizes()[draws].sum(axis=-1).reshape(-1, scene.nodes)
    try:
        demand = POLICIES[policy](scene, draws)
    except UsageError:
        return
    np.testing.assert_allclose(demand.mb.sum(axis=0), drawn)
    assert demand.mb.shape == (scene.tiers + 3, *drawn.shape)
    assert demand.ops is not None
    if policy != "pool":
        np.testing.assert_array_equal(demand.ops.sum(axis=0), scene.batch // scene.nodes)


@pytest.mark.slow
@given(scenes(), st.sampled_from(sorted(POLICIES)))
@examples(100, deadline=None)
def test_nothing_is_loaded_for_which_there_is_no_room(scene: Scene, policy: str) -> None:
    """Neither before training nor beside it. (LBANN loads whole samples into shares that are about equal.)"""
    try:
        demand = demanded(scene, policy)
    except UsageError:
        return
    rooms, sizes = np.array(scene.room_mb[1:]), scene.sizes()
    if demand.preload is not None and policy != "lbann":
        assert (demand.preload.mb <= rooms[:, None] + 1e-9).all()
    if demand.fills is not None:
        for room, of_nodes in zip(rooms, demand.fills.order, strict=True):
            assert all(sizes[order].sum() <= room + 1e-9 for order in of_nodes)


@given(scenes())
@examples(60, deadline=None)
def test_frequency_keeps_what_a_node_draws_most_often(scene: Scene) -> None:
    """More draws mean a faster tier, and then an earlier first draw; a tier is filled in the order of first draws."""
    draws, demand = scene.draws(), demanded(scene, "frequency")
    assert demand.fills is not None
    for node in range(scene.nodes):
        mine = draws[:, :, node].ravel().tolist()
        tiers = [of_nodes[node].tolist() for of_nodes in demand.fills.order]
        placed = {sample: number for number, tier in enumerate(tiers) for sample in tier}
        best_first = sorted(set(mine), key=lambda sample: (-mine.count(sample), mine.index(sample)))
        in_tier = [placed.get(sample, scene.tiers) for sample in best_first]
        assert in_tier == sorted(in_tier)
        assert set(placed) <= set(mine)
        for tier in tiers:
            assert [mine.index(sample) for sample in tier] == sorted(mine.index(sample) for sample in tier)


def next_use(scene: Scene, draws: NDArray[Any], node: int) -> list[list[int]]:
    """The source of each draw of a node, where after each epoch it keeps what it draws soonest; sample by sample."""
    sizes, held = scene.sizes(), dict[int, int]()
    epochs = [epoch[:, node].ravel().tolist() for epoch in draws]
    sources = []
    for number, epoch in enumerate(epochs):
        sources.append([held.get(sample, STORAGE) for sample in epoch])
        following = {s: e for e in range(scene.epochs - 1, number, -1) for s in epochs[e]}
        candidates = sorted((following[s], s) for s in set(held) | set(epoch) if s in following)
        held, tier, left = {}, 0, list(scene.room_mb[1:])
        for _, sample in candidates:
            while tier < scene.tiers and left[tier] < sizes[sample]:
                tier += 1
            if tier < scene.tiers:
                left[tier] -= sizes[sample]
                held[sample] = tier + 1
    return sources


@given(scenes())
@examples(60, deadline=None)
def test_next_use_is_the_slow_model(scene: Scene) -> None:
    """MB of each source, iteration and node."""
    scene, draws = replace(scene, sd_mb=0.0), scene.draws()
    sources = np.stack([next_use(scene, draws, node) for node in range(scene.nodes)], axis=1)
    found = demanded(scene, "next").mb
    each = scene.batch // scene.nodes
    per_batch = sources.reshape(scene.epochs, scene.nodes, -1, each).swapaxes(1, 2).reshape(-1, scene.nodes, each)
    for source in range(scene.tiers + 1):
        np.testing.assert_allclose(found[source], (per_batch == source).sum(axis=-1))


@given(scenes())
@examples(30, deadline=None)
def test_next_use_hits_no_less_than_minio(scene: Scene) -> None:
    """With samples of one size, what is drawn soonest is worth more than what came first."""
    scene = replace(scene, sd_mb=0.0)
    assert demanded(scene, "next").mb[STORAGE].sum() <= demanded(scene, "minio").mb[STORAGE].sum() + 1e-9


def test_minio_on_one_node_hits_its_share_of_the_data() -> None:
    """Half of the data is held: from the second epoch on, half of the draws are hits; so with next use."""
    scene = Scene(100, 1, 0, 4, 1, 10, 100, 200, 1e4, 2e3, ((1, 66),), (1, 1), (20, 50), (1e4, 1e4))
    for policy in ("minio", "next"):
        from_storage = demanded(scene, policy).mb[STORAGE].reshape(4, -1).sum(axis=1)
        assert from_storage.tolist() == [100, 50, 50, 50]


def test_lobster_reads_nothing_from_storage_that_a_node_holds() -> None:
    """With room for all data, every sample is read once by one node; with next use alone, every node reads it."""
    scene = Scene(100, 1, 0, 4, 2, 10, 100, 200, 1e4, 2e3, ((1, 66),), (1, 1), (20, 100), (1e4, 1e4))
    together, alone = (
        demanded(scene, policy).mb.reshape(-1, 4, 10, 2).sum(axis=(2, 3)) for policy in ("lobster", "next")
    )
    assert together[STORAGE].tolist() == [100, 0, 0, 0]
    assert together[PEERS].sum() + 100 == alone[STORAGE].sum() > 150
    assert not alone[PEERS].any()


def test_lobster_keeps_the_last_copy_of_a_sample() -> None:
    """With room for half of the data, all nodes together read less from storage than each for itself."""
    scene = Scene(100, 1, 0, 4, 2, 10, 100, 200, 1e4, 2e3, ((1, 66),), (1, 1), (20, 50), (1e4, 1e4))
    together, alone = (demanded(scene, policy).mb[STORAGE].sum() for policy in ("lobster", "next"))
    assert together < 0.8 * alone


@pytest.mark.slow
@given(scenes())
@examples(60, deadline=None)
def test_brand_trains_every_sample_once_an_epoch(scene: Scene) -> None:
    """Without a last, incomplete iteration. The first epoch reads all data, later ones what no memory holds."""
    scene = replace(scene, samples=scene.iterations * scene.batch)
    try:
        demand = demanded(scene, "brand")
    except UsageError:
        return
    total = scene.sizes().sum()
    np.testing.assert_allclose(demand.trained_mb.reshape(scene.epochs, -1).sum(axis=1), total, atol=scene.samples / 1e6)
    assert (demand.mb >= 0).all()
    read = demand.mb[STORAGE].reshape(scene.epochs, -1).sum(axis=1)
    assert read[0] == pytest.approx(total, abs=scene.samples / 1e6)
    assert (read <= total + scene.samples / 1e6).all()
    assert (read[1:] >= total - scene.nodes * scene.room_mb[1] - scene.samples / 1e6).all()


SMALL = Scene(4096, 0.1, 0, 3, 4, 64, 100, 200, 1e4, 2e3, ((1, 66),), (1, 1), (20, 200), (1e4, 1e4))
"""410 MB of samples that nodes can send each other, and memory for half of them in each of four nodes."""


def by_source_and_epoch(scene: Scene) -> NDArray[np.float64]:
    """MB that Brand's nodes take from each source in each epoch, shape (sources, epochs)."""
    found: NDArray[np.float64] = demanded(scene, "brand").mb.reshape(scene.tiers + 3, scene.epochs, -1).sum(axis=2)
    return found


def test_brand_reads_each_sample_once_where_the_memories_hold_all() -> None:
    """Later epochs draw a quarter from a node's own memory, and three quarters from the others'."""
    found = by_source_and_epoch(SMALL)
    assert found[STORAGE] == pytest.approx([409.6, 0, 0])
    assert found[1] == pytest.approx([102.4] * 3, rel=0.05)
    assert found[1] + found[PEERS] == pytest.approx([409.6] * 3)


def test_brand_keeps_what_its_memory_holds() -> None:
    """On one node with memory for half, the second epoch reads between a half and two thirds."""
    found = by_source_and_epoch(replace(SMALL, nodes=1))
    assert found[STORAGE, 0] == pytest.approx(409.6)
    assert found[STORAGE, 1] == found[STORAGE, 2]
    assert 409.6 / 2 < found[STORAGE, 1] < 409.6 * 2 / 3
    assert not found[PEERS].any()


def test_brand_reads_large_pieces_where_operations_are_few() -> None:
    """66 MB/s and 165 operations a second: reads of 0.4 MB, four samples each."""
    for ops_s, a_read in ((np.inf, 1), (165, 4)):
        ops = demanded(replace(SMALL, storage_ops_s=ops_s), "brand").ops
        assert ops is not None
        assert ops[STORAGE].sum() == 4096 / a_read


def test_brand_sends_samples_of_1_mb() -> None:
    """In memories that hold all, as smaller ones: storage is read in the first epoch only."""
    found = by_source_and_epoch(replace(SMALL, mean_mb=1, room_mb=(20, 2000)))
    assert found[STORAGE] / 4096 == pytest.approx([1, 0, 0])
    assert found[PEERS] / 4096 == pytest.approx([0.75] * 3, rel=0.05)


def test_brand_reads_what_is_too_large_to_be_sent_where_it_is_drawn() -> None:
    """A tenth of 2 GB takes samples of up to 17 MB of each of three nodes: larger ones are read in every epoch.

    So are the quarter that a node owns: read-ahead leaves next to no memory in which such samples could be cached.
    """
    found = by_source_and_epoch(replace(SMALL, samples=256, batch=16, mean_mb=20, room_mb=(20, 2000)))
    assert not found[PEERS].any()
    assert found[STORAGE] / 5120 == pytest.approx([1, 1, 1], rel=0.02)


def test_diesel_reads_a_chunk_at_a_time() -> None:
    """A read for each 4 MB; a larger sample is a read of its own."""
    scene = Scene(100, 0.5, 0, 1, 2, 10, 100, 200, 1e4, 2e3, ((1, 66),), (1, 1), (20, 60), (1e4, 1e4))
    for mean_mb, reads in ((0.5, 100 / 8), (8, 100)):
        ops = demanded(replace(scene, mean_mb=mean_mb), "pool").ops
        assert ops is not None
        assert ops.sum() == pytest.approx(reads)


@pytest.mark.parametrize("policy", ["deepio_p", "parallel"])
def test_a_policy_that_draws_only_what_is_held_needs_room(policy: str) -> None:
    """The message names the field."""
    scene = Scene(100, 1, 0, 1, 2, 10, 100, 200, 1e4, 2e3, ((1, 66),), (1, 1), (20, 0), (1e4, 1e4))
    with pytest.raises(UsageError, match=r"give room_mb\[1\]"):
        demanded(scene, policy)
