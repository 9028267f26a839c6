"""The ranks of a mixture on several nodes without sockets, threads or a clock (`tests.several_nodes.world`).

The members are orders of one data set. A rank draws its positions of each batch from several members, and comes to the
next epoch of a member in the middle of an epoch of the mixture.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brand.node.memory.residents import MAX_LEASES
from brand.node.wire.messages import AS_BEGUN, GOES_ON, UNTOLD
from brand.node.wire.numbers import RunNumber
from brand.orders.batch_ranks import BatchRanks, SampleLengths, digest_of
from brand.orders.batches.batching import BatchLimits, PositionBatches
from brand.orders.mixed_batch_ranks import MixedBatchRanks
from brand.orders.mixtures.member_ranks import MemberRanks
from brand.orders.mixtures.mixed_order import MixedOrder, ranks_of_rounds
from tests.node.world import World, weighted_members
from tests.several_nodes.world import CLIENT, Cluster, Walk

MOST_MEMBERS = 8
Fetched = tuple[int, int, list[int]]
"""A member, its epoch, and positions of that."""


@dataclass
class MixedRank:
    """A rank that draws a mixture. It has two clients for each member: one begins its epochs, and both draw."""

    world: World
    client: int
    rank: int
    ranks: int
    batch: int
    members: list[dict[str, Any]]
    weights: list[float]
    samples: int
    """Positions of an epoch of the mixture."""
    start: int = 0
    changes: dict[int, list[float]] = field(default_factory=dict)
    """Other weights from the beginning of an epoch on, which ranks say before they begin it."""
    workers: bool = False
    """Whether the second clients continue with epochs, as worker processes do that do not know the rule."""
    name: str = "run"
    epoch: int = 0
    position: int | None = None
    steps: int = 0
    runs: list[RunNumber] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    """The last epoch of each member that this rank has begun."""
    coming: list[Fetched] = field(default_factory=list)
    """Draws of this batch that were not asked for."""
    waiting: dict[int, Fetched] = field(default_factory=dict)
    """Draws without an answer, by client."""
    asked: list[Fetched] = field(default_factory=list)
    """All draws."""
    served: list[tuple[World, list[RunNumber]]] = field(default_factory=list)

    def register(self) -> None:
        self.runs = [
            self.world.register(client, self.name, turn=number, **order)
            for number, order in enumerate(self.members)
            for client in self.clients(number)
        ][::2]
        self.served.append((self.world, self.runs))

    def clients(self, member: int) -> tuple[int, int]:
        return self.client + 2 * member, self.client + 2 * member + 1

    @property
    def all_clients(self) -> list[int]:
        return [client for member in range(len(self.members)) for client in self.clients(member)]

    @property
    def order(self) -> MixedOrder:
        orders = [self.world.runs[run].order for run in self.runs]
        order = MixedOrder.of(orders, self.samples, 5, self.weights)
        for epoch, weights in self.changes.items():
            order = order.with_weights(weights, epoch, 0) if epoch <= self.epoch else order
        return order

    @property
    def waits(self) -> bool:
        """Whether it has not got all that it has asked for, or has more to ask for in this batch."""
        self.waiting = {client: of for client, of in self.waiting.items() if client in self.world.asked}
        return bool(self.waiting or self.coming)

    def rule(self, member: int) -> MemberRanks:
        order = self.order
        first = self.epoch * self.samples + self.start
        return MemberRanks(((member, order.pattern),), order.sizes[member], self.samples, 5, first, self.ranks)

    def go_on(self) -> None:
        """Begin an epoch of the mixture, or ask for more of a batch, or for the next batch."""
        if self.position is None:
            self._begin()
        elif self.coming:
            self._ask()
        elif not self.waiting:
            self._next_batch()

    def _begin(self) -> None:
        order = self.order
        goes_on = self.start == 0 and self.epoch > 0
        for member, (come, size) in enumerate(zip(order.counts(self.epoch, self.start), order.sizes, strict=True)):
            self.begun[member], at = divmod(come, size)
            processes = GOES_ON if goes_on and self.epoch not in self.changes else 1
            facts: dict[str, Any] = {"rank": self.rank, "replicas": self.ranks, "processes": processes}
            facts["rule"] = self.rule(member)
            self.world.begin(self.clients(member)[0], self.runs[member], self.begun[member], at, **facts)
        self.position = 0

    def _next_batch(self) -> None:
        assert self.position is not None
        rounds = (self.samples - self.start) // self.ranks  # the last, incomplete one is left out
        end = min(rounds, self.position + self.batch)
        if self.position < end:
            some = range(self.position, end)
            turned = ranks_of_rounds(5, self.epoch, self.start, some, self.ranks)
            positions = self.start + np.array(some) * self.ranks + (self.rank + turned) % self.ranks
            drawn = self.order.draws(self.epoch, positions)
            found = defaultdict[tuple[int, int], list[int]](list)
            for member, epoch, position in zip(drawn.member, drawn.epoch, drawn.position, strict=True):
                found[int(member), int(epoch)].append(int(position))
            self.coming = [(member, epoch, some) for (member, epoch), some in sorted(found.items())]
            self.position = end
            self._ask()
        else:
            self.epoch, self.start, self.position = self.epoch + 1, 0, None
        self.steps += 1

    def _ask(self) -> None:
        """Ask for all of the batch for which a client is free."""
        left = []
        for member, epoch, positions in self.coming:
            first, second = self.clients(member)
            client = next((c for c in (second, first) if c not in self.waiting and self._is_free(c)), None)
            if client is None:
                left.append((member, epoch, positions))
                continue
            if epoch > self.begun[member]:
                self.begun[member] = epoch
                if self.workers:
                    facts: dict[str, Any] = {"replicas": AS_BEGUN}
                else:
                    facts = {"rank": self.rank, "replicas": self.ranks, "rule": self.rule(member)}
                where = second if self.workers else first
                self.world.begin(where, self.runs[member], epoch, processes=GOES_ON, **facts)
            self._draw(client, (member, epoch, positions))
            self.asked.append((member, epoch, positions))
        self.coming = left

    def _draw(self, client: int, of: Fetched) -> None:
        member, epoch, positions = of
        assert self.world.draw(client, self.runs[member], epoch, positions)
        self.waiting[client] = of

    def _is_free(self, client: int) -> bool:
        held = [number for number, lease in self.world.held.items() if lease.client == client]
        if len(held) == MAX_LEASES:
            self.world.release(held[0])
        return client not in self.world.asked

    def move_to(self, world: World) -> None:
        """The server was replaced. Its main process tells the new one, or its workers ask unannounced."""
        waiting = {client: of for client, of in self.waiting.items() if client in self.world.asked}
        self.world, self.waiting = world, {}
        self.register()
        for client, (member, epoch, positions) in waiting.items():
            if not self.workers and epoch == self.begun[member]:
                facts: dict[str, Any] = {"rank": self.rank, "replicas": self.ranks, "front": positions[0]}
                facts["rule"] = self.rule(member)
                begins = self.clients(member)[0]
                self.world.begin(begins, self.runs[member], epoch, 0, processes=GOES_ON, **facts)
            self._draw(client, (member, epoch, positions))


def mixed_walk(seed: int, steps: int, kind: type[MixedWalk] | None = None) -> None:
    """A mixture, or planned batches, with everything that may happen to them, in an order that a seed decides."""
    walk = (kind or MixedWalk)(seed)
    if walk.rng.random() < 0.7:
        walk.cluster.join()
    for _ in range(steps):
        walk.step()
    check_end(walk.cluster)


class MixedWalk(Walk):
    """The same as `Walk`, with one mixture in place of trainings of one order."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        nodes, on_each = rng.choice([(2, 1), (2, 2), (3, 1), (3, 2)])
        chunk_size, count = rng.randint(2, 8), rng.randint(24, 90)
        sizes = [rng.choice([0, 40, 96, 97, 200, 500]) for _ in range(count)]
        total = sum(-(-(size + 32) // 128) for size in sizes)
        pages = max(24, round(total * rng.choice([0.3, 0.5, 0.8, 1.1])))
        base: dict[str, Any] = {"group_chunks": rng.randint(1, 4), "stripe": rng.randint(1, chunk_size)}
        if rng.random() < 0.5:  # the orders of a sampler with weights
            k = rng.randint(2, 6)
            members = [base | {"weighted": (k, n)} for n in range(len(weighted_members(count, k)))]
            weights = [float(member.draws) for member in weighted_members(count, k)]
        else:
            members = [base | {"seed": 1}, base | {"seed": 2, "part": rng.choice([2, -2, -5])}]
            weights = [1.0, rng.choice([0.3, 1.0, 2.0])]
        samples = rng.choice([rng.randint(10, 30), rng.randint(10, 2 * count)])
        self.cluster = Cluster(
            *(sizes, chunk_size, pages, max(8, pages // rng.choice([2, 4])), nodes, on_each, 1, base),
            depth=rng.randint(1, 3),
            homes={"run": []},
        )
        start = 0 if rng.random() < 0.7 else rng.randrange(samples)
        changes = {rng.randint(1, 2): [rng.choice([0.5, 1.0, 3.0]) for _ in members]} if rng.random() < 0.5 else {}
        batch, workers = rng.randint(1, 5), rng.random() < 0.5
        add_ranks(self.cluster, members, weights, samples, batch, start, workers=workers, changes=changes)
        self.restarts, self.fetches = rng.choice([0.0, 0.0, 0.004]), 0.0
        self.lead, self.cuts = rng.choice([1, 1, 2, 20]), True
        self.trouble, self.slow = rng.choice([0.0, 0.0, 0.02, 0.1]), rng.choice([0.0, 0.02, 0.1])

    def draw(self, rank: Any) -> None:
        slowest = min(other.steps for other in self.cluster.ranks)
        if rank.coming or (not rank.waits and rank.steps - slowest < self.lead):
            rank.go_on()


def add_ranks(
    cluster: Cluster,
    members: list[dict[str, Any]],
    weights: list[float],
    samples: int,
    batch: int,
    start: int = 0,
    *,
    workers: bool = False,
    changes: dict[int, list[float]] | None = None,
) -> list[MixedRank]:
    """Have ranks on every node draw a mixture of these orders."""
    assert len(members) <= MOST_MEMBERS
    ranks = cluster.nodes * cluster.on_each
    found = []
    for rank in range(ranks):
        client = CLIENT + 2 * MOST_MEMBERS * (rank % cluster.on_each)
        where = cluster.worlds[rank // cluster.on_each], client, rank, ranks, batch, members, weights, samples
        found.append(MixedRank(*where, start=start, changes=changes or {}, workers=workers))
        found[-1].register()
    cluster.ranks = found  # type: ignore[assignment]
    return found


def check_end(cluster: Cluster) -> None:
    """All draws are answered; no two ranks got one sample of an epoch of a member; nothing is left on any node."""
    ranks: list[MixedRank] = cluster.ranks  # type: ignore[assignment]
    for _ in range(200):
        cluster.settle()
        if not any(rank.coming for rank in ranks):
            break
        for rank in ranks:
            if rank.coming:
                rank.go_on()
    refused = [reason for world in cluster.worlds for reason in world.refused.values()]
    assert not refused, f"a training that agrees is refused: {refused}"
    assert cluster.network.hung_up == [], "an honest node is hung up on"
    asked = defaultdict[tuple[int, int], list[int]](list)
    for rank in ranks:
        for member, epoch, positions in rank.asked:
            asked[member, epoch] += positions
    given = defaultdict[tuple[int, int], dict[int, int]](dict)
    for world, runs in {(id(world), tuple(runs)): (world, runs) for r in ranks for world, runs in r.served}.values():
        for (run, epoch), places in world.given.items():
            for position, place in places.items():
                assert given[runs.index(run), epoch].setdefault(position, place) == place
    for key, positions in asked.items():
        assert len(set(positions)) == len(positions), "two ranks drew one position"
        assert set(given[key]) == set(positions), "a draw was not answered"
        assert len(set(given[key].values())) == len(positions), "one sample was drawn twice"
    for rank in ranks:
        for client in rank.all_clients:
            rank.world.leave(client)
    cluster.ranks = []
    cluster.end()


@dataclass
class BatchedRank(MixedRank):
    """A rank that draws planned batches of one order, by two clients."""

    limits: BatchLimits | None = None
    lengths: SampleLengths | None = None

    def rule(self, member: int) -> BatchRanks:  # type: ignore[override]
        del member
        assert self.limits is not None
        assert self.lengths is not None
        return BatchRanks(self.limits, self.lengths, self.epoch, self.start, self.ranks)

    def batches(self) -> PositionBatches:
        order = self.world.runs[self.runs[0]].order
        assert self.limits is not None
        assert self.lengths is not None
        return self.limits.batches(self.lengths.values[order.plan(self.epoch).sample_of], order.seed, self.epoch)

    def _begin(self) -> None:
        facts: dict[str, Any] = {"rank": self.rank, "replicas": self.ranks, "processes": UNTOLD, "rule": self.rule(0)}
        at = self.batches().first_from(self.start)
        self.world.begin(self.clients(0)[0], self.runs[0], self.epoch, at, **facts)
        self.begun[0], self.position = self.epoch, 0

    def _next_batch(self) -> None:
        assert self.position is not None
        batches = self.batches()
        if self.position < (len(batches) - self.start) // self.ranks:  # the last, incomplete round is left out
            number = self.start + self.position * self.ranks + self.rank
            positions, _ = batches.taken(np.array([number]))
            self.coming = [(0, self.epoch, positions.tolist())]
            self.position += 1
            self._ask()
        else:
            self.epoch, self.start, self.position = self.epoch + 1, 0, None
        self.steps += 1


class BatchedWalk(MixedWalk):
    """The same as `MixedWalk`, with planned batches."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng, cluster = self.rng, self.cluster
        count = len(cluster.sizes)
        lengths = SampleLengths(np.array([rng.randint(0, 20) for _ in range(count)], np.int64))
        sizes = rng.choice([{"size": 3}, {"most": 40}, {"row": 20, "rows": 2}])
        limits = BatchLimits(rng.choice([6, 12, 30]), lengths.digest, **sizes)
        batch_ranks(cluster, {"group_chunks": rng.randint(1, 4), "seed": 1}, limits, lengths, rng.choice([0, 0, 3]))


def batch_ranks(
    cluster: Cluster, order: dict[str, Any], limits: BatchLimits, lengths: SampleLengths, start: int = 0
) -> list[BatchedRank]:
    """Have ranks on every node draw planned batches."""
    for before in cluster.ranks:
        for client in before.all_clients:  # type: ignore[attr-defined]
            before.world.leave(client)
    ranks, found = cluster.nodes * cluster.on_each, []
    for rank in range(ranks):
        client = CLIENT + 100 + 2 * MOST_MEMBERS * (rank % cluster.on_each)  # a number is used once
        where = cluster.worlds[rank // cluster.on_each], client, rank, ranks, 1, [order], [1.0], 1
        found.append(BatchedRank(*where, start=start, limits=limits, lengths=lengths))
        found[-1].register()
    cluster.ranks = found  # type: ignore[assignment]
    return found


@dataclass
class MixedBatchedRank(MixedRank):
    """A rank that draws planned batches of a mixture."""

    limits: BatchLimits | None = None
    lengths: tuple[SampleLengths, ...] = ()

    def rule(self, member: int) -> MixedBatchRanks:  # type: ignore[override]
        assert self.limits is not None
        return MixedBatchRanks(self.limits, self.lengths, member, self.order, self.epoch, self.start, self.ranks)

    def batches(self) -> PositionBatches:
        assert self.limits is not None
        order = self.order
        lengths = order.by_position(self.epoch, [each.values for each in self.lengths])
        return self.limits.batches(lengths, order.seed, self.epoch)

    def _begin(self) -> None:
        order = self.order
        at = self.batches().first_from(self.start)
        for member, (come, size) in enumerate(zip(order.counts(self.epoch, at), order.sizes, strict=True)):
            self.begun[member], first = divmod(come, size)
            facts: dict[str, Any] = {"rank": self.rank, "replicas": self.ranks, "processes": UNTOLD}
            facts["rule"] = self.rule(member)
            self.world.begin(self.clients(member)[0], self.runs[member], self.begun[member], first, **facts)
        self.position = 0

    def _next_batch(self) -> None:
        assert self.position is not None
        batches = self.batches()
        if self.position < (len(batches) - self.start) // self.ranks:  # the last, incomplete round is left out
            number = self.start + self.position * self.ranks + self.rank
            drawn = self.order.draws(self.epoch, batches.taken(np.array([number]))[0])
            found = defaultdict[tuple[int, int], list[int]](list)
            for member, epoch, position in zip(drawn.member, drawn.epoch, drawn.position, strict=True):
                found[int(member), int(epoch)].append(int(position))
            self.coming = [(member, epoch, some) for (member, epoch), some in sorted(found.items())]
            self.position += 1
            self._ask()
        else:
            self.epoch, self.start, self.position = self.epoch + 1, 0, None
        self.steps += 1


class MixedBatchedWalk(MixedWalk):
    """The same as `MixedWalk`, with planned batches of the mixture."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng, count = self.rng, len(self.cluster.sizes)
        sizes = rng.choice([{"size": 3}, {"most": 40}, {"row": 20, "rows": 2}])
        base: dict[str, Any] = {"group_chunks": rng.randint(1, 4), "stripe": rng.randint(1, 3)}
        members = [base | {"seed": 1}, base | {"seed": 2, "part": rng.choice([2, -2, -5])}]
        lengths = [np.array([rng.randint(0, 20) for _ in range(count)], np.int64) for _ in members]
        changes = {rng.randint(1, 2): [rng.choice([0.5, 1.0, 3.0]) for _ in members]} if rng.random() < 0.5 else {}
        mixed_batch_ranks(
            *(self.cluster, members, [1.0, rng.choice([0.3, 1.0])], rng.randint(10, 2 * count)),
            *(rng.choice([6, 12, 30]), lengths, sizes, rng.choice([0, 0, 2])),
            changes=changes,
            workers=rng.random() < 0.5,
        )


def mixed_batch_ranks(
    cluster: Cluster,
    members: list[dict[str, Any]],
    weights: list[float],
    samples: int,
    window: int,
    lengths: list[np.ndarray],
    sizes: dict[str, int],
    start: int = 0,
    *,
    changes: dict[int, list[float]] | None = None,
    workers: bool = False,
) -> list[MixedBatchedRank]:
    """Have ranks on every node draw planned batches of a mixture."""
    for before in cluster.ranks:
        for client in before.all_clients:  # type: ignore[attr-defined]
            before.world.leave(client)
    by_member = tuple(map(SampleLengths, lengths))
    limits = BatchLimits(window, digest_of(by_member), **sizes)
    ranks, found = cluster.nodes * cluster.on_each, []
    for rank in range(ranks):
        client = CLIENT + 100 + 2 * MOST_MEMBERS * (rank % cluster.on_each)  # a number is used once
        where = cluster.worlds[rank // cluster.on_each], client, rank, ranks, 1, members, weights, samples
        more: dict[str, Any] = {"limits": limits, "lengths": by_member, "changes": changes or {}, "workers": workers}
        found.append(MixedBatchedRank(*where, start=start, **more))
        found[-1].register()
    cluster.ranks = found  # type: ignore[assignment]
    return found
