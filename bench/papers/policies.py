"""How much does each policy read, and from which source?

A policy is a function of a scene and its draws. The policies of the paper "Clairvoyant Prefetching for Distributed
Machine Learning I/O" (HDMLP, section 6) are at the top, with their assumptions; caches of other papers follow. Some
policies change which node draws a sample; their demand then has the same MB in every iteration, from other sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.papers.demand import PEERS, READY, STORAGE, Demand, Fills, Preload, by_source
from bench.papers.scene import Scene
from brand.errors import UsageError
from brand.node.setup.choose import Facts, Nodes, choose_order
from brand.orders.base.owners import owner_of_group
from brand.orders.base.placement import place
from brand.simulate.running import SimulatedRun, work_of

Policy = Callable[[Scene, NDArray[Any]], Demand]

CHUNK_MB: Final = 4.0
"""MB of a chunk of policy `pool`. The number is our assumption."""
CHUNK_SAMPLES: Final = 64
"""Samples of a chunk of policy `brand`, as in Brand's paper."""
_MB: Final = 1e6
"""Bytes of a MB."""


def perfect(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Wait for nothing: a lower bound (HDMLP, 6)."""
    return Demand(*by_source(scene, draws, READY))


def naive(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Read a sample from storage when it is due (HDMLP, 6)."""
    return Demand(*by_source(scene, draws, STORAGE), staged=False)


def staging(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Read samples from storage ahead of time, and drop them after use, as double buffering does (HDMLP, 6)."""
    return Demand(*by_source(scene, draws, STORAGE))


def frequency(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Cache the samples that a node draws most often in its fastest tier (HDMLP).

    Threads fill tiers in order of first use. The count is over all epochs, ties are won by the sample that is drawn
    first, and a sample that a node never draws is not placed on that node (section 5.1).
    """
    source = np.empty(draws.shape, np.int8)
    order = []
    for node in range(scene.nodes):
        count, first = _counts(scene, draws[:, :, node])
        tier = place(np.lexsort((first, -count)).argsort(), scene.sizes(), np.array(scene.room_mb[1:]))
        tier[count == 0] = 0
        source[:, :, node] = _from_second_draw(tier, first, draws[:, :, node])
        in_order = np.argsort(first, kind="stable")
        order.append([in_order[tier[in_order] == number] for number in range(1, scene.tiers + 1)])
    return Demand(*by_source(scene, draws, source), fills=Fills(tuple(zip(*order, strict=True))))


def deepio(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Hold as much as fits in the memories of all nodes; read the rest when it is due.

    This is DeepIO in given order (HDMLP, 6).
    """
    share, memory = _share_mb(scene), scene.room_mb[1]
    fits = share <= memory
    held = _in_memories(scene) | fits
    source = _held_by_all(scene, draws, held)
    return Demand(*by_source(scene, draws, source), _preload(scene, min(share, memory)), staged=fits)


def deepio_p(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Draw only samples that the node's memory holds.

    This is DeepIO in an order of its own (HDMLP, 6). Not all samples are drawn.
    """
    if not scene.room_mb[1]:
        raise UsageError("nodes have no memory for samples: give room_mb[1]")
    return Demand(*by_source(scene, draws, 1), _preload(scene, min(_share_mb(scene), scene.room_mb[1])))


def parallel(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Copy the samples that a node will draw into its tiers before training (parallel staging; HDMLP, 6).

    If the data fit in a node's tiers, every node copies all of them. Otherwise it draws only samples that it has
    copied, and not all samples are drawn.
    """
    sizes, rooms = scene.sizes(), np.array(scene.room_mb[1:])
    if not rooms.any():
        raise UsageError("nodes have no room for samples: give room_mb[1] or more")
    if sizes.sum() <= rooms.sum():
        tier = place(np.arange(scene.samples), sizes, rooms)
        loaded = np.bincount(tier, weights=sizes, minlength=scene.tiers + 1)[1:]
        preload = Preload(np.repeat(loaded[:, None], scene.nodes, axis=1), alone=True)
    else:
        share = (np.arange(scene.samples) + 0.5) / scene.samples
        tier = (1 + np.searchsorted(np.cumsum(rooms) / rooms.sum(), share)).astype(np.int8)
        preload = _preload(scene, float(rooms.sum()))
    return Demand(*by_source(scene, draws, tier[draws]), preload)


def lbann(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Keep in memory the samples that a node draws in the first epoch (the dynamic data store of LBANN; HDMLP, 6)."""
    mb, ops = _lbann(scene, draws)
    first = mb[:, : scene.iterations].sum(axis=(0, 1))
    loaded = np.zeros((scene.tiers, scene.nodes))
    loaded[0] = first
    return Demand(mb, ops, Preload(loaded, iterations=scene.iterations))


def lbann_preload(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Load all data into the memories of the nodes before training (the preloaded data store of LBANN; HDMLP, 6)."""
    return Demand(*_lbann(scene, draws), _preload(scene, _share_mb(scene)))


def locality(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Draw on each node those samples of a batch that it holds (locality-aware loading; Yang & Cong 2019; HDMLP, 6).

    If a node's partition of the data overflows its memory, all tiers are loaded, but only memory is used afterwards:
    the figures of the thesis need both.
    """
    share, memory = _share_mb(scene), scene.room_mb[1]
    if share <= memory:
        return Demand(*by_source(scene, draws, 1), _preload(scene, share))
    return Demand(*by_source(scene, draws, _in_memories(scene)[draws].astype(np.int8)), _preload(scene, share))


def minio(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Keep the samples that a node draws first until its tiers are full, and replace none.

    This is CoorDL's MinIO (VLDB 2021).
    """
    source = np.empty(draws.shape, np.int8)
    for node in range(scene.nodes):
        _, first = _counts(scene, draws[:, :, node])
        tier = place(first, scene.sizes(), np.array(scene.room_mb[1:]))
        source[:, :, node] = _from_second_draw(tier, first, draws[:, :, node])
    return Demand(*by_source(scene, draws, source))


def pool(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Read chunks in random order, and shuffle samples among those in memory (DIESEL; ICPP 2020).

    Storage does one read for each chunk.
    """
    mb, ops = by_source(scene, draws, STORAGE)
    ops[STORAGE] = mb[STORAGE] / max(CHUNK_MB, scene.mean_mb)
    return Demand(mb, ops)


def next_use(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Keep after each epoch, of the samples that a node has or drew, those that it will draw soonest.

    This is Belady's rule with the epoch as the unit of time.
    """
    source, sizes = np.empty(draws.shape, np.int8), scene.sizes()
    for node in range(scene.nodes):
        drawn = _drawn(scene, draws[:, :, node])
        tier = np.zeros(scene.samples, np.int8)
        for epoch, until in enumerate(_epochs_until_next(drawn)):
            source[epoch, :, node] = tier[draws[epoch, :, node]]
            tier = _kept(scene, sizes, until, ((tier > 0) | drawn[epoch]) & (until < scene.epochs))
    return Demand(*by_source(scene, draws, source))


def lobster(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Keep samples as `next_use` does, and get samples that another node holds from that node (Lobster, section 4.4).

    If capacity is left, a node keeps a sample that it will not draw again if it is the only node that has the sample.
    Lobster's allotment of threads is not part of a demand.
    """
    source, sizes = np.empty(draws.shape, np.int8), scene.sizes()
    drawn = np.stack([_drawn(scene, draws[:, :, node]) for node in range(scene.nodes)])
    until = np.stack([_epochs_until_next(of_node) for of_node in drawn])
    tier = np.zeros((scene.nodes, scene.samples), np.int8)
    for epoch in range(scene.epochs):
        holders = (tier > 0).sum(axis=0)
        for node in range(scene.nodes):
            mine = draws[epoch, :, node]
            elsewhere = np.where(holders[mine] > 0, PEERS, STORAGE)
            source[epoch, :, node] = np.where(tier[node, mine] > 0, tier[node, mine], elsewhere)
        again = (until[:, epoch] < scene.epochs).any(axis=0)
        for node in range(scene.nodes):
            others = (np.delete(tier, node, axis=0) > 0).any(axis=0)
            worth = (until[node, epoch] < scene.epochs) | (again & ~others)
            here = (tier[node] > 0) | drawn[node, epoch]
            tier[node] = _kept(scene, sizes, until[node, epoch], here & worth)
    return Demand(*by_source(scene, draws, source))


def brand(scene: Scene, draws: NDArray[Any]) -> Demand:
    """Read as Brand's order `stripes` does, with a real plan and the decisions of a real server.

    Memory is `room_mb[1]`. The home node of a sample reads it from storage when its stripe is due, and caches it or
    sends it to the node that draws it. So storage counts samples that are read; own memory and peers count samples that
    are drawn. A sample that is too large to be sent (a quarter of the space that each other node may fill) is read by
    the node that draws it. The plan has an order of its own; `draws` only gives the number of draws. Slower tiers are
    not used.
    """
    epochs, iterations, nodes, each = draws.shape
    sizes = np.maximum(1, np.round(_MB * scene.sizes())).astype(np.uint32)
    wish = _MB * scene.storage_rate(nodes) / scene.storage_ops_s
    memory, chunk = f"{round(_MB * scene.room_mb[1])}B", min(CHUNK_SAMPLES, scene.samples)
    facts = Facts("0" * 32, scene.samples, chunk, float(sizes.mean()), round(wish))
    try:
        order = choose_order(facts, scene.seed, "stripes", None, memory, Nodes(nodes, nodes))
        works = list(work_of(SimulatedRun(sizes, order, memory, None, nodes, nodes, each), range(epochs)))
    except UsageError as error:
        raise UsageError(f"{error}: give room_mb[1], which is Brand's memory") from error
    owner = owner_of_group(order.mapping.groups, nodes)
    mb, ops = np.zeros((2, scene.tiers + 3, epochs, iterations, nodes))
    trained = np.zeros((epochs, iterations, nodes))
    for epoch in range(epochs):
        places = order.plan(epoch).sample_of[: iterations * each * nodes].reshape(iterations, each, nodes)
        here = owner[order.mapping.group_of(places)] == np.arange(nodes)
        drawn, mine = (np.where(which, sizes[places], 0).sum(axis=1, dtype=np.int64) for which in (True, here))
        exact = np.stack([work.exact_bytes[:iterations] for work in works[epoch]], axis=1)
        sent = np.maximum(0, drawn - mine - exact)
        mb[STORAGE, epoch], mb[1, epoch], mb[PEERS, epoch] = exact / _MB, (drawn - exact - sent) / _MB, sent / _MB
        ops[1, epoch], ops[PEERS, epoch] = here.sum(axis=1), np.where(sent, (~here).sum(axis=1), 0)
        trained[epoch] = drawn / _MB
        for node, work in enumerate(works[epoch]):
            due = work.due[in_time := work.due < iterations]
            mb[STORAGE, epoch, :, node] += np.bincount(due, work.read_sizes[in_time] / _MB, iterations)
            share = work.exact_bytes[:iterations] / max(1, work.exact_bytes.sum())
            ops[STORAGE, epoch, :, node] = np.bincount(due, minlength=iterations) + work.direct * share
    flat = (scene.tiers + 3, epochs * iterations, nodes)
    return Demand(mb.reshape(flat), ops.reshape(flat), trained=trained.reshape(flat[1:]))


POLICIES: dict[str, Policy] = {
    "perfect": perfect,
    "naive": naive,
    "staging": staging,
    "frequency": frequency,
    "deepio": deepio,
    "deepio_p": deepio_p,
    "parallel": parallel,
    "lbann": lbann,
    "lbann_preload": lbann_preload,
    "locality": locality,
    "minio": minio,
    "pool": pool,
    "next": next_use,
    "lobster": lobster,
    "brand": brand,
}
"""Every policy by its name."""


def _share_mb(scene: Scene) -> float:
    """Return the MB of a node's partition of the data."""
    return float(scene.sizes().sum()) / scene.nodes


def _in_memories(scene: Scene) -> NDArray[np.bool_]:
    """Return whether the memories of all nodes together hold a sample, shape (samples,)."""
    return np.cumsum(scene.sizes()) <= scene.room_mb[1] * scene.nodes


def _preload(scene: Scene, mb: float) -> Preload:
    """Load `mb` MB on every node, fastest tier first.

    By rule `to_the_brim` a node fills all of its tiers as soon as one of them overflows.
    """
    rooms = np.array(scene.room_mb[1:])
    before = np.cumsum(rooms) - rooms
    brim = scene.rules.to_the_brim and mb > rooms[0]
    loaded = rooms if brim else np.clip(mb - before, 0, rooms)
    return Preload(np.repeat(loaded[:, None], scene.nodes, axis=1))


def _held_by_all(scene: Scene, draws: NDArray[Any], held: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Return the source of each draw if nodes hold samples in turn, in memory, and send them to each other."""
    mine = draws % scene.nodes == np.arange(scene.nodes)[:, None]
    return np.where(held[draws], np.where(mine, 1, PEERS), STORAGE).astype(np.int8)


def _lbann(scene: Scene, draws: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the fields `mb` and `ops` if the memories of all nodes hold all data.

    Raises `UsageError` if they cannot.
    """
    if (share := _share_mb(scene)) > scene.room_mb[1]:
        raise UsageError(
            f"the data store holds everything in memory: a node's share of {share:,.0f} MB exceeds its"
            f" {scene.room_mb[1]:,.0f} MB"
        )
    return by_source(scene, draws, _held_by_all(scene, draws, np.ones(scene.samples, np.bool_)))


def _counts(scene: Scene, mine: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how often a node draws each sample, and the number of its first draw, or of all draws if it never does."""
    flat = mine.reshape(-1)
    first = np.full(scene.samples, len(flat), np.int64)
    first[flat[::-1]] = np.arange(len(flat))[::-1]
    return np.bincount(flat, minlength=scene.samples), first


def _from_second_draw(tier: NDArray[np.int8], first: NDArray[Any], mine: NDArray[Any]) -> NDArray[np.int8]:
    """Return the source of each draw of a node that stores a sample in its tier when it first draws it."""
    again = np.arange(mine.size).reshape(mine.shape) > first[mine]
    return np.where(again, tier[mine], STORAGE).astype(np.int8)


def _drawn(scene: Scene, mine: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether a node draws each sample in each epoch, shape (epochs, samples)."""
    drawn = np.zeros((scene.epochs, scene.samples), np.bool_)
    np.put_along_axis(drawn, mine.reshape(scene.epochs, -1).astype(np.int64), values=True, axis=1)
    return drawn


def _epochs_until_next(drawn: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the epochs until the next draw of each sample, after each epoch.

    The value is the number of all epochs if there is no next draw.
    """
    epochs = len(drawn)
    until = np.full(drawn.shape, epochs, np.int32)
    for epoch in range(epochs - 2, -1, -1):
        until[epoch] = np.where(drawn[epoch + 1], 1, np.minimum(until[epoch + 1] + 1, epochs))
    return until


def _kept(
    scene: Scene, sizes: NDArray[np.float64], until: NDArray[np.int32], worth: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Return the tier of each sample after an epoch, for samples that are worth it, the soonest drawn first."""
    tier = np.zeros(scene.samples, np.int8)
    some = np.flatnonzero(worth)
    tier[some] = place(until[some], sizes[some], np.array(scene.room_mb[1:]))
    return tier
