"""Which samples a server keeps: the seed of the order decides, as it decides the order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.members import ALONE, Members
from brand.node.wire.numbers import NodeNumber
from tests.node.world import World

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
    return set(np.flatnonzero(kept).tolist())


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
