"""Small random scenes, and slow, obvious models of the clocks. Nothing here is fast, vectorised or clever."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.papers.demand import Demand
from bench.papers.scene import Rules, Scene


@st.composite
def scenes(draw: st.DrawFn, *, tiers: int = 2) -> Scene:
    """Up to four nodes and eighty samples, with caches of nothing up to everything; no guesses about other nodes."""
    nodes = draw(st.integers(1, 4))
    batch = nodes * draw(st.integers(1, 5))
    samples = draw(st.integers(batch, 80))
    rate = st.floats(10, 1000)
    return Scene(
        samples=samples,
        mean_mb=1.0,
        sd_mb=draw(st.sampled_from([0.0, 0.2, 1.0])),
        epochs=draw(st.integers(1, 4)),
        nodes=nodes,
        batch=batch,
        train_mb_s=draw(rate),
        decode_mb_s=draw(rate),
        network_mb_s=draw(rate),
        client_mb_s=draw(rate),
        storage_mb_s=tuple((count, draw(rate)) for count in range(1, 5)),
        threads=tuple(draw(st.lists(st.integers(1, 3), min_size=tiers + 1, max_size=tiers + 1))),
        room_mb=(draw(st.floats(0, 40)), *(draw(st.floats(0, samples)) for _ in range(tiers))),
        local_mb_s=tuple(draw(rate) for _ in range(tiers + 1)),
        seed=draw(st.integers(0, 99)),
        rules=Rules(
            readers_in_turn=draw(st.booleans()),
            plan_ahead=draw(st.booleans()),
            undivided=draw(st.booleans()),
            to_the_brim=draw(st.booleans()),
        ),
    )


class ThesisModel:
    """The clock `in_turn`, batch by batch and sample by sample."""

    def __init__(self, scene: Scene, demand: Demand, draws: NDArray[Any]) -> None:
        self.scene, self.demand = scene, demand
        self.sizes: list[float] = scene.sizes().tolist()
        self.batches: list[list[list[int]]] = [
            [of_node.tolist() for of_node in row] for epoch in draws for row in epoch
        ]
        self.nodes = range(scene.nodes)
        self.busy = [0.0] * scene.nodes
        self.has: list[dict[int, tuple[float, int]]] = [{} for _ in self.nodes]
        self.fill_clock = [[0.0] * scene.tiers for _ in self.nodes]
        self.filled = [[0] * scene.tiers for _ in self.nodes]

    def read(self, start: float, mb: float, node: int, threads: int, beside_s: float) -> float:
        """When is it read, if readers leave one by one?"""
        later = [self.busy[other] for other in self.nodes if other != node and self.busy[other] > start]
        readers = len(later) + 1 if self.scene.rules.readers_in_turn else self.scene.nodes
        each_s = (self.scene.fetch_s(readers) + beside_s) / threads
        if not later or not self.scene.rules.readers_in_turn or start + mb * each_s <= min(later):
            return start + mb * each_s
        return self.read(min(later), mb - (min(later) - start) / each_s, node, threads, beside_s)

    def ends(self) -> list[float]:
        """Ends of iterations, without a preload."""
        return self.staged() if self.demand.staged else self.on_demand()

    def on_demand(self) -> list[float]:
        """One thread reads, decodes and trains."""
        ends, now = [], 0.0
        train_s, write_s = 1 / self.scene.train_mb_s, 1 / self.scene.decode_mb_s
        for at, row in enumerate(self.batches):
            done = []
            for node in self.nodes:
                rest = float(self.demand.mb[0, at, node])
                there_s = float(self.demand.mb[1:, at, node].sum()) * train_s
                if rest == 0:
                    done.append(now + there_s)
                    continue
                end = self.read(now, rest, node, 1, train_s + write_s + there_s / rest)
                end -= write_s * self.sizes[row[node][0]]
                self.busy[node] = end - (write_s + train_s) * self.sizes[row[node][-1]]
                done.append(end)
            now = max(now, *done)
            ends.append(now)
        return ends

    def staged(self) -> list[float]:
        """Nodes plan reads as far as their buffers have room."""
        ends: list[float] = []
        now, clock, full = 0.0, [0.0] * self.scene.nodes, [False] * self.scene.nodes
        available: list[list[float]] = [[] for _ in self.nodes]

        def plan_one(at: int, node: int) -> bool:
            following = len(available[node])
            if following == len(self.batches):
                return False
            held = sum(self.mb(batch, node) for batch in range(at, following + 1))
            if held > self.scene.room_mb[0] and following != at:
                full[node] = True
                return False
            if full[node]:
                clock[node], full[node] = max(clock[node], now), False
            clock[node] = self.batch(following, node, clock[node])
            available[node].append(clock[node])
            return True

        for at, row in enumerate(self.batches):
            if self.scene.rules.plan_ahead:
                for node in self.nodes:
                    while plan_one(at, node):
                        pass
            else:
                going = True
                while going:
                    going = False
                    for node in self.nodes:
                        going = plan_one(at, node) or going
            computed = [now + self.mb(at, node) / self.scene.train_mb_s for node in self.nodes]
            last = [available[node][at] + self.sizes[row[node][-1]] / self.scene.train_mb_s for node in self.nodes]
            now = max(computed + last)
            ends.append(now)
        return ends

    def mb(self, batch: int, node: int) -> float:
        """MB of a node's batch."""
        return sum(self.sizes[sample] for sample in self.batches[batch][node])

    def batch(self, batch: int, node: int, start: float) -> float:
        """When a batch is staged that a node begins to read at this time."""
        scene = self.scene
        write_s = 1 / scene.decode_mb_s
        shares = [1] * (scene.tiers + 1) if scene.rules.undivided else scene.threads
        local_s = [share / rate + write_s for share, rate in zip(shares, scene.local_mb_s, strict=True)]
        if self.demand.fills is None:
            rest, *there = (float(mb) for mb in self.demand.mb[:, batch, node])
            peer_s = max(1 / scene.network_mb_s, shares[1] / scene.local_mb_s[1]) + write_s
            there_s = sum(mb * each_s for mb, each_s in zip(there, [*local_s[1:], 0, peer_s], strict=True))
        else:
            self.fill(node, start)
            rest = there_s = 0.0
            for sample in self.batches[batch][node]:
                since, tier = self.has[node].get(sample, (math.inf, 0))
                if since <= start:
                    there_s += self.sizes[sample] * local_s[tier]
                else:
                    rest += self.sizes[sample]
        if rest == 0:
            return start + there_s / scene.threads[0]
        self.busy[node] = self.read(start, rest, node, scene.threads[0], write_s + there_s / rest)
        return self.busy[node]

    def fill(self, node: int, now: float) -> None:
        """Let each tier's threads begin blocks of 25 samples until now."""
        assert self.demand.fills is not None
        for tier, of_nodes in enumerate(self.demand.fills.order):
            order = of_nodes[node].tolist()
            while self.filled[node][tier] < len(order) and self.fill_clock[node][tier] <= now:
                block = order[self.filled[node][tier] :][:25]
                mb = sum(self.sizes[sample] for sample in block)
                threads, write_s = self.scene.threads[tier + 1], 1 / self.scene.decode_mb_s
                end = self.read(self.fill_clock[node][tier], mb, node, threads, write_s)
                self.fill_clock[node][tier] = end
                self.filled[node][tier] += len(block)
                self.has[node].update(dict.fromkeys(block, (end, tier + 1)))


def shared_ends(
    read_s: NDArray[np.float64], decode_s: NDArray[np.float64], train_s: NDArray[np.float64], ahead: int, start_s: float
) -> list[float]:
    """What `pace` returns, by the definition: every stage of every node and iteration waits for those before it."""
    sources, iterations, nodes = read_s.shape
    ends: list[float] = []
    reads = [[start_s] * nodes for _ in range(sources)]
    decoded = [start_s] * nodes
    for at in range(iterations):
        freed = ends[at - ahead] if at >= ahead else start_s
        trained = []
        for node in range(nodes):
            for source in range(sources):
                reads[source][node] = max(reads[source][node], freed) + float(read_s[source, at, node])
            arrived = max(reads[source][node] for source in range(sources))
            decoded[node] = max(decoded[node], arrived) + float(decode_s[at, node])
            trained.append(max(decoded[node], ends[-1] if ends else start_s) + float(train_s[at, node]))
        ends.append(max(trained))
    return ends
