"""How many seconds does a demand take?

`fair` is for users: nodes share the bandwidth of storage, sources work at the same time, and nothing exceeds a rate of
the scene. `in_turn` is the model of the thesis behind HDMLP, with the `Rules` that reproduce its tables. In that model
each thread of a node gets a reader's portion of storage, so that nodes with two threads read at twice the bandwidth of
storage.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.papers.demand import READY, STORAGE, Demand, Fills, Preload
from bench.papers.scene import Scene

_LITTLE_MB: Final = 1e-9
_BLOCK: Final = 25
"""Samples that a tier's threads read before the simulation counts again how many nodes read storage."""
_GUESS: Final = 20
"""A node guesses that another node holds a sample if its own tier is that many samples further (paper, section 5.2)."""


def side_by_side(
    read_s: NDArray[np.float64], decode_s: NDArray[np.float64], train_s: NDArray[np.float64], ahead: int, start_s: float
) -> NDArray[np.float64]:
    """Return the second at which each iteration ends, shape (iterations,).

    `read_s` has the seconds that each source takes, shape (sources, iterations, nodes); `decode_s` and `train_s` have
    shape (iterations, nodes). Sources work at the same time. A source begins the reads of an iteration when it has done
    those before and the iteration `ahead` places earlier has ended. A node decodes after all sources have read, and
    trains after it has decoded. An iteration ends when its slowest node has trained. Nothing begins before `start_s`.
    """
    iterations, nodes = train_s.shape
    ends = np.full(iterations + ahead, start_s)  # the first `ahead` iterations find the memory empty
    read, decoded = np.full((len(read_s), nodes), start_s), np.full(nodes, start_s)
    for at in range(iterations):
        read = np.maximum(read, ends[at]) + read_s[:, at]
        decoded = np.maximum(decoded, read.max(axis=0)) + decode_s[at]
        ends[at + ahead] = (np.maximum(decoded, ends[at + ahead - 1]) + train_s[at]).max()
    return ends[ahead:]


def fair(scene: Scene, demand: Demand, draws: NDArray[Any]) -> NDArray[np.float64]:
    """Return the second at which each iteration ends in a system that shares its rates.

    The shape is (iterations of all epochs,). Storage gives all nodes together the rate for as many readers as there are
    nodes. More threads or MB/s never cost time. Nor does more capacity if reading a tier takes no time; a slow tier
    that replaces reads of a faster storage does.
    """
    del draws  # both clocks have one signature; this one needs only `demand`
    mb, ops, trained = demand.mb, demand.ops, demand.trained_mb
    train_s = trained / scene.train_mb_s
    threads = scene.threads[0] if demand.staged else 1
    rates = np.array([scene.client_mb_s, *scene.local_mb_s[1:], math.inf, scene.network_mb_s])
    read_s = mb / rates[:, None, None]
    shared_s = mb[STORAGE].sum(axis=1) / scene.storage_rate(scene.nodes)
    if ops is not None:
        shared_s = np.maximum(shared_s, ops[STORAGE].sum(axis=1) / scene.storage_ops_s)
    read_s[STORAGE] = np.maximum(read_s[STORAGE], shared_s[:, None])
    loaded_s = 0.0
    if demand.preload is not None:
        loaded = demand.preload.mb.sum(axis=0)
        shared, own = scene.storage_rate(scene.nodes), scene.client_mb_s
        loaded_s = float(max(loaded.sum() / shared, loaded.max() / own))
    before, start_s = _while_loading(train_s, demand.preload, loaded_s)
    first = len(before)
    batches = scene.room_mb[0] / max(_LITTLE_MB, float(trained.mean()))
    ahead = int(np.clip(batches, 1, len(train_s))) if demand.staged else 1
    decode_s = (trained - mb[READY]) / scene.decode_mb_s / threads
    return np.concatenate([before, side_by_side(read_s[:, first:], decode_s[first:], train_s[first:], ahead, start_s)])


def in_turn(scene: Scene, demand: Demand, draws: NDArray[Any]) -> NDArray[np.float64]:
    """Return the second at which each iteration ends, shape (iterations of all epochs,), by the model of the thesis.

    Within an iteration the nodes plan their reads one after the other. A read shares storage with the nodes whose
    planned reads end later than it begins.
    """
    storage = _Storage(scene)
    total = demand.trained_mb
    loaded_s = storage.loaded_s(demand.preload) if demand.preload is not None else 0.0
    before, start_s = _while_loading(total / scene.train_mb_s, demand.preload, loaded_s)
    first = len(before)
    sizes, drawn = scene.sizes(), draws.reshape(len(total), scene.nodes, -1)
    if demand.staged:
        after = _Staging(scene, storage, demand, drawn, sizes, first, start_s).run()
    else:
        after = _on_demand(scene, storage, demand.mb[:, first:], sizes[drawn[first:]], start_s)
    return np.concatenate([before, after])


def _while_loading(
    train_s: NDArray[np.float64], preload: Preload | None, loaded_s: float
) -> tuple[NDArray[np.float64], float]:
    """Return the ends of the iterations that train during loading, evenly spaced, and the start of the next one."""
    first = train_s[: preload.iterations if preload is not None else 0]
    if not len(first):
        return np.empty(0), loaded_s
    until_s = max(loaded_s, float(first.max(axis=1).sum()))
    return until_s * np.arange(1, len(first) + 1) / len(first), until_s


class _Storage:
    """The storage of the thesis: the time that a read takes, by the number of readers."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.fetch_s = [0.0, *map(scene.fetch_s, range(1, max(scene.nodes, scene.tiers) + 1))]
        self.write_s = 1 / scene.decode_mb_s
        self.busy = [0.0] * scene.nodes
        """The second at which the last planned read of each node ends."""

    def read(self, start: float, mb: float, node: int, threads: int, beside_s: float) -> float:
        """Return the second at which a node's read is over.

        Each MB takes a thread `beside_s` seconds in addition to the read itself.
        """
        if not self.scene.rules.readers_in_turn:
            return start + mb * (self.fetch_s[self.scene.nodes] + beside_s) / threads
        busy = [end for other, end in enumerate(self.busy) if end > start and other != node]
        return self._shared(start, mb, busy, threads, beside_s)

    def _shared(self, start: float, mb: float, busy: list[float], threads: int, beside_s: float) -> float:
        """Return the second at which a read is over that shares storage with readers who are busy until `busy`."""
        readers = len(busy) + 1
        for end in sorted(busy):
            mb_s = threads / (self.fetch_s[readers] + beside_s)
            if (end - start) * mb_s >= mb:
                return start + mb / mb_s
            mb -= (end - start) * mb_s
            start, readers = end, readers - 1
        return start + mb * (self.fetch_s[1] + beside_s) / threads

    def loaded_s(self, preload: Preload) -> float:
        """Return the second at which the tiers of the node that loads most are full."""
        most, threads = preload.mb.max(axis=1).tolist(), self.scene.threads[1:]
        if preload.alone:
            ends: list[float] = []
            for mb, count in zip(most, threads, strict=True):
                ends.append(self._shared(0.0, mb, ends, count, self.write_s))
            return max(ends)
        each_s = self.fetch_s[self.scene.nodes] + self.write_s
        times = [mb * each_s / count for mb, count in zip(most, threads, strict=True)]
        return float(max(times) if self.scene.rules.to_the_brim else sum(times))


def _on_demand(
    scene: Scene, storage: _Storage, mb: NDArray[np.float64], drawn_mb: NDArray[np.float64], start_s: float
) -> NDArray[np.float64]:
    """Return the ends of iterations whose samples one thread reads, decodes and trains, one sample after the other.

    `drawn_mb` has the MB of each draw, shape (iterations, nodes, batch / nodes). Samples that are not read from storage
    take only the training, and are spread among those that are. The first write of a batch is hidden.
    """
    train_s, write_s = 1 / scene.train_mb_s, storage.write_s
    due, there_s = mb[STORAGE].tolist(), (mb[1:].sum(axis=0) * train_s).tolist()
    firsts, lasts = drawn_mb[:, :, 0].tolist(), drawn_mb[:, :, -1].tolist()
    ends, now = [], start_s
    for at, row in enumerate(due):
        end = now
        for node, rest in enumerate(row):
            done = now + there_s[at][node]
            if rest:
                beside_s = write_s + train_s + there_s[at][node] / rest
                done = storage.read(now, rest, node, 1, beside_s) - write_s * firsts[at][node]
                storage.busy[node] = done - (write_s + train_s) * lasts[at][node]
            end = max(end, done)
        now = end
        ends.append(now)
    return np.array(ends)


class _Staging:
    """Nodes that read ahead, each into a staging buffer, while other threads fill their tiers."""

    def __init__(
        self,
        scene: Scene,
        storage: _Storage,
        demand: Demand,
        drawn: NDArray[Any],
        sizes: NDArray[np.float64],
        first: int,
        start_s: float,
    ) -> None:
        self._scene, self._storage, self._sizes = scene, storage, sizes
        self._drawn = drawn[first:]
        self._mb = demand.mb[:, first:]
        trained = demand.trained_mb[first:]
        self._total = trained.tolist()
        self._elsewhere_s = (storage.write_s * (self._mb.sum(axis=0) - trained)).tolist()
        """Seconds of decoding that another node does, or that this node does later."""
        self._last = (sizes[self._drawn[:, :, -1]] / scene.train_mb_s).tolist()
        self._room = np.vstack([np.zeros(scene.nodes), np.cumsum(trained, axis=0)]).T.tolist()
        self._now = start_s
        self._clock = [start_s] * scene.nodes
        self._planned = [0] * scene.nodes
        self._full = [False] * scene.nodes
        self._available: list[list[float]] = [[] for _ in range(scene.nodes)]
        shares = [1] * (scene.tiers + 1) if scene.rules.undivided else list(scene.threads)
        local_s = [count / rate for count, rate in zip(shares, scene.local_mb_s, strict=True)]
        peer_s = [max(1 / scene.network_mb_s, seconds) for seconds in local_s]
        each_s = np.array([local_s, peer_s]) + storage.write_s
        self._there_s = np.array([*each_s[0, 1:], 0.0, each_s[1, 1]])
        """Seconds in which a thread gets a MB from each source other than storage."""
        self._filling = None
        if demand.fills is not None:
            self._filling = _Filling(scene, storage, demand.fills, sizes, each_s)

    def run(self) -> NDArray[np.float64]:
        """Return the ends of the iterations."""
        ends = []
        nodes = range(self._scene.nodes)
        for at, row in enumerate(self._total):
            if self._scene.rules.plan_ahead:
                for node in nodes:
                    while self._stage(at, node):
                        pass
            else:
                while sum(self._stage(at, node) for node in nodes):
                    pass
            self._now = max(
                max(self._now + row[node] / self._scene.train_mb_s, self._available[node][at] + self._last[at][node])
                for node in nodes
            )
            ends.append(self._now)
        return np.array(ends)

    def _stage(self, at: int, node: int) -> bool:
        """Plan the reads of a node's next batch, and return whether its staging buffer has space in iteration `at`."""
        batch, room = self._planned[node], self._room[node]
        if batch == len(self._total):
            return False
        if room[batch + 1] - room[at] > self._scene.room_mb[0] and batch != at:
            self._full[node] = True
            return False
        start = self._clock[node]
        if self._full[node]:
            start, self._full[node] = max(start, self._now), False
        if self._filling is None:
            rest, there_s = float(self._mb[STORAGE, batch, node]), float(self._there_s @ self._mb[1:, batch, node])
            there_s -= self._elsewhere_s[batch][node]
        else:
            rest, there_s = self._filling.split(start, node, self._drawn[batch, node])
        threads = self._scene.threads[0]
        if rest:
            # Samples that are there already are spread among the rest, so the node reads storage until the end.
            end = self._storage.read(start, rest, node, threads, self._storage.write_s + there_s / rest)
            self._storage.busy[node] = end
        else:
            end = start + there_s / threads
        self._clock[node] = end
        self._available[node].append(end)
        self._planned[node] += 1
        return True


class _Filling:
    """Tiers whose threads read samples from storage, in a given order, during training."""

    def __init__(
        self, scene: Scene, storage: _Storage, fills: Fills, sizes: NDArray[np.float64], each_s: NDArray[np.float64]
    ) -> None:
        self._scene, self._storage, self._sizes = scene, storage, sizes
        self._at = np.full((scene.nodes, scene.samples), math.inf)
        """The second at which a node has a sample."""
        self._tier = np.zeros((scene.nodes, scene.samples), np.int8)
        self._rank = np.zeros((scene.nodes, scene.samples), np.int32)
        self._local_s, self._peer_s = each_s
        self._blocks: list[list[list[float]]] = []
        """MB of each block, [tier][node]."""
        self._order = fills.order
        self._clock = np.zeros((scene.tiers, scene.nodes)).tolist()
        self._done = np.zeros((scene.tiers, scene.nodes), np.int64).tolist()
        for tier, of_nodes in enumerate(fills.order):
            rows = []
            for node, order in enumerate(of_nodes):
                self._tier[node, order] = tier + 1
                self._rank[node, order] = np.arange(len(order))
                starts = np.arange(0, len(order), _BLOCK)
                rows.append(np.add.reduceat(sizes[order], starts).tolist() if len(order) else [])
            self._blocks.append(rows)

    def split(self, now: float, node: int, drawn: NDArray[Any]) -> tuple[float, float]:
        """Return the MB of a batch that storage must give, and the seconds of one thread for the samples in tiers."""
        for tier in range(self._scene.tiers):
            self._fill(tier, node, now)
        mb = self._sizes[drawn]
        if self._scene.rules.peers:
            each_s = self._fastest(now, node, drawn)
        else:
            each_s = np.where(self._at[node, drawn] <= now, self._local_s[self._tier[node, drawn]], math.inf)
        there = each_s < math.inf
        return float(mb[~there].sum()), float(mb[there] @ each_s[there])

    def _fill(self, tier: int, node: int, now: float) -> None:
        """Let the threads of a tier read until now."""
        blocks, threads = self._blocks[tier][node], self._scene.threads[tier + 1]
        clock, done = self._clock[tier][node], self._done[tier][node]
        while clock <= now and done < len(blocks):
            clock = self._storage.read(clock, blocks[done], node, threads, self._storage.write_s)
            self._at[node, self._order[tier][node][done * _BLOCK : (done + 1) * _BLOCK]] = clock
            done += 1
        self._clock[tier][node], self._done[tier][node] = clock, done

    def _fastest(self, now: float, node: int, drawn: NDArray[Any]) -> NDArray[np.float64]:
        """Return the seconds of a MB of each drawn sample from the node that gives it fastest; inf if no node has it.

        A node does not know what other nodes hold. It guesses that they have read as far as its own threads.
        """
        tier = self._tier[:, drawn]
        far = np.array([0, *(row[node] * _BLOCK - _GUESS for row in self._done)])
        guessed = self._rank[:, drawn] <= far[tier]
        guessed[node] = True
        each_s = np.broadcast_to(self._peer_s[tier], tier.shape).copy()
        each_s[node] = self._local_s[tier[node]]
        each_s[(self._at[:, drawn] > now) | ~guessed] = math.inf
        fastest: NDArray[np.float64] = each_s.min(axis=0)
        return fastest
