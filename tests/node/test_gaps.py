"""What lies between the samples of a read is read where that is cheaper than one more operation."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from brand.node.decide.reads.operations import cut_at_gaps
from tests.node.world import World
from tests.rounds import examples


def one_by_one(sizes: list[int], held: list[bool], most: int) -> list[tuple[int, int]]:
    """The operations, found sample by sample."""
    found: list[tuple[int, int]] = []
    for number, wanted in enumerate(held):
        if wanted:
            if found and sum(sizes[found[-1][1] : number]) <= most:
                found[-1] = found[-1][0], number + 1
            else:
                found.append((number, number + 1))
    return found


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=30), st.integers(0, 200))
@examples(200)
def test_operations_end_at_large_gaps(samples: list[tuple[int, bool]], most: int) -> None:
    """As if it were looked at sample by sample."""
    sizes, held = [size for size, _ in samples], [wanted for _, wanted in samples]
    held[0] = held[-1] = True
    starts, ends = cut_at_gaps(np.array(sizes, np.int64), np.array(held), most)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == one_by_one(sizes, held, most)


def test_a_part_reads_its_own_bytes() -> None:
    """Where an operation costs next to nothing. Where it costs much, the gaps are read, too."""
    read = {}
    for gap in (0, 1 << 40):
        world = World([100] * 240, 24, 300, gap_bytes=gap)
        run = world.register(1, "run", stripe=12, group_chunks=4, part=3)
        world.begin(1, run, 0)
        for first in range(0, world.draws(run), 8):
            world.draw(1, run, 0, range(first, min(first + 8, world.draws(run))))
            world.settle()
        assert len(world.given[run, 0]) == world.draws(run) == 160
        assert world.core.counters.draws.direct == 0
        read[gap] = world.read_bytes[world.epochs()[run, 0].epoch.number, False]
    assert read == {0: 160 * 100, 1 << 40: 20 * 11 * 100}
