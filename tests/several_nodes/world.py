"""Several data servers without sockets, threads or a clock, and the ranks of trainings that draw from them.

Each node is a `World`; what they say to each other goes through `tests.tools.network`. So a test decides what arrives
when, which stream ends, how far a node is behind, and what time it is. Each answer is compared with the plan and with
the bytes of the samples; the books of every node are checked after every call.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.online.order_messages import HEAR_S
from brand.node.decide.peers import parts, peering
from brand.node.decide.state.epoch_table import Key
from brand.node.decide.state.members import Members
from brand.node.decide.stimuli import ClientJoins, ClientOrders, KeptChosen
from brand.node.memory.residents import MAX_LEASES
from brand.node.wire.messages import GOES_ON
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber
from brand.orders.base.joins import Joins
from brand.orders.base.mapping import Mapping
from tests.node.world import PAGE, World, some_pieces
from tests.tools.network import FakeNetwork

CLIENT = 1
"""Number of the first client of every node."""
FETCHER = 500
"""Number of a client of every node that fetches samples by name."""


@dataclass
class Rank:
    """A rank of the training: it begins epochs, and draws its positions of each batch by batch."""

    world: World
    client: int
    run: RunNumber
    rank: int
    ranks: int
    batch: int
    name: str
    """Of the training."""
    order: dict[str, Any]
    start: int = 0
    """Position of the first epoch where it begins."""
    seat: dict[str, int] = field(default_factory=dict)
    """Of a member of a group: how many there are here, on how many nodes it has members, and which of them this is."""
    epoch: int = 0
    position: int | None = None
    """What it draws next; None: it has not begun this epoch."""
    steps: int = 0
    """Batches that it has asked for, in all epochs."""
    drawn: int = -1
    """The epoch that it has drawn from last; -1: none."""
    knows: dict[int, Joins] = field(default_factory=dict)
    """Where its training has joined others in that epoch and the one before, as far as it knows."""
    grown: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    """The samples of these epochs up to the last one that it has got, if the order grows."""
    last: int = -1
    """Highest position of that epoch that it has asked for."""
    begun: tuple[int, int] | None = None
    """The epoch that it has begun last, and where."""
    tells: bool = False
    """Whether its server was replaced, and does not know yet what the rank draws."""
    runs: list[tuple[World, RunNumber]] = field(default_factory=list)
    """Where it has registered, and as what."""

    @property
    def waits(self) -> bool:
        """Whether it has not got what it has asked for."""
        return self.client in self.world.asked

    @property
    def key(self) -> Key:
        """The epoch that it has drawn from last."""
        return self.run, self.drawn

    def register(self) -> None:
        """Say to the server which training it draws in, and where that has joined others, as far as it knows."""
        self.run = self.world.register(self.client, self.name, turn=len(self.name), **self.order)
        self.runs.append((self.world, self.run))
        for epoch, joins in self.knows.items():
            self.world.tell(ClientJoins(ClientNumber(self.client), (self.run, epoch), joins))
        for epoch, grown in self.grown.items():
            key = self.run, epoch
            self.world.tell(ClientOrders(ClientNumber(self.client), key, 0, grown, len(grown), 0))

    def learn(self) -> None:
        """It got what it had asked for, so it knows where its training has joined others."""
        if self.drawn >= 0 and not self.waits:
            order = self.world.runs[self.run].order
            if order.joins:
                self.knows[self.drawn] = self.world.known(self.key)
            if order.grows and self.last >= len(self.grown.get(self.drawn, ())):
                self.grown[self.drawn] = self.world.online.orders.publish(self.key, 0, self.last + 1)
                assert len(self.grown[self.drawn]) == self.last + 1, "a client is not told what it has got"

    def move_to(self, world: World) -> None:
        """The server was replaced: what it has not answered is asked for again, as a client does."""
        self.learn()
        waits = self.world.asked.get(self.client)
        self.world = world
        self.register()
        self.tells = not world.runs[self.run].order.shares
        if waits is not None:
            self.ask(waits.key[1], waits.positions.tolist())

    def ask(self, epoch: int, positions: list[int]) -> None:
        """Ask for samples. A new server hears before or after that which epoch it is, and what the rank has drawn."""
        tells = self.tells and self.begun is not None and self.begun[0] == epoch
        if tells and self.steps % 2:
            self.tell(positions[0])
        assert self.world.draw(self.client, self.run, epoch, positions)
        if tells and not self.steps % 2:
            self.tell(positions[0])

    def tell(self, front: int) -> None:
        """Tell a new server of the epoch."""
        assert self.begun is not None
        epoch, start = self.begun
        facts: dict[str, Any] = {"rank": self.rank, "replicas": self.ranks, "processes": GOES_ON, "front": front}
        self.world.begin(self.client, self.run, epoch, start, **(facts | self.seat))
        self.tells = False

    def go_on(self) -> None:
        """Begin the epoch, or ask for the next batch; after the last one of an epoch comes the next epoch."""
        self.learn()
        draws = self.world.draws(self.run)
        if self.position is None:
            where: dict[str, Any] = {"rank": self.rank, "replicas": self.ranks} | self.seat
            self.world.begin(self.client, self.run, self.epoch, self.start, **where)
            self.begun, self.tells = (self.epoch, self.start), False
            self.position = self.start + self.rank
            return
        end = min(draws, self.position + self.batch * self.ranks)
        positions = list(range(self.position, end, self.ranks))
        if positions:
            if self.drawn != self.epoch:
                self.drawn = self.epoch
                self.knows = {e: joins for e, joins in self.knows.items() if e == self.epoch - 1}
                self.grown = {e: grown for e, grown in self.grown.items() if e == self.epoch - 1}
            self.last = positions[-1]
            self.ask(self.epoch, positions)
        self.steps += 1
        self.position += self.batch * self.ranks
        if self.position - self.rank >= draws:
            self.epoch, self.start, self.position = self.epoch + 1, 0, None


@dataclass
class Cluster:
    """Nodes with the same data set and as many ranks each, in one training."""

    sizes: list[int]
    chunk_size: int
    pages: int
    remote_pages: int
    nodes: int
    on_each: int
    batch: int
    order: dict[str, Any]
    depth: int = 2
    start: int = 0
    second: dict[str, Any] | None = None
    """Order of a second training."""
    homes: dict[str, list[int]] = field(default_factory=dict)
    """The nodes of each training, `run` and `other`, where these are not all nodes."""
    group: tuple[int, int] = (1, 1)
    """Members of each group on a node, and how many neighbouring nodes it has members on."""
    worlds: list[World] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.network = FakeNetwork(self.nodes)
        self.pairs = [(a, b) for a in range(self.nodes) for b in range(self.nodes) if a != b]
        self._plans: dict[Any, Any] = {}
        self._apart_s = [0.0] * self.nodes
        self.apart_s = 0.0
        """The longest time for which a node and the first node did not reach each other."""
        self.worlds = [self._world(node) for node in range(self.nodes)]
        orders = {"run": self.order} | ({} if self.second is None else {"other": self.second})
        for number, (name, order) in enumerate(orders.items()):
            at = [node for node in self.homes.get(name, range(self.nodes)) for _ in range(self.on_each)]
            copies, spans = self.group
            for process, node in enumerate(at):
                local, block = process % self.on_each, process // self.on_each // spans
                client = CLIENT + number * self.nodes * self.on_each + local
                rank = block * (self.on_each // copies) + local // copies
                made = Rank(
                    *(self.worlds[node], client, RunNumber(0), rank, len(at) // (copies * spans)),
                    *(self.batch, name, order),
                    start=self.start if not number else 0,
                    seat={"copies": copies, "spans": spans, "part": process // self.on_each % spans},
                )
                made.register()
                self.ranks.append(made)

    def _world(self, node: int) -> World:
        where = Members(NodeNumber(node), self.nodes), self.remote_pages, self.network.peer(node), self._plans
        return World(self.sizes, self.chunk_size, self.pages, self.depth, *where)

    def restart(self, node: int) -> None:
        """A node's server is killed, and another one takes its place."""
        old, new = self.worlds[node], self._world(node)
        new.now_s, new.refused = old.now_s, old.refused
        self.network.restart(node)
        self.worlds[node] = new
        for rank in [rank for rank in self.ranks if rank.world is old]:
            rank.move_to(new)

    def join(self) -> None:
        """Open all streams, and have everybody hear of it."""
        for pair in self.pairs:
            self.network.open(*pair)
        self.talk()

    def talk(self) -> bool:
        """All that is on its way arrives, and is taken; whether there was anything."""
        happened = False
        while on_the_way := self.network.on_the_way():
            happened = True
            for pair in on_the_way:
                self.network.deliver(*pair)
        for node, world in enumerate(self.worlds):
            if self.network.waiting_at(node):
                world.hear()
                happened = True
        return happened

    def later(self, seconds: float) -> None:
        """Time passes for all."""
        for node, world in enumerate(self.worlds):
            world.now_s += seconds
            together = node == 0 or (self.network.is_open(0, node) and self.network.is_open(node, 0))
            self._apart_s[node] = 0.0 if together else self._apart_s[node] + seconds
        self.apart_s = max(self.apart_s, *self._apart_s)

    def round(self) -> bool:
        """Everybody does all that there is to do, once, and says so; whether there was anything."""
        happened = False
        for world in self.worlds:
            happened = world.step() or happened
            while world.jobs or world.reads:
                world.finish_job() if world.jobs else world.finish_read()
                happened = True
        return self.talk() or happened

    def rest(self) -> None:
        """Let everything happen that takes no time, until there is nothing to do."""
        while self.round():
            pass

    def settle(self) -> None:
        """Let everything happen until every draw is answered and every lease is released."""
        for _ in range(3000):
            self.join()
            happened = self.round()
            for world in self.worlds:
                for lease in list(world.held):
                    world.release(lease)
                    happened = True
            if not happened:
                if not any(world.asked or world.fetching for world in self.worlds):
                    return
                self.later(0.25)
        stuck = {rank.rank: rank.world.asked[rank.client] for rank in self.ranks if rank.waits}
        raise AssertionError(f"draws are never answered: {stuck}")

    def given(self, name: str, epoch: int) -> dict[int, int]:
        """What the ranks of a training got in an epoch, by position: never another sample than before."""
        found: dict[int, int] = {}
        for world, run in {
            (id(world), run): (world, run) for rank in self.ranks for world, run in rank.runs if rank.name == name
        }.values():
            for position, place in world.given.get((run, epoch), {}).items():
                assert found.setdefault(position, place) == place, "two nodes draw an epoch in different ways"
        assert len(set(found.values())) == len(found), "two ranks got one sample"
        return found

    def end(self) -> None:
        """All ranks leave; nothing of the training may be left on any node."""
        self.settle()
        for rank in self.ranks:
            rank.world.leave(rank.client)
        self.rest()
        for world in self.worlds:
            assert not world.epochs(), "an epoch is left for which nobody is there"
            assert not world.core.epochs.runs, "a run is left for which nobody is there"
            world.tell(KeptChosen(world.core.keeping._last, world.pages_of < 0))
            assert world.allocator.free == world.allocator.count - 1, "pages are lost"


class Walk:
    """A training with everything that may happen to it, in an order that a seed decides."""

    def __init__(
        self,
        seed: int,
        *,
        sharing: bool = False,
        in_step: bool = False,
        online: bool = False,
        large: bool = False,
        groups: bool = False,
    ) -> None:
        self.rng = rng = random.Random(seed)
        nodes, on_each = rng.choice([(2, 1), (2, 2), (3, 1), (3, 2), (5, 1), (5, 2)])
        group = [1, 1]
        if groups:
            nodes, on_each, *group = rng.choice([(2, 1, 1, 2), (2, 2, 1, 2), (2, 4, 2, 2), (3, 2, 2, 3), (4, 2, 1, 2)])
        if sharing:
            nodes, on_each = rng.choice([(2, 1), (2, 2), (3, 1), (3, 2)])
        chunk_size, batch = rng.randint(2, 8), rng.randint(1, 5)
        count = rng.randint(nodes * chunk_size, 90)
        size = rng.choice([60, 96, 150, None])
        sizes = [rng.choice([0, 40, 96, 97, 200, 500]) if size is None else size for _ in range(count)]
        total = sum(-(-(size + 32) // 128) for size in sizes)
        pages = max(12, round(total * rng.choice([0.2, 0.3, 0.5, 0.8, 1.1])))
        remote_pages = max(2, pages // rng.choice([2, 4, 10]))
        if large:  # samples of 2 to 5 pages, and so much memory that most of them are sent
            nodes, sizes = min(nodes, 3), [rng.choice([97, 200, 500]) for _ in range(count)]
            pages = round(sum(-(-(size + 32) // 128) for size in sizes) * rng.choice([0.5, 0.8, 1.1]))
            remote_pages = pages // 2
        order: dict[str, Any] = {"seed": seed % 3, "group_chunks": rng.randint(1, 4)}
        protocol = rng.random()
        if protocol < 0.5:
            ahead = rng.choice([0, 2, 8, 30])
            order |= {"protocol": "slots", "nodes": nodes, "ranks": nodes * on_each, "window": ahead, "remote": ahead}
        elif protocol < 0.75:
            order |= {"protocol": "uniform"}
        else:
            order |= {"stripe": rng.randint(1, chunk_size), "all_cached": rng.randint(0, 1)}
        start = 0 if rng.random() < 0.8 else rng.randrange(count)
        depth = rng.randint(1, 3)
        second = {"seed": 7, "group_chunks": rng.randint(1, 4), "stripe": rng.randint(1, chunk_size)}
        homes: dict[str, list[int]] = {}
        if sharing:
            order = second | {"protocol": "shared"}
            second = order | ({"part": rng.randint(2, 4)} if rng.random() < 0.3 else {})
            if in_step:
                order = order | {"protocol": "coordl", "jobs": 1, "window": rng.choice([1, 8, 40])}
                second = order
            if online:
                order = {"protocol": "joader", "seed": 7, "group_chunks": second["group_chunks"]}
                second = order | ({"part": second["part"]} if "part" in second else {})
            homes = {name: rng.sample(range(nodes), rng.randint(1, nodes)) for name in ("run", "other")}
        self.cluster = Cluster(
            *(sizes, chunk_size, pages, remote_pages, nodes, on_each, batch, order, depth, start),
            second if sharing or rng.random() < 0.25 else None,
            homes,
            (group[0], group[1]),
        )
        self.restarts = rng.choice([0.0, 0.0, 0.0, 0.004])
        """How often a server is replaced, of all that happens."""
        self.fetches = rng.choice([0.0, 0.02])
        """How often a client fetches samples by name."""
        self.lead = rng.choice([1, 1, 2, 50])
        """Batches that one rank may be ahead of another: with gradients that are averaged it is one."""
        self.trouble = rng.choice([0.0, 0.0, 0.02, 0.1])
        """How often a stream ends or opens, of all that happens."""
        self.cuts = not (online and self.restarts)
        """Whether streams end although no server is replaced."""
        if not self.cuts:
            self.trouble = 0.1
        self.slow = rng.choice([0.0, 0.02, 0.02 if sharing else 0.1])  # nodes that never meet are refused
        """How often much time passes."""

    def step(self) -> None:
        """Something happens."""
        rng, cluster = self.rng, self.cluster
        if rng.random() < self.trouble:
            pair = rng.choice(cluster.pairs)
            if cluster.network.is_open(*pair):
                if self.cuts:
                    cluster.network.cut(*pair, arrive=rng.choice([0, 0, 1, 3]))
            else:
                cluster.network.open(*pair)
        if rng.random() < self.restarts:
            cluster.restart(rng.randrange(cluster.nodes))
        if rng.random() < self.fetches:
            self.fetch(rng.choice(cluster.worlds))
        if rng.random() < self.slow:
            cluster.later(rng.choice([0.3, 0.7, 1.1, 2.5]))
        cluster.later(0.002)
        what = rng.choices(["draw", "release", "read", "job", "loop", "network"], [10, 8, 8, 8, 12, 30])[0]
        world = rng.choice(cluster.worlds)
        if what == "draw":
            self.draw(rng.choice(cluster.ranks))
        elif what == "release" and world.held:
            world.release(rng.choice(list(world.held)), checked=rng.random() < 0.8)
        elif what == "read" and world.reads:
            read = rng.randrange(len(world.reads))
            world.finish_read(read, failed=some_pieces(rng, world.reads[read], 0.02))
        elif what == "job" and world.jobs:
            world.finish_job(looks=rng.random() < 0.5)
        elif what == "network":
            self.deliver()
        else:
            world.step()

    def draw(self, rank: Rank) -> None:
        """A rank goes on, if it has what it asked for and is not too far ahead."""
        slowest = min(other.steps for other in self.cluster.ranks if other.name == rank.name)
        if not rank.waits and rank.steps - slowest < self.lead:
            held = [number for number, lease in rank.world.held.items() if lease.client == rank.client]
            if len(held) == MAX_LEASES:
                rank.world.release(held[0])
            rank.go_on()

    def fetch(self, world: World) -> None:
        """A client wants samples of other nodes, some of them twice."""
        owners = world.members.owners(Mapping(len(world.sizes), world.chunk_size, 1))
        owner = owners.of(np.arange(len(world.sizes)))
        theirs = np.flatnonzero(owner != world.members.node).tolist()
        if theirs and FETCHER not in world.fetching:
            world.fetch(FETCHER, self.rng.choices(theirs, k=self.rng.randint(1, 5)))

    def deliver(self) -> None:
        """Something arrives somewhere, and a node takes what has arrived."""
        rng, cluster = self.rng, self.cluster
        for pair in rng.sample(cluster.pairs, rng.randint(1, len(cluster.pairs))):
            for _ in range(rng.choice([1, 1, 2, 9])):
                cluster.network.deliver(*pair, to=rng.choice(pair))
        for node in rng.sample(range(cluster.nodes), rng.randint(1, cluster.nodes)):
            if cluster.network.waiting_at(node):
                cluster.worlds[node].hear()
                if rng.random() < 0.7:
                    cluster.worlds[node].step()


def walk(
    seed: int,
    steps: int,
    *,
    sharing: bool = False,
    in_step: bool = False,
    online: bool = False,
    in_parts: bool = False,
    groups: bool = False,
) -> Cluster:
    """All of a walk. `sharing`: of two trainings that share. `in_parts`: of samples that are larger than a message.

    `in_step`: the trainings that share are in lock step. `online`: their orders are decided while they draw. `groups`:
    of ranks that get the same samples, on several nodes.
    """
    with ExitStack() as stack:
        if in_parts:
            stack.enter_context(mock.patch.object(parts, "MESSAGE_BYTES", (1 + seed % 3) * PAGE))
            stack.enter_context(mock.patch.object(parts, "PART_S", 1.0))
            stack.enter_context(mock.patch.object(peering, "MAX_UNSENT", (1 + seed % 5) * 2 * PAGE))
        kinds = {"sharing": sharing, "in_step": in_step, "online": online, "groups": groups}
        return _walk(Walk(seed, **kinds, large=in_parts), steps)


def _walk(walk: Walk, steps: int) -> Cluster:
    if walk.rng.random() < 0.7:
        walk.cluster.join()
    for _ in range(steps):
        walk.step()
    walk.cluster.end()
    assert walk.cluster.network.hung_up == [], "an honest node is hung up on"
    refused = [reason for world in walk.cluster.worlds for reason in world.refused.values()]
    if walk.cluster.apart_s > HEAR_S:  # the first node decides an order after it has heard of all nodes
        refused = [reason for reason in refused if "was not decided within" not in reason]
    assert not refused, f"a training that agrees is refused: {refused}"
    for rank in walk.cluster.ranks:
        for epoch in range(rank.epoch + 1):
            walk.cluster.given(rank.name, epoch)
    return walk.cluster
