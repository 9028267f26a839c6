"""Any interleaving of what clients, threads and the loop do: `Core` against what must always hold (`World`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brand.node.decide.reads.reads import BUNDLE
from brand.node.decide.stimuli import KeptChosen
from tests.node.world import World
from tests.rounds import examples

CLIENTS = st.sampled_from([0, 0, 0, 1, 1, 2, 3])
RUNS = st.sampled_from([0, 0, 0, 0, 0, 1, 2])
EPOCHS = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3])
SIZES = st.one_of(
    st.lists(
        st.one_of(st.integers(0, 100), st.sampled_from([95, 96, 97, 224, 225, 352, 700, 3000])), min_size=1, max_size=40
    ),
    st.builds(lambda size, count: [size] * count, st.sampled_from([60, 96, 150]), st.integers(12, 60)),
)
ORDERS: list[dict[str, Any]] = [
    {"seed": 0, "group_chunks": 2, "stripe": 2},
    {"seed": 1, "group_chunks": 2, "stripe": 2},
    {"seed": 0, "group_chunks": 4, "stripe": 9},
    {"seed": 0, "group_chunks": 1, "stripe": 1},
    {"seed": 2, "group_chunks": 3, "stripe": 1, "protocol": "slots"},
    {"seed": 0, "group_chunks": 2, "protocol": "uniform"},
    {"seed": 0, "group_chunks": 4, "stripe": 9, "part": 3},
    {"seed": 0, "group_chunks": 2, "protocol": "joader"},
]


class CoreMachine(RuleBasedStateMachine):
    """Hypothesis plays clients, threads and loop."""

    world: World

    @initialize(
        sizes=SIZES,
        chunk_size=st.integers(1, 9),
        pages=st.one_of(st.integers(2, 60), st.integers(12, 200)),
        depth=st.integers(1, 9),
    )
    def start(self, sizes: list[int], chunk_size: int, pages: int, depth: int) -> None:
        self.world = World(sizes, chunk_size, pages, depth)
        self.clients = list(range(5))
        self.fronts: dict[tuple[int, int, int], tuple[int, int]] = {}
        """For each client, run and epoch that it has begun: the position to draw next, and the number of ranks."""
        for client in self.clients:
            self.world.register(client, **ORDERS[0])

    def run_of(self, client: int, which: int) -> int:
        """One of the runs that a client has registered, or what becomes of the first order."""
        mine = [number for number, run in self.world.runs.items() if client in run.clients]
        return mine[which % len(mine)] if mine else self.world.register(client, **ORDERS[0])

    @rule(
        client=CLIENTS,
        name=st.sampled_from(["run", "run", "other"]),
        order=st.sampled_from(ORDERS),
        tag=st.sampled_from([None, 1, 2]),
    )
    def register(self, client: int, name: str, order: dict[str, Any], tag: int | None) -> None:
        tag = None if tag is None else 10 * ORDERS.index(order) + tag
        self.world.register(self.clients[client], name, tag=tag, **order)

    @rule(
        client=CLIENTS,
        run=RUNS,
        epoch=EPOCHS,
        start=st.sampled_from([0, 0, 0, 5, 30, 60]),
        rank=st.integers(0, 2),
        replicas=st.sampled_from([1, 1, 2, 2, 3]),
    )
    def begin(self, client: int, run: int, epoch: int, start: int, rank: int, replicas: int) -> None:
        """A rank begins an epoch, once more or for the first time."""
        number, rank = self.clients[client], rank % replicas
        where = (number, self.run_of(number, run), epoch)
        position = min(start, self.world.draws(where[1]))
        self.world.begin(*where, position, rank=rank, replicas=replicas)
        self.fronts[where] = (position + rank, replicas)

    @precondition(lambda self: self.world.epochs())
    @rule(which=st.integers(0, 5), client=CLIENTS)
    def join(self, which: int, client: int) -> None:
        """One more rank of those that have begun an epoch comes, late."""
        epochs = sorted(self.world.epochs().items(), key=lambda item: item[0])
        (run, number), live = epochs[which % len(epochs)]
        start, replicas = live.epoch.progress.start, live.epoch.division.replicas
        late = sorted(set(range(replicas)) - live.epoch.seats.keys())
        if late and self.clients[client] in self.world.runs[run].clients:
            where = (self.clients[client], run, number)
            self.world.begin(*where, start, rank=late[0], replicas=replicas)
            self.fronts[where] = (start + late[0], replicas)

    @precondition(lambda self: self.fronts)
    @rule(which=st.integers(0, 20), count=st.integers(1, 12))
    def draw_in_step(self, which: int, count: int) -> None:
        """A client goes on where it has stopped."""
        where = list(self.fronts)[which % len(self.fronts)]
        first, step = self.fronts[where]
        positions = [p for p in range(first, first + step * count, step) if p < self.world.draws(where[1])]
        if positions and self.world.draw(*where, positions):
            self.fronts[where] = (positions[-1] + step, step)

    @precondition(lambda self: self.fronts)
    @rule(which=st.integers(0, 20), rounds=st.integers(1, 40), count=st.integers(1, 12), full=st.booleans())
    def skip(self, which: int, rounds: int, count: int, full: bool) -> None:
        """A client will not draw its next positions, for which memory may be `full` already."""
        if full:
            self.world.quiet()
        where = list(self.fronts)[which % len(self.fronts)]
        first, step = self.fronts[where]
        self.fronts[where] = (first + rounds * step, step)
        self.draw_in_step(which, count)
        self.world.step()

    @rule(
        client=CLIENTS,
        run=RUNS,
        epoch=EPOCHS,
        start=st.integers(0, 39),
        count=st.integers(1, 12),
        step=st.integers(1, 3),
    )
    def draw_somewhere(self, client: int, run: int, epoch: int, start: int, count: int, step: int) -> None:
        world, number = self.world, self.clients[client]
        asked = self.run_of(number, run)
        positions = (start + step * np.arange(count)) % world.draws(asked)
        world.draw(number, asked, epoch, positions.tolist())

    @rule(client=CLIENTS, run=RUNS, epoch=EPOCHS, data=st.data())
    def draw_anything(self, client: int, run: int, epoch: int, data: Any) -> None:
        world, number = self.world, self.clients[client]
        asked = self.run_of(number, run)
        positions = data.draw(st.lists(st.integers(0, world.draws(asked) - 1), min_size=1, max_size=8))
        world.draw(number, asked, epoch, positions)

    @precondition(lambda self: self.world.held)
    @rule(which=st.integers(0, 100), checked=st.booleans())
    def release(self, which: int, checked: bool) -> None:
        leases = list(self.world.held)
        self.world.release(leases[which % len(leases)], checked=checked)

    @precondition(lambda self: self.world.reads)
    @rule(which=st.integers(0, 3), failed=st.one_of(st.just(()), st.just(range(BUNDLE)), st.sets(st.integers(0, 5))))
    def finish_read(self, which: int, failed: Collection[int]) -> None:
        self.world.finish_read(which % len(self.world.reads), failed=failed)

    @precondition(lambda self: self.world.jobs)
    @rule(looks=st.booleans())
    def finish_job(self, looks: bool) -> None:
        self.world.finish_job(looks=looks)

    @rule(client=CLIENTS)
    def leave(self, client: int) -> None:
        """A client is gone, and another one comes in its place."""
        self.world.leave(self.clients[client])
        self.fronts = {where: front for where, front in self.fronts.items() if where[0] != self.clients[client]}
        self.clients[client] += len(self.clients)

    @rule(later_s=st.sampled_from([0.0, 0.01, 1.5, 2.5, 31.0]))
    def step(self, later_s: float) -> None:
        self.world.step(later_s)

    @rule(finish=st.integers(0, 12))
    def run_for_a_while(self, finish: int) -> None:
        """Threads are quick for once; the last reads are still on their way."""
        for _ in range(finish):
            self.world.step()
            if self.world.jobs:
                self.world.finish_job()
            if self.world.reads:
                self.world.finish_read()
        self.world.step()

    @invariant()
    def memory_is_bounded(self) -> None:
        if hasattr(self, "world"):
            assert 0 <= self.world.allocator.free < self.world.allocator.count

    def teardown(self) -> None:
        if hasattr(self, "world"):
            finish(self.world, self.clients)


def finish(world: World, clients: list[int]) -> None:
    """Every draw is answered, and when everybody has left not a page is lost."""
    world.settle()
    for client in clients:
        world.leave(client)
    assert not world.runs
    assert not world.epochs(), "an epoch is left for which nobody is there"
    while world.jobs or world.reads:
        world.step()
        if world.jobs:
            world.finish_job()
        elif world.reads:
            world.finish_read()
    assert not world.epochs()
    world.tell(KeptChosen(world.core.keeping._last, np.zeros(len(world.sizes), np.bool_)))
    assert world.allocator.free == world.allocator.count - 1, "pages are lost"


CoreMachine.TestCase.settings = examples(60, stateful_step_count=50)
TestCore = pytest.mark.slow(CoreMachine.TestCase)
