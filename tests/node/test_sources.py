"""A read of what a cache folder holds: from that folder, or from the storage, by HDMLP's performance model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.node.decide.reads.sources import FEWEST, LEAST_S, MARGIN, RETRY_S, fastest
from brand.node.serve import server as serving
from brand.node.serve.recording import Recorder, replay
from brand.node.setup.caching import Cache, cache_reader
from brand.storage.cache.cachefolder import CacheFolder
from brand.storage.io.vectored import VectorReader
from brand.testing.node import running_server
from tests import places
from tests.made_orders import STRIPES, order_of
from tests.node.test_cache_serving import bytes_of
from tests.node.test_caching import CHUNK, ORDER, SIZES, _something, facts
from tests.node.world import World
from tests.rounds import Chance, examples, rounds
from tests.several_nodes.support import Rank, all_open, check_epoch, draw_in_step, node_of
from tests.support import wait_until
from tests.tools.cluster import running_cluster

pytestmark = places.EVERYWHERE

UNIFORM: dict[str, Any] = {"protocol": "uniform", "group_chunks": 2, "seed": 1}


class TimedWorld(World):
    """A node whose reads are measured: `took` has the seconds of each from the storage, and from each folder."""

    took: tuple[float, ...] = (0.001, 0.001)
    storage_fails = False

    def finish_read(self, number: int = 0, **more: Any) -> None:
        """A read ends."""
        folders = self.reads[number].pieces["folder"].tolist()
        if self.storage_fails:
            more["failed"] = [piece for piece, folder in enumerate(folders) if not folder]
        super().finish_read(number, seconds=tuple(self.took[folder] for folder in folders), **more)


def timed(*took: float, **more: Any) -> TimedWorld:
    """A node whose folder has room for all, and a memory for a part."""
    facts: dict[str, Any] = {"cache": sum(SIZES), "stored": set()} | more
    found = TimedWorld(SIZES, CHUNK, 120, depth=8, **facts)
    found.took = took
    return found


def hungry(found: World, epochs: Iterable[int], order: dict[str, Any] = ORDER) -> list[tuple[int, int]]:
    """Draw whole epochs, always faster than is read; the bytes that each reads from the storage and from the folder."""
    run, numbers = found.register(1, **order), list[int]()
    for epoch in epochs:
        found.begin(1, run, epoch)
        for first in range(0, len(SIZES), 5):
            assert found.draw(1, run, epoch, range(first, first + 5))
            while 1 in found.asked:
                if not found.step() and not found._finish_one():
                    found.now_s += 0.5
            while found.held:
                found.release(next(iter(found.held)))
        numbers.append(found.epochs()[run, epoch].epoch.number)
    return [(found.read_bytes.get((number, 0), 0), found.read_bytes.get((number, 1), 0)) for number in numbers]


def obvious(size: int, sources: list[list[int]], rates: list[float], folder: int) -> int:
    """The source of one read, by the paper's formula, from all reads that are under way at each source."""

    def fetch_s(source: int) -> Fraction | float:
        rate, readers = rates[source], Fraction(sum(sources[source]) + size, size)
        return float("inf") if rate == 0 else 0 if rate == float("inf") else size / (Fraction(rate) / readers)

    if not folder or fetch_s(folder) <= Fraction(LEAST_S) or fetch_s(folder) <= Fraction(MARGIN) * fetch_s(0):
        return folder
    return 0


@examples(200)
@given(data=st.data())
def test_the_source_is_that_of_the_obvious_model(data: st.DataObject) -> None:
    """One read after the other, each with those before it under way."""
    folders = data.draw(st.integers(1, 3))
    speed = st.integers(1, 60).map(float)
    rates = [data.draw(st.just(0.0) | speed), *(data.draw(st.just(np.inf) | speed) for _ in range(folders))]
    sources = [data.draw(st.lists(st.integers(1, 50), max_size=4)) for _ in rates]
    reads = data.draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, folders)), min_size=1, max_size=12))
    sizes, held = (np.array(column) for column in zip(*reads, strict=True))
    loads = np.array([float(sum(source)) for source in sources])
    found = fastest(sizes, held.astype(np.int8), loads, np.array(rates)).tolist()
    for (size, folder), source in zip(reads, found, strict=True):
        assert source == obvious(size, sources, rates, folder)
        sources[source].append(size)


@pytest.mark.parametrize("order", [ORDER, UNIFORM], ids=["stripes", "uniform"])
def test_reads_leave_a_folder_that_is_slow(order: dict[str, Any]) -> None:
    """Ranks get the same samples. No guess is wrong: each read of the storage is shorter than one of the folder."""
    slow, fast = timed(0.001, 2.0), timed(0.001, 0.001)
    (_, first), (_, second) = hungry(slow, range(3), order)[1:]
    read = hungry(fast, range(3), order)[1:]
    assert [storage for storage, _ in read] == [0, 0]
    assert second < first < read[0][1]
    assert facts(slow)["bypassed"] > 0 == facts(slow)["misjudged"]
    assert facts(fast)["bypassed"] == facts(fast)["misjudged"] == 0
    assert list(slow.given.values()) == list(fast.given.values())


def test_a_folder_that_has_recovered_is_used_again() -> None:
    """It is tried after some time, and then again until its slow reads count little."""
    found = timed(0.001, 0.2)
    hungry(found, range(2))
    assert facts(found)["bypassed"] > 0
    found.took = (0.001, 0.001)
    for epoch in range(2, 200):
        found.now_s += RETRY_S + 1
        before = facts(found)["bypassed"]
        hungry(found, [epoch])
        if facts(found)["bypassed"] == before:
            return
    raise AssertionError("the folder is never used again")


def test_a_storage_that_was_not_measured_is_never_chosen() -> None:
    """The folder holds all from the start, so nothing tells how fast the storage is."""
    found = timed(0.001, 2.0, stored=set(range(len(SIZES))))
    assert [storage for storage, _ in hungry(found, range(2))] == [0, 0]
    assert facts(found)["reads"] > FEWEST


def test_a_storage_that_fails_is_replaced_by_the_folder() -> None:
    """One more read each, which counts; then the storage is not chosen any more, and no sample is lost."""
    found = timed(0.001, 2.0)
    hungry(found, [0])
    lost = found.core.counters.draws.direct
    found.storage_fails = True
    hungry(found, [1])
    told = facts(found)
    assert told["bypassed"] == told["misjudged"] == found.core.counters.reads.failed_reads > 0
    assert found.core.counters.draws.direct == lost
    hungry(found, [2])
    assert facts(found)["bypassed"] == told["bypassed"]


def test_a_node_without_a_folder_consults_nothing() -> None:
    """There is one source."""
    assert World(SIZES, CHUNK, 120).core.reads._sources is None


@pytest.mark.slow
@rounds(2)
@pytest.mark.parametrize("protocol", ["uniform", "stripes"])
def test_random_times_and_failures(chance: Chance, tmp_path: Path, protocol: str) -> None:
    """Reads of both sources take any time and fail. Every answer is right, and all is replayed."""
    rng = chance.rng
    found = timed(0.0, 0.0, 0.0, cache=6000, second=6000, stored_second=set())
    found.recorder = Recorder(tmp_path / "log", found.turn)
    run = found.register(1, **(UNIFORM if protocol == "uniform" else ORDER))
    for epoch in range(3):
        found.begin(1, run, epoch)
        for first in range(0, len(SIZES), 8):
            assert found.draw(1, run, epoch, range(first, first + 8))
            while 1 in found.asked or found.held:
                found.took = rng.choice([0.0, 0.001, 0.2]), rng.choice([0.01, 20.0]), rng.choice([0.01, 20.0])
                _something(found, rng)
    found.settle()
    found.recorder.close()
    assert facts(found)["bypassed"] >= facts(found)["misjudged"]
    assert found.core.reads._sources is not None
    assert not found.core.reads._sources._loads.any()
    assert replay(tmp_path / "log", found.index, found.pages_of) > 0


class SlowReader:
    """Reads a cache folder on a slow disk."""

    def __init__(self, inner: VectorReader) -> None:
        self._inner = inner

    def scatter(self, number: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
        """Read, after a while."""
        time.sleep(2 * LEAST_S)
        self._inner.scatter(number, offset, size, vector)

    def close(self) -> None:
        """Close the files."""
        self._inner.close()


@pytest.mark.slow
def test_a_server_leaves_a_slow_folder(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies_in: str
) -> None:
    """Each sample comes once, in the order of the plan. A store may ask for money, so it never takes the place."""
    monkeypatch.setattr(serving, "cache_reader", lambda folder, **more: SlowReader(cache_reader(folder, **more)))
    room, told = bytes_of(texts) // 12, dict[str, Any]()
    with (
        running_server(texts, memory=0.3, cache=Cache(tmp_path, f"{room}B")) as server,
        closing(node_of(texts, server.address)) as client,
    ):
        rank = Rank(client, order_of(texts, STRIPES), 0, 1)
        for epoch in range(20):
            draw_in_step([rank], [epoch])
            check_epoch([rank], epoch)
            told = server.facts()["cache"]
            if told["bypassed"] or (lies_in == "store" and told["reads"] > 50):
                break
    assert told["reads"] > 0
    assert (told["bypassed"] > 0) == (lies_in == "folder")


@pytest.mark.slow
@places.IN_A_FOLDER
def test_one_of_three_nodes_leaves_its_slow_folder(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others use theirs, and each sample comes once to the rank and at the position of the plan."""

    def reader(folder: CacheFolder, *, page_cache: bool) -> VectorReader:
        inner = cache_reader(folder, page_cache=page_cache)
        slow = os.path.realpath(folder.part_file(0)).startswith(f"{tmp_path}/1/")
        return SlowReader(inner) if slow else inner

    monkeypatch.setattr(serving, "cache_reader", reader)
    caches = [Cache(tmp_path / str(node), f"{bytes_of(texts) // 24}B") for node in range(3)]
    with ExitStack() as stack, running_cluster(texts, nodes=3, memory=0.3, caches=caches) as cluster:
        servers = [cluster.servers[node] for node in range(3)]
        wait_until(lambda: all_open(cluster), "all streams are open")
        clients = [stack.enter_context(closing(node_of(texts, server.address))) for server in servers]
        ranks = [Rank(client, order_of(texts, STRIPES), rank, 3) for rank, client in enumerate(clients)]
        for epoch in range(20):
            draw_in_step(ranks, [epoch])
            check_epoch(ranks, epoch)
            told = [server.facts()["cache"] for server in servers]
            if told[1]["bypassed"]:
                break
    assert told[1]["bypassed"] > 0
    assert all(cache["reads"] > 0 for cache in told)
