"""Epochs of many samples whose plans are whole are made a part at a time, and the loop goes on meanwhile."""

from __future__ import annotations

import pytest

from brand.node.decide.state import epoch_table
from brand.orders.base import random
from tests.node.test_core_walks import WALKS, walk
from tests.node.world import World
from tests.rounds import Chance, rounds

SAMPLES = 64


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_table, "PART", 16)
    monkeypatch.setattr(random, "BLOCK", 8)


def planned(world: World, client: int, name: str, rank: int = 0, replicas: int = 1) -> int:
    """A rank begins the first epoch of a run, and the plan is made. Returns the run's number."""
    run = world.register(client, seed=client, name=name, protocol="slots")
    world.begin(client, run, 0, 0, rank=rank, replicas=replicas)
    world.step()
    world.finish_job()
    return run


def under_way(world: World) -> int:
    return sum(life.is_building for _, life in world.turn.core.epochs.lives.items())


def answered(world: World, client: int, run: int, positions: list[int]) -> bool:
    """A client asks for positions, and the loop and the threads do all that they can."""
    assert world.draw(client, run, 0, positions)
    world.quiet()
    return client not in world.asked


def test_another_job_is_answered_meanwhile() -> None:
    world = World([40] * SAMPLES, 4, 200, 2)
    first = planned(world, 1, "first")
    assert answered(world, 1, first, list(range(SAMPLES // 2)))
    planned(world, 2, "second")
    assert under_way(world) == 1
    assert world.turn.hurries, "the loop does not sleep"
    assert world.draw(1, first, 0, list(range(SAMPLES // 2, SAMPLES // 2 + 4)))
    assert 1 not in world.asked, "the samples are in memory"
    assert under_way(world) == 1
    steps = 0
    while under_way(world):
        world.step()
        steps += 1
    assert steps == 3 * SAMPLES // 16
    assert not world.turn.hurries


def test_a_draw_waits_until_its_epoch_is_made() -> None:
    world = World([40] * SAMPLES, 4, 40, 2)
    run = planned(world, 1, "only")
    assert under_way(world) == 1
    assert world.draw(1, run, 0, [0, 1, 2])
    assert 1 in world.asked
    world.quiet()
    assert 1 not in world.asked


def test_nobody_wants_an_epoch_any_more() -> None:
    world = World([40] * SAMPLES, 4, 40, 2)
    planned(world, 1, "only")
    assert under_way(world) == 1
    world.leave(1)
    world.step()
    assert not under_way(world)


def test_a_rank_that_begins_meanwhile_has_it_made_anew() -> None:
    world = World([40] * SAMPLES, 4, 200, 2)
    run = planned(world, 1, "two ranks", 0, 2)
    world.step()
    assert world.register(2, seed=1, name="two ranks", protocol="slots") == run
    world.begin(2, run, 0, 0, rank=1, replicas=2)
    assert under_way(world) == 1
    for client in (1, 2):
        assert answered(world, client, run, list(range(client - 1, SAMPLES, 2)))
    assert sum(len(part) for part in world.given.values()) == SAMPLES


@pytest.mark.slow
@rounds(2)
def test_nothing_is_ever_lost(chance: Chance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_table, "PART", 1)
    monkeypatch.setattr(random, "BLOCK", 5)
    for seed in chance.seeds(WALKS):
        walk(seed)
