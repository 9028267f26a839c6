"""Which samples a server keeps: the seed of the order decides, as it decides the order.

And when it keeps again what it let go because memory was short.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from brand.node.decide.cache.keeping import Shortage
from brand.node.decide.state import choosing
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.members import ALONE, Members
from brand.node.memory.residents import as_chosen
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.mapping import Mapping
from tests.node.world import World
from tests.rounds import Chance, rounds

SEEDS = [0, 1, 2**127]


def kept_with(seed: int, members: Members) -> set[int]:
    """The places that a server with room for half of the samples chooses to keep when a run begins."""
    world = World([96] * 400, 8, pages=200, members=members)
    world.begin(1, world.register(1, seed=seed, group_chunks=25, stripe=4), 0)
    world.step()
    world.finish_job()  # the plan
    world.step()
    (choice,) = (job for job in world.jobs if isinstance(job, ChooseCached))
    kept = choice.kept(world.pages_of)
    assert kept is not None
    return set(np.flatnonzero(as_chosen(kept).at(np.arange(400))).tolist())


@pytest.mark.parametrize("members", [ALONE, Members(NodeNumber(1), 3)], ids=["alone", "one of three"])
def test_a_server_that_starts_again_keeps_the_same_samples(members: Members) -> None:
    """In a run with the same seed, whichever it is; a node keeps some of its own samples."""
    for seed in SEEDS:
        kept = kept_with(seed, members)
        assert kept == kept_with(seed, members)
        assert len(kept) > 50


@pytest.mark.parametrize("members", [ALONE, Members(NodeNumber(1), 3)], ids=["alone", "one of three"])
def test_every_seed_keeps_others(members: Members) -> None:
    """So that it is not the same samples which every run keeps, and the same which every run reads."""
    found = [kept_with(seed, members) for seed in SEEDS]
    assert len({frozenset(kept) for kept in found}) == len(SEEDS)


@pytest.mark.parametrize("members", [ALONE, Members(NodeNumber(1), 3)], ids=["alone", "one of three"])
def test_of_a_large_data_set_whole_units_are_kept(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own ones, others with each seed, and nearly as many samples as by the plan, of which none is asked for."""
    exact = [kept_with(seed, members) for seed in SEEDS]
    monkeypatch.setattr(choosing, "MOST_LISTED", 0)
    found = [kept_with(seed, members) for seed in SEEDS]
    assert len({frozenset(kept) for kept in found}) == len(SEEDS)
    owners = members.owners(Mapping(400, 8, 25))
    for kept, by_plan in zip(found, exact, strict=True):
        assert owners.mine(np.array(sorted(kept))).all()
        assert {place // 8 * 8 + number for place in kept for number in range(8)} == kept  # a chunk is less than a unit
        assert 0.8 * len(by_plan) - 8 <= len(kept) <= len(by_plan) + 8


def test_a_large_data_set_is_read_but_for_the_kept_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each epoch but the first, by a real sequence of draws."""
    monkeypatch.setattr(choosing, "MOST_LISTED", 0)
    ranks = TwoRanks({"group_chunks": 30, "stripe": 2})
    assert ranks.to_keep >= 40
    read = sum(ranks.epoch(epoch) for epoch in (1, 2, 3))
    assert abs(read - 3 * (240 - ranks.kept)) < 16  # what the end of an epoch reads ahead counts there
    assert ranks.kept == ranks.to_keep


@pytest.mark.parametrize(
    ("other", "samples"),
    [
        ({"protocol": "stripes", "group_chunks": 5}, 10 * 8),
        ({"protocol": "pool", "pool": 3}, 3 * 8),
        ({"protocol": "uniform"}, 1),
    ],
    ids=["stripes", "pool", "uniform"],
)
def test_room_is_left_for_what_another_run_holds(other: dict[str, Any], samples: int) -> None:
    """Of 400 samples of a page each in 50 chunks: a chunk of each group, a pool, or one sample."""
    world = World([96] * 400, 8, pages=201, members=ALONE)
    rooms = []
    for client, order in ((1, {"group_chunks": 25, "stripe": 4}), (2, other)):
        world.begin(client, world.register(client, f"run {client}", **order), 0)
        world.step()
        while world.jobs:
            rooms += [job.room for job in world.jobs if isinstance(job, ChooseCached)]
            world.finish_job()
            world.step()
    assert rooms[0] - rooms[-1] == samples


class TwoRanks:
    """A training of two ranks on a server with memory for a third of 240 samples of a page each."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.world = World([96] * 240, 8, pages=81, members=ALONE, gap_bytes=0, measures=True)
        for client in (0, 1):
            self.number = self.world.register(client, **order)
        self.epoch(0)

    def epoch(self, epoch: int, pause: int = 0) -> int:
        """The ranks draw an epoch; rank 0 pauses for as many batches of rank 1. How many samples were read."""
        world, before = self.world, sum(self.world.read_bytes.values())
        for rank in (0, 1):
            world.begin(rank, self.number, epoch, rank=rank, replicas=2)
        world.quiet()
        self.began_with = self.to_keep
        for batch in range(40 + pause):
            for rank, number in ((0, batch - pause), (1, batch)):
                if 0 <= number < 40:
                    positions = np.arange(rank, 240, 2)[3 * number : 3 * number + 3]
                    assert world.draw(rank, self.number, epoch, positions.tolist())
                    world.settle()
        return (sum(world.read_bytes.values()) - before) // 96

    @property
    def direct(self) -> int:
        """How many samples clients have read themselves."""
        return self.world.core.counters.draws.direct

    @property
    def kept(self) -> int:
        """How many samples are kept."""
        return int(self.world.core.residents.kept().sum())

    @property
    def to_keep(self) -> int:
        """How many samples are to be kept."""
        return int(self.world.core.residents.to_keep(np.arange(240)).sum())


ORDERS = pytest.mark.parametrize(
    "order", [{"protocol": "uniform"}, {"group_chunks": 3, "stripe": 2, "seed": 2}], ids=["uniform", "stripes"]
)


@pytest.mark.slow
@ORDERS
def test_kept_samples_that_a_pause_costs_are_kept_again(order: dict[str, Any]) -> None:
    """A rank pauses, and what waits for it fills memory. The next epoch keeps again what the pause has cost: later ones
    keep and read as much as before.
    """
    ranks = TwoRanks(order)
    ranks.epoch(1)
    kept, reads = ranks.kept, [ranks.epoch(epoch) for epoch in (2, 3)]
    assert ranks.epoch(4, pause=40) > 0
    assert ranks.kept < kept / 2, "the pause costs nothing, so that this test shows nothing"
    ranks.epoch(5)
    assert ranks.kept == kept
    assert sum(ranks.epoch(epoch) for epoch in (6, 7)) <= sum(reads) + 8  # reads ahead begin at other places
    assert ranks.kept == kept


@pytest.mark.slow
@ORDERS
def test_kept_samples_that_a_short_pause_costs_are_read_again_in_time(order: dict[str, Any]) -> None:
    """The epochs under way have counted on them, and planned no reads of them: clients would read them one by one."""
    ranks = TwoRanks(order)
    ranks.epoch(1)
    kept, reads, direct = ranks.kept, ranks.epoch(2), ranks.direct
    assert ranks.epoch(3, pause=8) > reads
    assert ranks.kept < kept
    ranks.epoch(4)
    assert ranks.direct == direct


@pytest.mark.slow
@ORDERS
def test_kept_samples_do_not_come_and_go_in_each_epoch(order: dict[str, Any]) -> None:
    """If a rank pauses in each epoch, they are kept again after one epoch, then after two, then after four."""
    ranks, whole = TwoRanks(order), []
    chosen = ranks.to_keep
    for epoch in range(1, 13):
        ranks.epoch(epoch, pause=40)
        assert ranks.to_keep < chosen
        whole += [epoch] if ranks.began_with == chosen else []
    assert whole == [1, 2, 4, 8]


@rounds(3)
def test_the_time_until_samples_are_kept_again(chance: Chance) -> None:
    """One epoch; after an eviction in the very epoch that keeps them again, twice as many as the last time."""
    for _ in range(100):
        shortage, epoch, waits, due, returned = Shortage(), 0, 1, None, None
        for _ in range(60):
            epoch += chance.rng.random() < 0.6
            if due is not None:
                over = shortage.is_over(epoch)
                assert over == (epoch >= due)
                due, returned = (None, epoch) if over else (due, returned)
            if chance.rng.random() < 0.4:
                shortage.on_evicted(epoch)
                if due is None:
                    waits = 2 * waits if epoch == returned else 1
                    due = epoch + waits
            assert (shortage.left > 0) == (due is not None)
