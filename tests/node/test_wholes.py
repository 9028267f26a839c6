"""Misses that read whole units: which pieces they become, that nothing is read twice, and what if reads fail."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.node.decide.reads.operations import around_misses, pieces_of, units_of
from brand.node.decide.state import windowed
from brand.node.serve.recording import Recorder, replay
from brand.node.setup.caching import Cache, open_caches
from brand.node.setup.measure import stored_sizes
from brand.orders.order import MAX_EPOCH
from brand.orders.policies.uniform import UniformPolicy
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.device import device_name, mount_of
from brand.storage.profile.profile import Profile, save_profile
from brand.testing.node import running_server
from brand.testing.storage import CountedStorage
from tests.made_orders import order_of
from tests.node.test_caching import CHUNK, SIZES, _something, facts, whole_epochs
from tests.node.world import World
from tests.rounds import Chance, examples, rounds
from tests.several_nodes.support import Rank, draw_in_step, node_of
from tests.support import wait_until

ORDER: dict[str, Any] = {"protocol": "uniform", "group_chunks": 2, "seed": 3}


@examples(200)
@given(st.data())
def test_a_miss_brings_what_is_free_around_it(draws: st.DataObject) -> None:
    """Against a list by hand: neighbours in its unit, up to the first that is not free; each miss comes once."""
    samples, chunk = draws.draw(st.integers(1, 60)), draws.draw(st.integers(1, 16))
    unit = draws.draw(st.integers(1, chunk))
    misses = draws.draw(st.lists(st.integers(0, samples - 1), unique=True, min_size=1))
    wanted = draws.draw(st.sets(st.sampled_from(misses)))
    free = draws.draw(st.sets(st.integers(0, samples - 1))) | set(misses)
    count = draws.draw(st.integers(1, len(misses)))

    def unit_of(place: int) -> range:
        first = place // chunk * chunk + place % chunk // unit * unit
        return range(first, min(first + unit, place // chunk * chunk + chunk, samples))

    reads: dict[int, list[int]] = {}
    seen = set[range]()
    for miss in misses:
        here = unit_of(miss)
        if here not in seen and any(place in wanted for place in here):
            first = last = miss
            while first - 1 in here and first - 1 in free:
                first -= 1
            while last + 1 in here and last + 1 in free:
                last += 1
            if last > first:
                reads[misses.index(miss)] = list(range(first, last + 1))
        seen.add(here)
    places, is_wanted = np.array(misses), np.isin(misses, list(wanted))
    units = units_of(places, is_wanted, unit, chunk, samples)
    found = around_misses(units, places, np.isin(units.places, list(free)))
    assert found.first.tolist() == sorted(reads)
    assert found.pages(np.full(samples, 3)).tolist() == [3 * len(reads[first]) for first in sorted(reads)]
    cut = found.upto(count)
    expected = [read for first, read in sorted(reads.items()) if first < count]
    alone = [[miss] for miss in misses[:count] if not any(miss in read for read in expected)]
    brought, starts = pieces_of(places[:count], cut)
    ends = [*starts.tolist()[1:], len(brought)]
    pieces = [brought[a:b].tolist() for a, b in zip(starts.tolist(), ends, strict=True)]
    assert pieces == sorted(expected + alone)
    needed = cut.pages_at(places[:count], np.full(samples, 3))
    assert needed.sum() == 3 * len(brought)


def world(share: float = 1.0, *, whole_unit: int = 4, pages: int = 120) -> World:
    """A node alone whose storage takes as long for four samples as for one."""
    return World(SIZES, CHUNK, pages, cache=int(share * sum(SIZES)), whole_unit=whole_unit)


def play(found: World, epochs: int) -> list[tuple[int, int, int]]:
    """Bytes from the storage and from the folder, and operations of the storage, for each epoch."""
    numbers, operations = [], [0]
    for number in whole_epochs(found, range(epochs), ORDER):
        numbers.append(number)
        operations.append(found.core.counters.reads.reads)
    each = np.diff(operations).tolist()
    of = found.read_bytes
    return [(of.get((n, False), 0), of.get((n, True), 0), ops) for n, ops in zip(numbers, each, strict=True)]


def test_the_first_epoch_reads_units_and_nothing_twice() -> None:
    """All bytes come from the storage once, with far fewer operations than samples; later ones from the folder."""
    found = world()
    first, *later = play(found, 3)
    alone = play(world(whole_unit=1), 1)[0]
    kept = int(np.array(SIZES)[found.core.residents.kept()].sum())
    assert first[0] == alone[0] == sum(SIZES)
    assert alone[2] == len(SIZES)
    assert first[2] < 0.65 * len(SIZES)
    assert first[1] > sum(SIZES) // 5, "what was read early comes from the folder"
    assert later[0][0] < sum(SIZES) // 20, "the queue is short: it leaves some samples to the next epoch"
    assert later[1] == (0, sum(SIZES) - kept, 0)
    assert facts(found)["written_bytes"] == sum(SIZES)
    assert found.core.counters.draws.direct == 0
    assert not found.core.caching.writing._reserved


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_only_units_that_have_a_place_are_read_as_a_whole(share: float) -> None:
    """All others sample by sample, in each epoch."""
    found = world(share)
    first, second, third = play(found, 3)
    assert first[0] == sum(SIZES)
    assert second[0] == pytest.approx(third[0], rel=0.05)
    cached = len(found.stored)
    kept = int(found.core.residents.kept().sum())
    assert third[2] == pytest.approx(len(SIZES) - kept - cached, abs=3)
    assert (first[2] < len(SIZES)) == (share > 0)


@pytest.mark.slow
@rounds(1)
@pytest.mark.parametrize("positions", [1 << 14, 4], ids=["one window", "windows"])
@pytest.mark.parametrize("pages", [80, 120, 300])
def test_random_lives_with_whole_units(
    chance: Chance, tmp_path: Path, pages: int, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads and writes end in any order, and some fail. Every answer is right, and all is replayed.

    In small windows, a miss also reads samples at positions that are not known yet.
    """
    for name in ("FIRST", "MOST"):
        monkeypatch.setattr(windowed, name, positions)
    rng = chance.rng
    found = world(rng.choice([0.3, 1.0]), whole_unit=rng.choice([2, 3, 8]), pages=pages)
    found.recorder = Recorder(tmp_path / "log", found.turn)
    run = found.register(1, **ORDER)
    assert found.register(2, "another", **ORDER | {"seed": 5}) != run
    for epoch in range(3):
        found.begin(1, run, epoch)
        for first in range(0, len(SIZES), 6):
            assert found.draw(1, run, epoch, range(first, first + 6))
            while 1 in found.asked or found.held:
                _something(found, rng)
    found.settle()
    assert not found.core.caching.writing._reserved
    found.recorder.close()
    assert replay(tmp_path / "log", found.index, found.pages_of) > 0


def slow_at_small_reads(path: Path, monkeypatch: Any, profiles: Path, alone: float) -> None:
    """A profile of the storage: `alone` bytes/s for small reads, 100 MB/s for those of 4 KiB and more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(profiles))
    save_profile(Profile(device_name(mount_of(path)), (256, 4096), (1, 8), ((alone, 1e8), (alone, 1e8)), 1e8))


def test_the_profile_says_whether_units_are_read(texts: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Not without a profile, nor where single samples come about as fast."""
    data = StoredDataSet(texts)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    found = []
    for alone in (None, 9e7, 1e6):
        if alone is not None:
            slow_at_small_reads(texts, monkeypatch, tmp_path, alone)
        (folder,), start = open_caches([Cache(tmp_path)], data, stored_sizes(data))
        assert folder is not None
        assert start is not None
        folder.close()
        found.append(start.whole_unit)
    assert found == [1, 1, 8]


@pytest.mark.usefixtures("folders_always")
@pytest.mark.slow
def test_a_real_server_reads_whole_units(texts: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Far fewer operations in the first epoch, no byte twice, and none in the next."""
    slow_at_small_reads(texts, monkeypatch, tmp_path / "profiles", 1e6)
    order, storage = order_of(texts, UniformPolicy(2)), CountedStorage()
    with running_server(texts, memory=0.5, cache=Cache(tmp_path, "1GB"), storage=storage) as server:
        writing = server.node._state.core.caching.writing
        with closing(node_of(texts, server.address)) as client:
            rank = Rank(client, order, 0, 1)

            def written(_: int) -> None:
                wait_until(lambda: not writing._pages, "all is written")

            draw_in_step([rank], [MAX_EPOCH - 3], written)
            first = server.facts()
            draw_in_step([rank], [MAX_EPOCH - 2, MAX_EPOCH - 1], written)
            full = server.facts()
            draw_in_step([rank], [MAX_EPOCH])
            then = server.facts()
    size = int(stored_sizes(StoredDataSet(texts)).sum())
    assert first["read_bytes"] <= 1.25 * size  # some are read ahead for the next epoch
    assert first["reads"] < 0.85 * len(StoredDataSet(texts))
    assert (then["reads"], then["direct"]) == (full["reads"], 0)
    assert then["cache"]["cached"] == len(StoredDataSet(texts))
