"""What the cache folder holds, what is read from it, and what is written to it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.node.decide.cache.caching import CacheStart, Caching, FolderStart
from brand.node.decide.state.choosing import ChooseCached, Placement
from brand.node.decide.state.epoch_table import EpochTable
from brand.node.decide.stimuli import ClientReleases
from brand.node.memory.allocator import Allocator
from brand.node.memory.pages import NoMemory, PagePool
from brand.node.memory.residents import Residents
from brand.node.serve.recording import Recorder, replay
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.orders.base.placement import cached_unit
from tests import places
from tests.node.world import World
from tests.rounds import Chance, rounds

SIZES = [60 + place * 37 % 90 for place in range(240)]
CHUNK = 8
ORDER: dict[str, Any] = {"group_chunks": 3, "stripe": 4, "seed": 4}


def world(cache: int | None, *, stored: set[int] | None = None, pages: int = 120) -> World:
    """A node alone, whose memory holds a part of the samples."""
    return World(SIZES, CHUNK, pages, cache=cache, stored=set() if stored is None else stored)


def whole_epochs(found: World, epochs: Iterable[int], order: dict[str, Any]) -> Iterator[int]:
    """Draw whole epochs, and yield the number of each once it is drawn."""
    run = found.register(1, **order)
    for epoch in epochs:
        found.begin(1, run, epoch)
        found.quiet()
        number = found.epochs()[run, epoch].epoch.number
        for first in range(0, len(SIZES), 5):
            assert found.draw(1, run, epoch, range(first, first + 5))
            found.settle()
        yield number


def read_from(found: World, *epochs: int, order: dict[str, Any] = ORDER) -> list[tuple[int, int, int]]:
    """Draw whole epochs; the bytes that each reads from the storage, from the folder and from a slower one."""
    numbers, size = list(whole_epochs(found, epochs, order)), found.read_bytes
    return [(size.get((n, 0), 0), size.get((n, 1), 0), size.get((n, 2), 0)) for n in numbers]


def draw_epochs(found: World, *epochs: int, **order: Any) -> list[tuple[int, int]]:
    """Draw whole epochs; the bytes that each reads from the storage and from the folder."""
    return [read[:2] for read in read_from(found, *epochs, order=ORDER | order)]


def facts(found: World) -> dict[str, Any]:
    """What the server tells of its cache."""
    told = found.core.caching.facts()
    assert told is not None
    return told


def test_an_epoch_is_read_from_the_storage_and_the_next_ones_from_the_folder() -> None:
    """Each byte comes from the storage once, and is written once. No sample is kept, so that all is read."""
    found = world(sum(SIZES))
    (first, later, last) = draw_epochs(found, 0, 1, 2)
    kept = int(np.array(SIZES)[found.core.residents.kept()].sum())
    assert first == (sum(SIZES), 0)
    assert later == last == (0, sum(SIZES) - kept)
    assert facts(found)["written_bytes"] == facts(found)["used"] == sum(SIZES)
    assert (facts(found)["state"], facts(found)["cached"]) == ("full", len(SIZES))
    assert found.core.counters.reads.read_bytes == sum(SIZES)
    assert found.core.counters.draws.direct == 0


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_a_smaller_folder_saves_what_it_holds(share: float) -> None:
    """What is neither kept nor cached comes from the storage in every epoch; nothing is read twice in one."""
    found = world(int(sum(SIZES) * share))
    (first, *later) = draw_epochs(found, 0, 1, 2)
    sizes, kept = np.array(SIZES), found.core.residents.kept()
    cached = np.isin(np.arange(len(SIZES)), list(found.stored))
    assert first == (sum(SIZES), 0)
    for storage, cache in later:
        assert storage == int(sizes[~kept & ~cached].sum())
        assert cache == int(sizes[~kept & cached].sum()) == facts(found)["used"] <= share * sum(SIZES)
    assert facts(found)["written_bytes"] == facts(found)["used"]
    assert facts(found)["used"] > share * sum(SIZES) - CHUNK * max(SIZES)
    assert not (kept & cached).any()


def test_a_new_server_reads_what_the_last_one_has_written() -> None:
    """Also what memory has kept, where the folder holds everything: nothing comes from the storage any more."""
    before = world(sum(SIZES))
    draw_epochs(before, 0)
    after = world(sum(SIZES), stored=before.stored)
    assert draw_epochs(after, 0, 1)[0] == (0, sum(SIZES))
    assert facts(after)["written_bytes"] == 0
    assert facts(after)["state"] == "full"


def test_a_smaller_folder_keeps_what_it_has_when_another_order_comes() -> None:
    """Nothing goes, and what there is room for is added."""
    before = world(sum(SIZES) // 2)
    draw_epochs(before, 0)
    held = set(before.stored)
    after = world(sum(SIZES) * 3 // 4, stored=set(held))
    draw_epochs(after, 0, 1, seed=99, stripe=2)
    assert held < after.stored
    assert sum(SIZES) // 2 < facts(after)["used"] <= sum(SIZES) * 3 // 4


@pytest.mark.parametrize("stopped", ["full", "failed: why"])
def test_nothing_is_written_once_the_disk_refuses(stopped: str) -> None:
    """What is held is read on, and the draws go on."""
    found = world(sum(SIZES))
    run = found.register(1, **ORDER)
    found.begin(1, run, 0)
    while not found.writes:
        found.step()
        found.finish_job() if found.jobs else found.finish_read()
    found.finish_write()
    while not found.writes:
        found.step()
        found.finish_read()
    found.finish_write(stopped=stopped)
    held = set(found.stored)
    assert held
    found.settle()
    reads = draw_epochs(found, 1, 2)
    assert found.stored == held
    assert facts(found)["state"] == stopped
    assert reads[1][1] == sum(SIZES[place] for place in held if not found.core.residents.kept()[place])
    assert found.core.counters.draws.direct == 0


def test_a_sample_with_a_wrong_checksum_is_not_cached() -> None:
    """Its read goes to the storage in the next epoch, too."""
    found = world(sum(SIZES))
    run = found.register(1, **ORDER)
    found.begin(1, run, 0)
    while not found.writes:
        found.step()
        found.finish_job() if found.jobs else found.finish_read()
    bad = int(found.writes[0].places[0])
    found.finish_write(wrong=[bad])
    assert bad not in found.stored
    assert not found.core.caching._held[bad]
    found.settle()


def reading(**order: Any) -> tuple[World, RunNumber]:
    """A server whose folder holds all, and a run that has begun: the first reads are under way."""
    found = world(sum(SIZES), stored=set(range(len(SIZES))))
    run = found.register(1, **(order or ORDER))
    found.begin(1, run, 0)
    while not found.reads:
        found.step()
        if found.jobs:
            found.finish_job()
    return found, run


def test_a_read_that_fails_in_the_folder_goes_to_the_storage() -> None:
    """At once and without an exact read. The chunk is forgotten, and not cached again by this server."""
    found, _ = reading()
    read = found.reads[0]
    (piece,) = read.pieces
    assert piece["folder"]
    chunk = int(piece["chunk"])
    found.finish_read(failed={0})
    found.step()
    again = found.reads[-1]
    (same,) = again.pieces
    assert not same["folder"]
    for field in ("chunk", "offset", "size", "span", "samples"):
        assert same[field] == piece[field]
    assert again.number > read.number
    assert facts(found)["bad"] == CHUNK
    assert found.core.counters.reads.failed_reads == 0
    reads = draw_epochs(found, 0, 1)
    assert not {place // CHUNK for place in found.stored} & {chunk}
    assert len(found.stored) == len(SIZES) - CHUNK
    assert reads[1][0] <= sum(SIZES[chunk * CHUNK : (chunk + 1) * CHUNK])
    assert found.core.counters.draws.direct == 0


def test_a_sample_that_a_client_finds_wrong_is_read_from_the_storage_and_written_again() -> None:
    """What the client says of other samples than those of its lease does not count."""
    found = world(sum(SIZES), stored=set(range(len(SIZES))))
    run = found.register(1, **ORDER)
    found.begin(1, run, 0)
    assert found.draw(1, run, 0, range(8))
    while not found.held:
        found.step()
        found._finish_one()
    ((lease, held),) = found.held.items()
    bad = int(held.lease.places[3])
    other = next(place for place in range(len(SIZES)) if place not in held.lease.places)
    del found.held[lease]
    wrong = np.array([bad, other, -1, 1 << 60])
    found.tell(ClientReleases(ClientNumber(1), lease, checked=False, wrong=wrong))
    found.step()
    assert set(range(len(SIZES))) - found.stored == {bad}
    assert facts(found)["bad"] == 1
    found.settle()
    reads = draw_epochs(found, 1, 2, 3)
    kept = bool(found.core.residents.kept()[bad])
    assert bad in found.stored or kept
    assert reads[-1][0] == 0


def test_pieces_of_a_bundle_that_fail_in_the_folder_go_to_the_storage_alone() -> None:
    """The others have arrived, and no sample is read exactly."""
    found, run = reading(protocol="uniform", group_chunks=2)
    read = found.reads[0]
    assert len(read.pieces) > 3
    assert read.pieces["folder"].all()
    failed, arrived = read.places[[0, 2]].tolist(), np.delete(read.places, [0, 2])
    found.finish_read(failed={0, 2})
    found.step()
    again = found.reads[-1]
    assert again.places.tolist() == failed
    assert not again.pieces["folder"].any()
    assert found.core.residents.present(arrived).all()
    assert not found.core.residents.present(np.array(failed)).any()
    while found.reads:  # parts that the server has forgotten cannot be read by what was under way
        read = found.reads[0]
        cached = np.flatnonzero(read.pieces["folder"]).tolist()
        found.finish_read(failed=[each for each in cached if read.places_of(each)[0] not in found.stored])
        found.step()
    for first in range(0, len(SIZES), 8):
        assert found.draw(1, run, 0, range(first, min(first + 8, len(SIZES))))
        found.settle()
    assert found.core.counters.draws.direct == found.core.counters.reads.failed_reads == 0


def test_a_read_that_fails_in_both_leaves_the_rest_to_the_clients() -> None:
    """As without a folder."""
    found, run = reading()
    found.finish_read(failed={0})
    found.step()
    found.finish_read(len(found.reads) - 1, failed={0})
    assert found.core.counters.reads.failed_reads == 1
    for first in range(0, len(SIZES), 8):
        assert found.draw(1, run, 0, range(first, first + 8))
        found.settle()
    assert found.core.counters.draws.direct == 4


def test_the_queue_has_a_limit_and_what_it_leaves_out_comes_again() -> None:
    """The thread that writes stands still for a while. The next epochs bring the rest, or memory has kept it."""
    found = world(sum(SIZES))
    run = found.register(1, **ORDER)
    found.begin(1, run, 0)
    while found.reads or found.jobs or found.step():
        found.finish_job() if found.jobs else found.finish_read() if found.reads else None
        assert found.core.caching.writing._pages <= found.core.residents.pool.allocator.count // 2 + CHUNK
    found.settle()
    first = len(found.stored)
    assert 0 < first < len(SIZES)
    draw_epochs(found, 0, 1, 2, 3, 4, 5, 6)
    assert len(found.stored) == len(SIZES) > first
    assert found.core.residents.kept().any()


def test_what_waits_to_be_written_makes_room_first() -> None:
    """A draw that is stuck gets the pages of the queue, before anything else goes."""
    found = world(sum(SIZES))
    run = found.register(1, **ORDER)
    found.begin(1, run, 0)
    while not found.core.caching.writing._queue:
        found.step()
        found.finish_job() if found.jobs and not isinstance(found.jobs[0], ChooseCached) else found.finish_read()
    assert not found.writes, "nothing is written before the planner has chosen"
    assert found.core.caching.writing.make_room()
    assert not found.core.caching.writing.make_room()
    found.check()
    found.settle()


def test_kept_samples_that_have_made_room_are_written_later() -> None:
    """No read brings them again, and the next server finds them in the folder."""
    found = world(sum(SIZES), pages=300)
    run = found.register(1, **ORDER)
    found.begin(1, run, 0)
    while found.reads or found.jobs or found.step():
        found.finish_job() if found.jobs else found.finish_read() if found.reads else None
    writing = found.core.caching.writing
    waiting = np.concatenate(writing._queue)
    kept = waiting[found.core.residents.to_keep(waiting)]
    assert len(kept)
    assert writing.make_room()
    assert not set(kept.tolist()) & set(found.stored)
    found.settle()
    assert set(kept.tolist()) <= set(found.stored)


@places.turns("protocol")
@pytest.mark.slow
@rounds(2)
@pytest.mark.parametrize("placement", ["next", "frequency", "auto"])
@pytest.mark.parametrize("protocol", ["uniform", "stripes"])
def test_random_lives_of_a_node_that_draws_a_part(
    chance: Chance, tmp_path: Path, placement: Placement, protocol: str
) -> None:
    """Samples come into the folder and leave it, in any order of threads. Every answer is right; all is replayed."""
    rng = chance.rng
    found = World(
        SIZES, CHUNK, 120, cache=6000, stored=set(range(0, 240, 7)), placement=placement, epochs_of_runs=5,
    )  # fmt: skip
    found.recorder = Recorder(tmp_path / "log", found.turn)
    order = ORDER if protocol == "stripes" else {"protocol": "uniform", "group_chunks": 2, "seed": 3}
    run, ranks = found.register(1, **order), rng.sample(range(4), rng.randint(1, 2))
    for client in range(2, len(ranks) + 1):
        assert found.register(client, **order) == run
    for epoch in range(4):
        for client, rank in enumerate(ranks, 1):
            found.begin(client, run, epoch, rank=rank, replicas=4)
        for first in range(0, len(SIZES), 24):
            for client, rank in enumerate(ranks, 1):
                assert found.draw(client, run, epoch, range(first + rank, min(first + 24, len(SIZES)), 4))
            while found.asked or found.held:
                _something(found, rng)
    found.settle()
    found.recorder.close()
    ways = {str(choice) for choice in found.core.keeping._placing._said}
    assert not ways or placement == "auto"
    assert replay(tmp_path / "log", found.index, found.pages_of) > 0
    if placement != "auto" and facts(found)["state"] != "full":  # no write was refused for good
        assert facts(found)["state"] == "changing"
        assert set(range(0, 240, 7)) - found.stored, "nothing has left the folder"


@pytest.mark.slow
@rounds(2)
def test_random_lives_with_a_cache(chance: Chance) -> None:
    """Reads fail, writes refuse or leave samples out, servers follow each other. Every answer is right."""
    rng, stored = chance.rng, set[int]()
    for life in range(3):
        found = world(rng.choice([0, 3000, 12_000, sum(SIZES)]), stored=stored, pages=rng.choice([70, 120, 300]))
        run = found.register(1, **(ORDER | {"seed": rng.randrange(2)}))
        for epoch in range(3):
            found.begin(1, run, epoch)
            for first in range(0, len(SIZES), 8):
                assert found.draw(1, run, epoch, range(first, first + 8))
                while 1 in found.asked or found.held:
                    _something(found, rng)
        found.settle()
        stored = found.stored
        assert life == 2 or stored is found.stored


def _something(found: World, rng: random.Random) -> None:
    """One of the threads goes on, or the client."""
    found.step(0.01)
    ways = [kind for kind in ("jobs", "reads", "writes", "held") if getattr(found, kind)]
    match rng.choice(ways or ["wait"]):
        case "jobs":
            found.finish_job()
        case "reads":
            number = rng.randrange(len(found.reads))
            read = found.reads[number]
            gone = [  # parts that the server has forgotten cannot be read by what was under way
                piece
                for piece in np.flatnonzero(read.pieces["folder"]).tolist()
                if not set(read.places_of(piece).tolist()) <= found.stored
            ]
            some = [piece for piece in range(len(read.pieces)) if rng.random() < 0.05]
            found.finish_read(number, failed={*gone, *some})
        case "writes":
            write = rng.choice(found.writes)
            wrong = [place for place in write.places.tolist() if rng.random() < 0.05]
            stopped = "full" if rng.random() < 0.01 else ""
            found.finish_write(found.writes.index(write), wrong=wrong, stopped=stopped)
        case "held":
            found.release(next(iter(found.held)))
        case _:
            found.step(1.0)


def test_a_life_with_a_cache_is_replayed(tmp_path: Path) -> None:
    """Its log says what the folder held at the start, and how each write ended."""
    rng, found = random.Random(5), world(12_000, stored=set(range(40)))
    found.recorder = Recorder(tmp_path / "log", found.turn)
    run = found.register(1, **ORDER)
    for epoch in range(2):
        found.begin(1, run, epoch)
        for first in range(0, len(SIZES), 8):
            assert found.draw(1, run, epoch, range(first, first + 8))
            while 1 in found.asked or found.held:
                _something(found, rng)
    found.recorder.close()
    text = (tmp_path / "log").read_text()
    assert "WriteEnded" in text
    assert replay(tmp_path / "log", found.index, found.pages_of) == len(text.splitlines()) - 1


@pytest.mark.parametrize(
    ("kept", "chunk", "mean", "expected"),
    [(4, 100, 105e3, 4), (None, 100, 105e3, 100), (1, 256, 3000, 22), (5, 256, 3000, 25), (1, 8, 100, 8), (1, 8, 0, 8)],
)
def test_what_is_cached_together_is_no_smaller_than_some_blocks(
    kept: int | None, chunk: int, mean: float, expected: int
) -> None:
    """Whole units of what memory keeps, of 64 KiB or a chunk."""
    assert cached_unit(kept, chunk, mean) == expected


def test_without_a_folder_there_is_nothing() -> None:
    """No facts, no reads, no writes."""
    found = world(None)
    reads = draw_epochs(found, 0, 1)
    assert [cache for _, cache in reads] == [0, 0]
    assert found.core.caching.facts() is None
    assert not found.writes
    assert repr(found.core.caching) == (
        "Caching(stopped='off', held=0 items, writing=Writing(queue=0 items, under_way=set(), pages=0))"
    )


def test_a_folder_that_is_off_holds_nothing_and_says_so() -> None:
    """Its state is told."""
    pool = PagePool(Allocator(100 * 128, 128), NoMemory(128), np.ones(8, np.uint32))
    off = FolderStart("/nvme", np.zeros(8, np.bool_), 0, "off")
    start = CacheStart((off,), np.full(8, 90, np.uint32))
    caching = Caching(Residents(pool), 4, 10, [], start)
    each = {
        **{"folder": "/nvme", "limit": 0, "used": 0, "cached": 0, "state": "off"},
        **{"reads": 0, "read_bytes": 0, "written_bytes": 0, "bad": 0, "bypassed": 0, "misjudged": 0},
    }
    assert caching.facts() == each | {"folders": [each]}
    assert caching.shelf(1, EpochTable(), later=False) is None
