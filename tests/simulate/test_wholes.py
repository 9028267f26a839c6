"""The reads of a first epoch that reads whole units, against counting by hand, and against a server that is played."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.simulate.running import SimulatedRun, WholeReads, first_reads, work_of
from tests.node.test_alone import Player
from tests.rounds import examples


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans(), st.integers(1, 9)), min_size=1, max_size=40))
def test_the_first_miss_of_a_unit_brings_all_of_it(draws: list[tuple[int, bool, bool, int]]) -> None:
    """Draw by draw: what has come is in memory or in the folder; all else is read alone. No byte comes twice."""
    has_place = {unit for unit, placed, _, _ in draws if placed}
    whole = {unit: [each for each in draws if each[0] == unit and (each[1] or each[2])] for unit in has_place}
    seen, expected = set[int](), list[tuple[int, int, bool]]()
    for unit, placed, keeps, size in draws:
        if unit not in has_place or not (placed or keeps):
            expected.append((size, 1, False))
        elif unit not in seen:
            seen.add(unit)
            expected.append((sum(each[3] for each in whole[unit]), len(whole[unit]), False))
        elif not keeps:
            expected.append((size, 1, True))
    units, placed_, keeps_, sizes = (np.array([draw[k] for draw in draws]) for k in range(4))
    ones = np.ones(len(draws), np.int64)
    alone = WholeReads(
        sizes.astype(np.int64), ones, ones, ones.astype(np.int32), np.arange(len(draws)), np.zeros(len(draws), np.bool_)
    )
    found = first_reads(alone, units, placed_, keeps_)
    made = zip(found.sizes.tolist(), found.spans.tolist(), found.from_cache.tolist(), strict=True)
    assert list(made) == expected
    assert found.pages.tolist() == found.samples.tolist() == found.spans.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_server_reads_about_as_often(share: float) -> None:
    """A tenth more at most: its first reads begin before the choice is made. Later epochs agree within 1 %."""
    samples, memory = 6000, 1200
    player = Player(samples, int(share * samples), replicas=1, memory=memory, whole_unit=5)
    run = SimulatedRun(
        np.full(samples, player.size, np.uint32), player.order, f"{memory * (player.size + 4096)}B",
        cache_bytes=player.limit, whole_unit=5, batch=64,
    )  # fmt: skip
    works, counters = [work for (work,) in work_of(run, range(2))], player.turn.core.counters.reads
    player.play(0, [0], batch=64)
    first = counters.reads
    player.play(0, [1], batch=64)
    assert works[0].reads <= first <= 1.15 * works[0].reads + 300
    assert counters.reads - first <= 1.02 * works[1].reads + 60
    assert works[0].read_samples == samples
