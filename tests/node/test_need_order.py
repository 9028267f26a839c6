"""Which rank waits for reads that start in the order of need, and does a stage rest while the other one is short?

Ranks train in lock step: an iteration begins when the latest rank has its batch. Every batch of an iteration is due at
that time, so reads by deadline are Jackson's rule: no order of the same reads on one storage ends any iteration's reads
earlier.
"""

from __future__ import annotations

from itertools import accumulate, pairwise, permutations
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.node.decide.reads import reads
from tests.node.preparing import WANTS, PreparingWorld
from tests.node.world import World
from tests.rounds import examples

RANKS = 4


def latest(took: list[int], brought: list[list[int]], order: tuple[int, ...], drawn: list[int], size: int) -> list[int]:
    """When the latest rank can begin each iteration of `size` samples, if the reads are done in this order."""
    now, at = 0, dict[int, int]()
    for read in order:
        now += took[read]
        at |= dict.fromkeys(brought[read], now)
    ready = [max(at[place] for place in drawn[first : first + size]) for first in range(0, len(drawn), size)]
    return list(accumulate(ready, max))  # no iteration begins before the one before it


@given(
    sizes=st.lists(st.integers(1, 600), min_size=8, max_size=20),
    protocol=st.sampled_from(["stripes", "uniform"]),
    batch=st.integers(1, 2),
    seed=st.integers(0, 99),
    larger=st.integers(1, 20),
)
@examples(100)
def test_no_order_of_the_reads_serves_the_latest_rank_earlier(
    sizes: list[int], protocol: str, batch: int, seed: int, larger: int
) -> None:
    """In no iteration, also if the samples of one rank are many times as large: by trying all orders of the reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "BUNDLE", 4)
        order: dict[str, Any] = {"protocol": protocol, "seed": seed} | ({"stripe": 4} if protocol == "stripes" else {})
        first = World(sizes, 8, 4000, 1)
        drawn = first.plan(first.runs[first.begun(1, **order)].order, 0).sample_of.tolist()
        for place in drawn[::RANKS]:
            sizes[place] *= larger
        world = World(sizes, 8, 4000, 1)
        run = world.register(1, **order)
        for rank in range(RANKS):
            world.register(1 + rank, **order)
            world.begin(1 + rank, run, 0, rank=rank, replicas=RANKS)
        took, brought = list[int](), list[list[int]]()
        while world.step() or world.jobs or world.reads:
            if world.jobs:
                world.finish_job()
            elif world.reads:
                took.append(int(world.reads[0].pieces["size"].astype(np.int64).sum()))
                brought.append(world.reads[0].places.tolist())
                world.finish_read()
    assert sorted(place for places in brought for place in places) == list(range(len(sizes)))
    assert len(took) <= 5, "too many orders to try"
    every = [latest(took, brought, each, drawn, RANKS * batch) for each in permutations(range(len(took)))]
    assert every[0] == np.min(every, axis=0).tolist()  # the first permutation is the order in which reads started


def both(pages: int) -> PreparingWorld:
    """A node with memory for some of 120 samples, and a client that wants one thing."""
    world = PreparingWorld([60] * 120, 8, pages)
    run = world.register(1, group_chunks=3, stripe=4, seed=1)
    world.want(1, run, WANTS[:1])
    world.begin(1, run, 0)
    return world


def test_decode_workers_rest_while_no_read_ends() -> None:
    """No worker gets a batch, and the loop has nothing to decide until a read ends."""
    world = both(400)
    while world.step() or world.jobs or world.starting:
        if world.jobs:
            world.finish_job()
        elif world.starting:
            world.is_ready()
    assert world.reads
    assert world.running == {0, 1}
    assert not world.tasks
    assert not world.turn.hurries
    assert not world.step(1.0), "it decides something though nothing has happened"
    world.finish_read()
    world.step()
    assert world.tasks


@pytest.mark.parametrize("pages", [30, 60])
def test_reads_end_at_the_limit_of_memory_while_no_batch_is_decoded(pages: int) -> None:
    """Read-ahead is bounded by memory: then no read is under way, and none starts until samples are fetched."""
    world = both(pages)
    counts = [0]
    while world.step() or world.jobs or world.reads or world.starting:
        if world.jobs:
            world.finish_job()
        elif world.reads:
            world.finish_read()
        elif world.starting:
            world.is_ready()
        counts.append(world.core.counters.reads.read_samples)
    assert all(before <= after for before, after in pairwise(counts))
    assert 0 < counts[-1] < pages
    assert world.tasks
    assert not world.turn.hurries
    assert not world.step(1.0), "it reads though memory is full"
