"""Trainings as they go, many at once: ranks that draw in step, skip, break off, come late and leave, at random.

What `test_core_machine` leaves to chance happens here all the time: memory that is full, runs that pause, ranks that
join while reads are on their way. A walk is fixed by its seed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from brand.node.decide.cache.keeping import Keeping
from brand.node.decide.core import Core
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.reads.reads import Reads
from brand.node.decide.sharing.job_sharing import EarlyHolds
from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.states import COMING
from brand.node.memory.residents import MAX_LEASES
from tests.node.test_core_machine import finish
from tests.node.world import World, some_pieces, weighted_members
from tests.rounds import Chance, rounds

pytestmark = pytest.mark.slow

WALKS = 12
STEPS = 400


@dataclass
class Rank:
    """A rank of a training: a process that begins epochs, and workers that draw."""

    run: dict[str, Any]
    rank: int
    replicas: int
    main: int
    workers: list[int]
    batch: int
    epoch: int = 0
    position: int = 0
    number: int = 0
    drawn: list[int] = field(default_factory=list)


class Walk:
    """One walk: a world and who is in it."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        count = rng.choice([1, 3, rng.randint(8, 30), rng.randint(20, 90), rng.randint(40, 90)])
        size = rng.choice([50, 96, 150, None, None])
        sizes = [rng.choice([0, 40, 96, 97, 200, 500]) if size is None else size for _ in range(count)]
        total = sum(-(-(size + 32) // 128) for size in sizes)
        pages = max(2, round(total * rng.choice([0.05, 0.2, 0.3, 0.5, 0.8, 1.1])) + 1)
        gap = rng.choice([0, 100, 1 << 40])
        self.world = World(sizes, rng.randint(1, 9), pages, rng.randint(1, 4), gap_bytes=gap)
        self.left = rng.choice([0, 0, 0.3])
        """The share of reads that find some of their pieces in the page cache."""
        self.clients = 0
        self.all_clients: list[int] = []
        self.ranks: list[Rank] = []
        orders: list[dict[str, Any]] = [
            {"seed": seed % 2, "group_chunks": rng.randint(1, 6), "stripe": rng.randint(1, 9)} for seed in range(2)
        ]
        orders.append(orders[0] | {"all_cached": 1})
        orders.append({"seed": 3, "group_chunks": rng.randint(1, 4), "protocol": "slots"})
        orders.append({"seed": 4, "group_chunks": rng.randint(1, 4), "protocol": "uniform"})
        storage = {"seed": 6, "group_chunks": rng.randint(1, 4), "stripe": rng.randint(1, 9), "protocol": "storage"}
        orders.append(storage)
        lone = list(orders)
        shared = {"seed": 5, "group_chunks": rng.randint(1, 4), "stripe": rng.randint(1, 9), "protocol": "shared"}
        orders.append(shared)
        joader = {"seed": 5, "group_chunks": 2, "protocol": "joader"}
        orders.append(joader)
        orders += [order | {"part": rng.randint(2, 4) * rng.choice([1, 1, -2])} for order in orders]
        if rng.random() < 0.5:  # jobs that share
            some = joader if rng.random() < 0.6 else shared
            orders = [some, some, some | {"part": rng.randint(2, 4)}]
        for name in range(rng.choice([1, 1, 2, 3])):
            replicas = rng.choice([1, 2, 2, 3])
            run = {"name": f"training {name}", **rng.choice(orders)}
            here = rng.sample(range(replicas), rng.choice([replicas, replicas, 1]))
            for rank in here:
                self.come(run, rank, replicas)
        if rng.random() < 0.25:  # a sampler with weights
            k, order = rng.randint(2, 7), rng.choice(lone)
            for number in range(len(weighted_members(count, k))):
                self.come({"name": "weighted", **order, "weighted": (k, number)}, 0, 1)

    def client(self) -> int:
        """A client that never was there before."""
        self.clients += 1
        self.all_clients.append(self.clients)
        return self.clients

    def come(self, run: dict[str, Any], rank: int, replicas: int, epoch: int = 0) -> None:
        """A rank comes; it has not begun yet."""
        workers = [self.client() for _ in range(self.rng.randint(1, 3))]
        made = Rank(run, rank, replicas, self.client(), workers, self.rng.randint(1, 6), epoch, -1)
        self.ranks.append(made)
        for client in (made.main, *workers):
            made.number = self.world.register(client, **run)

    def begin(self, rank: Rank, epoch: int, position: int = 0) -> None:
        """A rank begins an epoch."""
        self.world.begin(rank.main, rank.number, epoch, position, rank=rank.rank, replicas=rank.replicas)
        rank.epoch, rank.position = epoch, position + rank.rank

    def draw(self, rank: Rank) -> None:
        """One of a rank's workers asks for the next batch."""
        world = self.world
        if rank.position < 0:
            self.begin(rank, rank.epoch)
        free = [client for client in rank.workers if client not in world.asked and client not in world.looked]
        end = min(world.draws(rank.number), rank.position + rank.batch * rank.replicas)
        positions = list(range(rank.position, end, rank.replicas))
        if not positions:
            self.begin(rank, rank.epoch + 1)
        elif free:
            leases = Counter[int](held.client for held in world.held.values())
            client = self.rng.choice(free)
            assert leases[client] < MAX_LEASES
            if self.rng.random() < 0.3 or not world.look(client, rank.number, rank.epoch, positions):
                assert world.draw(client, rank.number, rank.epoch, positions)
            rank.position = positions[-1] + rank.replicas

    def take(self, client: int) -> None:
        """A client has copied samples by itself. Where they were dropped meanwhile, it asks for them."""
        world, looked = self.world, self.world.looked[client]
        if not world.take(client, checked=self.rng.random() < 0.8):
            assert world.draw(client, looked.key[0], looked.key[1], looked.positions.tolist())

    def disturb(self, rank: Rank) -> None:
        """Something that does not happen every day."""
        rng, world = self.rng, self.world
        what = rng.choice(["skip", "skip", "again", "rewind", "break", "pause", "hang", "worker", "leave", "stray"])
        if what == "skip":
            rank.position += rank.replicas * rng.randint(1, 40)
        elif what == "again":
            self.begin(rank, rank.epoch)
        elif what == "rewind":
            self.begin(rank, rank.epoch, rng.randint(0, world.draws(rank.number)))
        elif what == "break":
            self.begin(rank, rank.epoch + 1)
        elif what == "pause":
            world.now_s += 2.5
        elif what == "hang":
            world.now_s += 31
        elif what == "worker":
            world.leave(rank.workers.pop())
            rank.workers.append(self.client())
            world.register(rank.workers[-1], **rank.run)
        elif what == "stray":
            client = rank.workers[0]
            if client not in world.asked and client not in world.looked:
                draws = world.draws(rank.number)
                world.draw(client, rank.number, rng.randint(0, 4), [rng.randrange(draws) for _ in range(4)])
        elif what == "leave":
            for client in (rank.main, *rank.workers):
                world.leave(client)
            self.ranks.remove(rank)
            same = [other for other in self.ranks if other.number == rank.number]
            self.come(rank.run, rank.rank, rank.replicas, max((other.epoch for other in same), default=0))

    def step(self) -> None:
        """Something happens."""
        rng, world = self.rng, self.world
        what = rng.choices(["draw", "take", "release", "read", "job", "loop", "odd"], [10, 6, 8, 7, 6, 8, 1.5])[0]
        if what == "draw":
            self.draw(rng.choice(self.ranks))
        elif what == "take" and world.looked:
            self.take(rng.choice(list(world.looked)))
        elif what == "release" and world.held:
            world.release(rng.choice(list(world.held)), checked=rng.random() < 0.8)
        elif what == "read" and world.reads:
            read = rng.randrange(len(world.reads))
            failed, left = (some_pieces(rng, world.reads[read], share) for share in (0.05, self.left))
            chunks = range(len(world.index.chunks))
            ahead = rng.sample(chunks, min(len(chunks), rng.randrange(3)))
            world.finish_read(read, failed=failed, left=left, whole=rng.random() < 0.5, ahead=ahead)
        elif what == "job" and world.jobs:
            world.finish_job(looks=rng.random() < 0.5)
        elif what == "odd":
            self.disturb(rng.choice(self.ranks))
        else:
            world.step(0.001)


def walk(seed: int) -> None:
    """All of a walk."""
    walk = Walk(seed)
    quiet = walk.rng.random() < 0.3
    for number in range(STEPS):
        walk.step()
        if quiet and number % 16 == 0:
            walk.world.quiet()
    for client in list(walk.world.looked):
        walk.take(client)
    finish(walk.world, walk.all_clients)


@rounds(1)
def test_nothing_is_ever_lost(chance: Chance) -> None:
    """Each page has one owner, each reference a reason, what is due is still to come, and each draw is answered."""
    for seed in chance.seeds(WALKS):
        walk(seed)


def test_walks_come_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rare event for which the walks are made happens in one of them. They are not those of the first round."""
    seen: Counter[str] = Counter()

    def count(cls: type, name: str, happened: Any) -> None:
        original = getattr(cls, name)

        def counted(self: Any, *args: Any, **more: Any) -> Any:
            before = bool(happened(self, args, None))
            result = original(self, *args, **more)
            seen[name] += bool(before or (result is True and happened(self, args, result)))
            return result

        monkeypatch.setattr(cls, name, counted)

    def coming(epoch: Epoch) -> bool:
        return len(epoch.states.all(COMING)) > 0

    count(Epoch, "expect", lambda self, args, _: self.seats and args[0].keys() - self.seats and coming(self))
    count(Epoch, "drop", lambda self, args, _: coming(self))
    count(Epochs, "drop_idle", lambda self, args, result: result)
    count(Core, "_give_up_skipped", lambda self, args, result: result)
    count(Keeping, "evict_some", lambda self, args, result: result)
    count(EarlyHolds, "give_back", lambda self, args, result: result)
    count(Epoch, "replace_plan", lambda self, args, _: coming(self))
    count(World, "take", lambda self, args, result: result)
    count(Reads, "on_read_ended", lambda self, args, _: self._residents.present(args[0].read.places).any())
    wanted = {
        "give_back",
        "replace_plan",
        "expect",
        "drop",
        "drop_idle",
        "_give_up_skipped",
        "evict_some",
        "on_read_ended",
        "take",
    }
    for seed in range(6 * WALKS, 8 * WALKS):
        walk(seed)
        if all(seen[name] for name in wanted):
            return
    raise AssertionError(f"no walk comes to {sorted(name for name in wanted if not seen[name])}")
