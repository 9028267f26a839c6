"""Several cache folders: the fastest one first, nothing twice, and all of them together as one of their size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand import Cache
from brand.errors import UsageError
from brand.node.decide.cache.caching import Evictions
from brand.node.decide.state.choosing import CacheContents, ChooseCached, Follow
from brand.node.decide.state.members import Members
from brand.node.setup.caching import as_caches, open_caches
from brand.node.setup.measure import stored_sizes
from brand.node.wire.numbers import NodeNumber
from brand.orders.nextuse import Frequency, NextUse, Ranks
from brand.orders.order import Order
from brand.orders.policies.uniform import UniformPolicy
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server
from tests.node.test_cache_serving import bytes_of, draw, written
from tests.node.test_caching import CHUNK, ORDER, SIZES, draw_epochs, facts, read_from, world
from tests.node.world import World

TOTAL = sum(SIZES)
BYTES = np.array(SIZES)


def two(first: float, second: float, near: set[int] | None = None, far: set[int] | None = None) -> World:
    """A node whose memory holds a part of the samples, and whose folders have room for these shares."""
    return World(
        SIZES,
        CHUNK,
        120,
        cache=int(TOTAL * first),
        second=int(TOTAL * second),
        stored=near or set(),
        stored_second=far or set(),
    )


def mask(places: set[int]) -> np.ndarray:
    """A mask of places."""
    return np.isin(np.arange(len(SIZES)), list(places))


UNIFORM: dict[str, Any] = {"protocol": "uniform", "group_chunks": 2, "seed": 1}


@pytest.mark.parametrize("order", [ORDER, UNIFORM], ids=["stripes", "uniform"])
def test_what_the_first_folder_has_no_room_for_goes_to_the_second(order: dict[str, Any]) -> None:
    """Nothing is in both, and each later epoch reads from the storage what neither has."""
    found = two(0.3, 0.3)
    *_, (storage, first, second) = read_from(found, 0, 1, 2, order=order)
    kept, here, there = found.core.residents.kept(), mask(found.stored), mask(found.stored_second)
    assert not (here & there).any()
    assert (storage, first, second) == tuple(int(BYTES[~kept & which].sum()) for which in (~here & ~there, here, there))
    for share, folder in zip((here, there), facts(found)["folders"], strict=True):
        assert folder["used"] == int(BYTES[share].sum())
        assert folder["limit"] - CHUNK * max(SIZES) < folder["used"] <= folder["limit"]
        assert (folder["state"], folder["cached"]) == ("full", int(share.sum()))
        assert folder["read_bytes"] > 0
    total = facts(found)
    for name in ("limit", "used", "cached", "reads", "read_bytes", "written_bytes"):
        assert total[name] == sum(folder[name] for folder in total["folders"])
    assert total["folder"] == "/cache, /cache1"


def test_the_first_folder_gets_what_memory_does_not_cache_where_all_fit() -> None:
    """A later epoch reads from the first folder alone; what memory caches is in the second one, for the next server."""
    found = two(0.6, 0.5)
    _, (storage, first, second) = read_from(found, 0, 1)
    kept = found.core.residents.kept()
    uncached = int(BYTES[~kept].sum())
    assert (storage, first + second) == (0, uncached)
    assert second <= max(0, uncached - int(0.6 * TOTAL)) + CHUNK * max(SIZES)
    assert found.stored | found.stored_second == set(range(len(SIZES)))
    again = two(0.6, 0.5, near=found.stored, far=found.stored_second)
    assert read_from(again, 0) == [(0, *(int(BYTES[mask(each)].sum()) for each in (found.stored, found.stored_second)))]


def test_a_sample_that_both_hold_is_forgotten_by_the_slower_one() -> None:
    """Its space is free again. So it is where a user names the folders of an earlier run in another order."""
    found = two(0.4, 0.4, near=set(range(64)), far=set(range(40, 104)))
    found.settle()
    assert (found.stored, found.stored_second) == (set(range(64)), set(range(64, 104)))
    draw_epochs(found, 0, 1)
    assert not found.stored & found.stored_second
    assert set(range(64)) <= found.stored
    assert set(range(64, 104)) <= found.stored_second


def test_a_stripe_that_lies_in_both_folders_comes_from_one_again() -> None:
    """So it is after a run with other stripes. Samples leave the slower folder, and are written to the faster one."""
    even, odd = set(range(0, len(SIZES), 2)), set(range(1, len(SIZES), 2))
    found = two(1.0, 1.0, near=set(even), far=set(odd))
    read = read_from(found, 0, 1, 2)
    assert read[0][1:] == (0, 0), "a read of a folder that does not hold all of it"
    assert read[2] == (0, int(BYTES[~found.core.residents.kept()].sum()), 0)
    assert (found.stored, found.stored_second) == (even | odd, set())


def test_what_is_to_be_elsewhere_leaves_its_folder_once_it_is_read() -> None:
    """A sample that no epoch reads any more leaves at once. A sample that is to be in its folder does not leave it."""
    evictions = Evictions(6)
    evictions.store_choice(3, np.array([1, 1, 0, 2, 2, 2], np.int8))
    held, to_read = np.array([1, 2, 1, 2, 1, 0], np.int8), np.array([1, 1, 1, 1, 0, 1], np.bool_)
    placed, now = evictions.apply(3, held, to_read)
    assert placed.tolist() == [1, 1, 0, 2, 2, 2]
    assert now.tolist() == [4]
    assert evictions.on_read(np.arange(6)).tolist() == [1, 2]


def test_choices_for_two_epochs_wait_for_their_reads() -> None:
    """That for the rest of an epoch takes effect before the one for the next epoch, which is made soon after it."""
    evictions, held, to_read = Evictions(2), np.array([1, 0], np.int8), np.zeros(2, np.bool_)
    choices = {number: np.array([number, 0], np.int8) for number in (3, 4)}
    evictions.store_choice(3, choices[4])
    for number, placed in choices.items():
        evictions.store_choice(number, placed)
    assert evictions.next_placed is choices[4]
    assert not evictions.is_due(2)
    assert evictions.apply(3, held, to_read)[0] is choices[3]
    assert not evictions.is_due(3)
    assert evictions.apply(5, held, to_read)[0] is choices[4]
    assert evictions.next_placed is None


def test_a_read_that_fails_in_the_second_folder_goes_to_the_storage() -> None:
    """Only that folder forgets the chunk."""
    half = len(SIZES) // 2
    found = two(1.0, 1.0, near=set(range(half)), far=set(range(half, len(SIZES))))
    run = found.register(1, **ORDER)
    found.begin(1, run, 0)
    while not any((read.pieces["folder"] == 2).any() for read in found.reads):
        found.step()
        found.finish_job() if found.jobs else found.finish_read() if found.reads else None
    number = next(at for at, read in enumerate(found.reads) if (read.pieces["folder"] == 2).any())
    chunk = int(found.reads[number].pieces["chunk"][0])
    found.finish_read(number, failed=range(len(found.reads[number].pieces)))
    found.step()
    assert not found.reads[-1].pieces["folder"].any()
    assert [folder["bad"] for folder in facts(found)["folders"]] == [0, CHUNK]
    found.settle()
    assert found.stored_second == set(range(half, len(SIZES))) - set(range(chunk * CHUNK, (chunk + 1) * CHUNK))
    assert found.stored == set(range(half))
    assert found.core.counters.draws.direct == 0


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_folder_whose_disk_refuses_does_not_stop_the_other(stopped: int) -> None:
    """Its samples come from the storage, and the state of each folder is told."""
    found = two(0.3, 0.3)
    run = found.register(1, **ORDER)
    found.begin(1, run, 0)
    refused = False
    for first in range(0, len(SIZES), 5):
        assert found.draw(1, run, 0, range(first, first + 5))
        while found.step() or found.jobs or found.reads or found.writes:
            if found.writes:
                fails = not refused and found.writes[0].folder == stopped
                refused |= fails
                found.finish_write(stopped="failed: no space" if fails else "")
            else:
                found.finish_job() if found.jobs else found.finish_read() if found.reads else None
        for lease in list(found.held):
            found.release(lease)
    assert refused
    states = [folder["state"] for folder in facts(found)["folders"]]
    assert states[stopped - 1] == "failed: no space"
    assert facts(found)["state"] != "failed: no space"
    other = found.store(3 - stopped)
    draw_epochs(found, 1, 2)
    assert int(BYTES[mask(other)].sum()) > 0.3 * TOTAL - CHUNK * max(SIZES)
    assert found.core.counters.draws.direct == 0


SAMPLES, ROOM = 2000, 100
RANKS = Ranks((0,), 4)


@pytest.mark.parametrize("rooms", [(300, 400), (64, 600, 100), (700, 30)])
@pytest.mark.parametrize("kind", [NextUse, Frequency])
def test_folders_that_follow_hold_together_what_one_folder_would(kind: type, rooms: tuple[int, ...]) -> None:
    """And into empty ones the most wanted samples go first, as HDMLP's section 5.2 has it."""
    size = 64 << 10
    order = Order("set", SAMPLES, 50, 3, UniformPolicy(2))
    plan = order.plan(4)
    ahead = kind(order, RANKS, 1, 30)
    while ahead.foresee(4):
        pass
    sizes = np.full(SAMPLES, size, np.uint32)

    def choose(limits: tuple[int, ...], held: np.ndarray) -> np.ndarray:
        limit = np.array(limits, np.int64) * (size + 4096) * 32 // 31 + 32
        shelf = CacheContents(sizes, held, np.ones(SAMPLES, np.bool_), np.zeros(SAMPLES, np.bool_), limit, 1)
        follow = Follow("frequency" if kind is Frequency else "next", RANKS, 4, 0, 1, ahead)
        owners = Members(NodeNumber(0), 1).owners(order.mapping)
        found = ChooseCached(1, plan, None, 7, ROOM, owners, shelf, follow).cached(np.zeros(SAMPLES, np.bool_))
        assert found is not None
        return found

    nothing = np.zeros(SAMPLES, np.int8)
    one, each = choose((sum(rooms),), nothing), choose(rooms, nothing)
    key, _ = ahead.key(4)
    wanted = np.flatnonzero(one)
    assert abs(np.count_nonzero(each) - len(wanted)) <= 2 * len(rooms)
    assert np.count_nonzero((each > 0) & (one == 0)) <= 2 * len(rooms)
    for folder in range(1, len(rooms)):
        inside, behind = key[each == folder], key[each > folder]
        assert not len(behind) or inside.max() <= behind.min()
    # What a folder holds stays there as long as it is wanted, also where it would be placed elsewhere now.
    held = np.zeros(SAMPLES, np.int8)
    held[wanted[:: len(wanted) // 50]] = len(rooms)
    held[np.flatnonzero(one == 0)[:50]] = 1
    then = choose(rooms, held)
    stays = (held > 0) & (then > 0)
    assert stays.sum() >= 50
    for folder, room in enumerate(rooms, 1):
        mine = stays & (held == folder)
        assert np.count_nonzero(then[mine] == folder) == min(room, int(mine.sum()))
        assert np.count_nonzero(then == folder) <= room + 2


def test_folders_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="twice: name each disk once"):
        as_caches([tmp_path, Cache(tmp_path / "link", "1GB")])
    with pytest.raises(UsageError, match="the same placement= and epochs="):
        as_caches([Cache("/a", placement="next"), "/b"])
    with pytest.raises(UsageError, match="at most 16"):
        as_caches([f"/{number}" for number in range(17)])
    assert as_caches(None) == as_caches([]) == ()
    assert as_caches("/a") == as_caches(["/a"]) == (Cache("/a"),)


def test_two_folders_of_one_disk_need_sizes(texts: Path, tmp_path: Path) -> None:
    """Each of them would take the free space of the disk, and both together would fill it."""
    caches = as_caches([Cache(tmp_path / "near", "1GB"), tmp_path / "far"])
    data = StoredDataSet(texts)
    with pytest.raises(UsageError, match="are on one disk: give each a size, or name one of them"):
        open_caches(caches, data, stored_sizes(data))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_real_server_fills_two_folders(texts: Path, tmp_path: Path) -> None:
    """Both have files, nothing comes from the storage any more, and the next server finds what is there."""
    near, far = Cache(tmp_path / "near", f"{bytes_of(texts) // 2}B"), Cache(tmp_path / "far", "1GB")
    with running_server(texts, memory=0.3, cache=[near, far]) as server:
        for _ in range(20):
            draw(texts, server)
            if (found := written(server))["state"] == "full":
                break
    first, second = found["folders"]
    assert [folder["folder"] for folder in found["folders"]] == [str(near.folder), str(far.folder)]
    assert first["used"] + second["used"] == bytes_of(texts)
    assert second["used"] > 0
    assert bytes_of(texts) // 3 < first["used"] <= bytes_of(texts) // 2
    with running_server(texts, memory=0.3, cache=[near, far]) as server:
        draw(texts, server, 2)
        facts = server.facts()
    assert (facts["reads"], facts["read_bytes"], facts["direct"]) == (0, 0, 0)
    assert all(folder["read_bytes"] > 0 for folder in facts["cache"]["folders"])


def test_one_folder_is_told_as_before() -> None:
    """The facts of all folders together are those of the one."""
    found = world(TOTAL // 2)
    draw_epochs(found, 0)
    told = facts(found)
    (each,) = told.pop("folders")
    assert each == told
