"""Clients take kept samples by themselves: what they get is what was asked for, whatever the server does meanwhile."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

import brand
from brand.errors import ProtocolError
from brand.formats.contents import StoredSamples
from brand.node.client import direct_hits, memories
from brand.node.client.direct_hits import TOLD_TOGETHER, DirectHitReader, Files, _Untold
from brand.node.client.memories import Buffers, Pages
from brand.node.memory import directory as directories
from brand.node.memory.allocator import Allocator
from brand.node.memory.arena import Arena
from brand.node.memory.directory import (
    CHECKED,
    MOST_PAGES,
    STAMPS,
    Directory,
    Entries,
    are_checked,
    unchanged,
)
from brand.node.memory.pages import ROW_BYTES, PagePool
from brand.node.memory.residents import Residents
from brand.node.wire import messages
from brand.node.wire.client_messages import AskPlaces, Places, pack, unpack
from brand.node.wire.draw_messages import MOST_TAKEN, pack_taken, unpack_taken
from brand.node.wire.messages import HEAD, MOST_PLACES, Kind
from brand.node.wire.numbers import NO_CLIENT, RunNumber
from brand.orders.policies.stripe_policy import StripePolicy
from brand.storage.dataset import cached
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.crew import Crew
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.made_orders import order_of
from tests.node.conftest import SAMPLES, text
from tests.node.packing import pack_draw, pages_of
from tests.node.support import RawClient, draw, drawing, greeted
from tests.node.world import content
from tests.rounds import Chance, examples, rounds
from tests.support import LIMIT_S, wait_until

PAGE = 128
FIELDS = ("index", "number", "text")


# -- the directory -----------------------------------------------------------------------------------------------------


@given(
    heads=st.lists(st.integers(1, (1 << 31) - 300), min_size=1, max_size=8, unique=True),
    data=st.data(),
)
@examples(50)
def test_an_entry_tells_the_pages(heads: list[int], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 200), min_size=len(heads), max_size=len(heads)))
    entries = np.zeros(10, np.uint64)
    directory, places = Directory(entries), np.arange(len(heads))
    directory.show(places, np.array(heads, np.int32), np.array(counts, np.uint32))
    found, pages = pages_of(entries[places])
    assert found.tolist() == counts
    assert pages.tolist() == [head + step for head, count in zip(heads, counts, strict=True) for step in range(count)]
    assert not are_checked(entries).any()
    directory.mark_checked(np.array([0, 9]))
    assert are_checked(entries).tolist() == [True] + 9 * [False]
    directory.hide(places)
    assert not entries.any()


def test_what_is_shown_anew_is_told_from_what_was_shown_before() -> None:
    """Even where it lies in the same pages; that its checksum was right is no change."""
    entries = np.zeros(1, np.uint64)
    directory, place, head, count = Directory(entries), np.array([0]), np.array([5], np.int32), np.array([2], np.uint32)
    directory.show(place, head, count)
    before = entries.copy()
    directory.mark_checked(place)
    assert entries[0] == before[0] | CHECKED
    assert unchanged(entries, before).all()
    assert directory.shows(place, before).all()
    for _ in range(STAMPS - 1):
        directory.hide(place)
        assert not unchanged(entries, before).any()
        directory.show(place, head, count)
        assert not unchanged(entries, before).any()
    assert not directory.shows(place, np.zeros(1, np.uint64)).any()


def test_a_sample_of_too_many_pages_is_not_shown() -> None:
    entries = np.zeros(2, np.uint64)
    Directory(entries).show(np.arange(2), np.array([1, 9], np.int32), np.array([MOST_PAGES + 1, MOST_PAGES], np.uint32))
    assert (entries != 0).tolist() == [False, True]


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=12), data=st.data())
@examples(60)
def test_chains_side_by_side(counts: list[int], data: st.DataObject) -> None:
    """The first chains lie side by side; later ones do where the allocator says so, and equal ones again."""
    allocator = Allocator(PAGE * 100, PAGE)
    lengths = np.array(counts)
    heads, _ = allocator.take(lengths)
    assert allocator.side_by_side(heads, lengths).all()
    freed = np.array(data.draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts))))
    for head, count in zip(heads[freed].tolist(), lengths[freed].tolist(), strict=True):
        one, length = np.array([head], np.int32), np.array([count])
        allocator.give_back(allocator.chains(one, length))
        again, _ = allocator.take(length)
        assert allocator.side_by_side(again, length).all(), "a chain that was freed alone is not taken so again"
        allocator.give_back(allocator.chains(again, length))
    while allocator.free >= 6:
        wanted = np.array([data.draw(st.integers(1, 6))])
        head, pages = allocator.take(wanted)
        assert allocator.side_by_side(head, wanted).tolist() == [bool((np.diff(pages) == 1).all())]


# -- every interleaving ------------------------------------------------------------------------------------------------


class Shelf:
    """Two samples of which memory has room for one, as a server keeps and drops them, and a client that takes one."""

    def __init__(self) -> None:
        self.sizes = np.array([300, 300])
        self.arena = Arena(5, PAGE)
        self.entries = np.zeros(2, np.uint64)
        pool = PagePool(Allocator(5 * PAGE, PAGE), self.arena, np.array([3, 3], np.uint32))
        self.residents = Residents(pool, directory=Directory(self.entries))
        self.residents.keep(np.ones(2, np.bool_))
        self.bring(0)
        self.copied: list[bytes] = []
        self.seen = np.zeros(1, np.uint64)
        self.taken: bytes | None = None

    def bring(self, place: int) -> None:
        """Its bytes come into memory, and it is kept."""
        heads, pages = self.residents.pool.allocator.take(np.array([3]))
        data = np.zeros(3 * PAGE, np.uint8)
        data[ROW_BYTES : ROW_BYTES + 300] = content(place, 300)
        self.arena.pages[pages] = data.reshape(3, PAGE)
        places = np.array([place])
        self.residents.put(places, heads)
        self.residents.let_go(places)

    def drop(self) -> None:
        """Nothing is kept any more."""
        self.residents.keep(np.zeros(2, np.bool_))
        self.residents.keep(np.ones(2, np.bool_))

    def look(self) -> None:
        self.seen = self.entries[:1].copy()

    def copy(self, page: int) -> None:
        if self.seen[0]:
            self.copied.append(self.arena.pages[pages_of(self.seen)[1][page]].tobytes())

    def look_again(self) -> None:
        if self.seen[0] and unchanged(self.entries[:1], self.seen).all():
            self.taken = b"".join(self.copied)[ROW_BYTES : ROW_BYTES + 300]


def test_every_interleaving_of_a_server_that_drops_and_a_client_that_takes() -> None:
    """The client has the sample, or knows that it has not."""
    server: list[Callable[[Shelf], None]] = [
        Shelf.drop,
        lambda shelf: shelf.bring(1),
        Shelf.drop,
        lambda shelf: shelf.bring(0),
    ]
    client: list[Callable[[Shelf], None]] = [
        Shelf.look,
        *(lambda shelf, page=page: shelf.copy(page) for page in range(3)),
        Shelf.look_again,
    ]
    took = 0
    for at in itertools.combinations(range(len(server) + len(client)), len(client)):
        shelf, theirs, mine = Shelf(), iter(server), iter(client)
        for step in range(len(server) + len(client)):
            next(mine if step in at else theirs)(shelf)
        if shelf.taken is not None:
            took += 1
            assert shelf.taken == content(0, 300).tobytes(), f"the client's steps are {at}"
    assert took == 2, "before all that the server does, and after it"


# -- messages ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1))
@examples(20)
def test_messages_come_back(run: int, epoch: int, first: int) -> None:
    asked = AskPlaces((RunNumber(run), epoch), first)
    assert unpack(AskPlaces, pack(asked)[HEAD.size :]) == asked
    positions, entries = np.array([3, 9]), np.array([1 << 63, first], np.uint64)
    for some in (entries, entries[:0]):
        taken = unpack_taken(pack_taken(run, epoch, positions, some)[HEAD.size :])
        assert (taken.run, taken.epoch) == (run, epoch)
        assert (taken.positions.tolist(), taken.entries.tolist()) == ([3, 9], some.tolist())
    places = np.array([0, 5, 2], np.int32)
    assert unpack(Places, pack_places(places)[HEAD.size :]).places.tolist() == [0, 5, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: unpack(AskPlaces, b"1" * 15),
        lambda: unpack(Places, b"1" * 5),
        lambda: unpack(Places, bytes(4 * (MOST_PLACES + 1))),
        lambda: unpack_taken(b"1" * 11),
        lambda: unpack_taken(pack_taken(0, 0, np.arange(0))[HEAD.size :]),
        lambda: unpack_taken(pack_taken(0, 0, np.arange(2))[HEAD.size : -1]),
        lambda: unpack_taken(pack_taken(0, 0, np.arange(2), np.arange(1, dtype=np.uint64))[HEAD.size :]),
        lambda: unpack_taken(pack_taken(0, 0, np.arange(MOST_TAKEN + 1))[HEAD.size :]),
    ],
)
def test_messages_are_distrusted(wrong: Callable[[], object]) -> None:
    with pytest.raises(ProtocolError):
        wrong()


# -- a client against what a server says -------------------------------------------------------------------------------


def pack_places(places: NDArray[np.int32]) -> bytes:
    """`PLACES` of a server."""
    return pack(Places(NO_CLIENT, places))


class Said:
    """A server's directory and answers, and what a client tells it."""

    def __init__(self, samples: int) -> None:
        self.order = np.random.default_rng(7).permutation(samples).astype(np.int32)
        self.arena = Arena(samples + 1, PAGE)
        self.entries = np.zeros(samples, np.uint64)
        self.asked: list[int] = []
        self.told: list[int] = []
        self.says = True
        heads, counts = np.arange(1, samples + 1, dtype=np.int32), np.ones(samples, np.uint32)
        Directory(self.entries).show(np.arange(samples), heads, counts)
        self.entries |= CHECKED

    def request(self, message: bytes, expected: Kind) -> memoryview:
        assert expected == Kind.PLACES
        first = unpack(AskPlaces, message[HEAD.size :]).first
        self.asked.append(first)
        places = self.order[first : first + MOST_PLACES] if self.says else self.order[:0]
        return memoryview(pack_places(places)[HEAD.size :])

    def send(self, message: bytes) -> None:
        at = 0
        while at < len(message):
            kind, length = messages.parse_head(message[at : at + HEAD.size], messages.MAX_REQUEST)
            assert kind == Kind.TAKEN
            self.told += unpack_taken(message[at + HEAD.size : at + HEAD.size + length]).positions.tolist()
            at += HEAD.size + length

    def taking(self, workers: int = 1) -> DirectHitReader:
        return DirectHitReader(
            Pages(self.arena.pages, Buffers(), Crew(2)), self.entries, self.request, self.send, workers
        )


def taken(taking: DirectHitReader, positions: NDArray[np.int64], draws: int) -> list[int] | None:
    """The places that a client takes; None where it asks."""
    found = taking.take(1, 0, positions, draws)
    return None if found is None else found[0].tolist()


@pytest.mark.parametrize("place", [6, -1])
def test_places_that_the_data_set_does_not_have(place: int) -> None:
    """The client refuses them."""
    said = Said(6)
    said.order[2] = place
    taking = said.taking()
    taking.answered(1, 0)
    with pytest.raises(ProtocolError, match="places that the data set does not have"):
        taking.take(1, 0, np.arange(2), 6)


@pytest.mark.parametrize("workers", [1, 3])
def test_places_are_asked_for_once_and_all_is_told(workers: int) -> None:
    """Blocks of the order are asked for once, and all that was taken is told, the end of the epoch at once."""
    samples = 2 * MOST_PLACES + 5000
    said = Said(samples)
    taking = said.taking(workers)
    assert taken(taking, np.arange(4), samples) is None, "before the server has answered a draw"
    taking.answered(1, 0)
    mine, untold = list[int](), 0
    for first in range(0, samples, 100 * workers):
        positions = np.arange(first, min(first + 100, samples))
        assert taken(taking, positions, samples) == said.order[positions].tolist()
        mine += positions.tolist()
        untold = max(untold, len(mine) - len(said.told))
        assert mine[: len(said.told)] == said.told
    assert said.asked == [0, MOST_PLACES, 2 * MOST_PLACES]
    assert untold < TOLD_TOGETHER
    assert said.told == mine


def test_what_is_not_shown_is_asked_for() -> None:
    said = Said(100)
    taking = said.taking()
    taking.answered(1, 0)
    said.entries[said.order[7]] = 0
    assert taken(taking, np.arange(8), 100) is None
    assert taken(taking, np.arange(7), 100) == said.order[:7].tolist()
    assert taken(taking, np.array([9, 8]), 100) == said.order[[9, 8]].tolist(), "a planned batch has any order"
    assert taken(taking, np.array([9, 8, 9]), 100) is None, "a sample is in memory once"
    taking.answered(1, 1)
    assert taken(taking, np.arange(7), 100) is None, "another epoch"
    taking.answered(1, 0)
    said.says = False
    assert taken(taking, np.arange(7), 100) is None
    assert taken(taking, np.arange(7), 100) is None
    assert said.asked == [0, 0], "a server that says nothing is not asked again in this epoch"


def test_a_wrong_checksum_is_asked_for() -> None:
    """Where nobody has found the checksum right, the client looks at it."""
    said = Said(10)
    said.entries &= ~CHECKED
    taking = said.taking()
    taking.answered(1, 0)
    assert taken(taking, np.arange(3), 10) is None, "the pages hold zeros"
    assert said.told == []


class Torn(Pages):
    """Pages whose samples are dropped just when a client has copied them, and may have copied something else."""

    entries: Entries

    def copy_runs(self, heads: NDArray[np.int32], counts: NDArray[np.uint32], more: int = 0) -> NDArray[np.uint8]:
        copied = super().copy_runs(heads, counts, more)
        self.entries[:] = 0
        return copied


def test_what_is_dropped_while_it_is_copied_is_asked_for() -> None:
    said = Said(10)
    pages = Torn(said.arena.pages, Buffers(), Crew(2))
    object.__setattr__(pages, "entries", said.entries)
    taking = DirectHitReader(pages, said.entries, said.request, said.send)
    taking.answered(1, 0)
    assert taken(taking, np.arange(3), 10) is None
    assert said.told == []


@pytest.mark.parametrize("compiled", [True, False])
@rounds(1)
def test_what_is_written_while_it_is_copied_is_found_out(
    chance: Chance, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same pages hold one sample after the other: a copy has the bytes of one of them, or its entry has changed."""
    if not compiled:
        monkeypatch.setattr(memories, "CORE", None)
        for module in (directories, direct_hits):
            monkeypatch.setattr(module, "fence", directories._fence_by_lock)
    count, ended, rng = 64, threading.Event(), chance.rng
    arena = Arena(count, 4096)
    entries = np.zeros(1, np.uint64)
    directory, place = Directory(entries), np.array([0])

    def write() -> None:
        heads, counts = np.zeros(1, np.int32), np.array([count], np.uint32)
        for number in itertools.count():
            directory.hide(place)
            arena.pages[:] = number % 251
            if ended.is_set():
                return
            directory.show(place, heads, counts)
            ended.wait(rng.random() * 1e-4)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        pages, right, seen = Pages(arena.pages, Buffers(), Crew(1)), 0, 0
        end_s = time.monotonic() + LIMIT_S
        while right < 50 and time.monotonic() < end_s:
            before = entries.copy()
            if not before[0]:
                continue
            directories.fence()
            copied = pages.copy_runs(*directories.runs_of(before))
            directories.fence()
            seen += 1
            if unchanged(entries, before).all():
                right += 1
                assert (copied == copied[0]).all(), f"after {seen} copies"
    finally:
        ended.set()
        writer.join()
        arena.close()
    assert right == 50


# -- real servers ------------------------------------------------------------------------------------------------------


def drawn(data_set: BrandDataset, asked: Iterator[int], batch: int = 37) -> list[int]:
    """Draw in batches; the indices of the samples, each of which must be what was packed."""
    found, rest = [], list(asked)
    for first in range(0, len(rest), batch):
        for index, number, words in data_set.__getitems__(rest[first : first + batch]):
            assert (number, words) == (index, text(index))
            found.append(index)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1.0, 0.5])
def test_epochs_in_memory_need_no_answers(texts: Path, memory: float) -> None:
    """Where memory holds all, later epochs are taken, but for the first draw of each; else all is asked for."""
    with running_server(texts, memory=memory) as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=3)
        for epoch in range(4):
            plan = StoredDataSet(texts).indices(sampler.order.plan(epoch).sample_of).tolist()
            assert drawn(data_set, iter(sampler)) == plan
        facts = data_set.stats()
    assert facts["fetched"] == 4 * SAMPLES
    assert facts["from_memory"] + facts["direct"] == 4 * SAMPLES
    if memory == 1.0:
        assert facts["direct_hits"] >= 3 * (SAMPLES - 37)
    else:
        assert facts["direct_hits"] == 0


@pytest.mark.slow
def test_a_resume_and_a_break_between_epochs_that_are_taken(texts: Path) -> None:
    with running_server(texts, memory=1.0) as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=4)
        data = StoredDataSet(texts)
        want = [data.indices(sampler.order.plan(epoch).sample_of).tolist() for epoch in range(4)]
        drawn(data_set, iter(sampler))
        tickets = iter(sampler)
        assert drawn(data_set, itertools.islice(tickets, 300)) == want[1][:300]
        state = sampler.state_dict()
        assert drawn(data_set, itertools.islice(tickets, 200)) == want[1][300:500]
        sampler.load_state_dict(state)
        assert drawn(data_set, iter(sampler)) == want[1][300:]
        assert drawn(data_set, iter(sampler)) == want[2]
        assert data_set.stats()["direct_hits"] > SAMPLES


@pytest.mark.slow
def test_a_client_that_lies_is_cut_off_and_nobody_else(texts: Path) -> None:
    """Positions that do not exist, that occur twice, of an epoch that never began; and far too many of them."""
    with running_server(texts, memory=1.0) as server, greeted(server.address, texts) as good:
        order = order_of(texts, StripePolicy(4, stripe=8))
        number = good.order(order)
        good.begin(number, 0)
        good.send(pack_draw(number, 0, np.arange(5)))
        good.lease()
        for positions in ([SAMPLES], [-1], [5, 5], [5, 4, 5], [1 << 62]):
            with greeted(server.address, texts) as bad:
                mine = bad.order(order)
                bad.send(pack_taken(mine, 0, np.array(positions)))
                assert [kind for kind, _ in bad.ended()] == [Kind.FAILED]
        with greeted(server.address, texts) as bad:
            bad.send(pack_taken(77, 0, np.arange(3)))
            assert [kind for kind, _ in bad.ended()] == [Kind.FAILED]
        good.send(pack(AskPlaces((RunNumber(number), 3), 0)))
        kind, body = good.receive()
        assert (kind, body) == (Kind.PLACES, b""), "an epoch that has not begun"
        good.send(pack(AskPlaces((RunNumber(number), 0), SAMPLES)))
        assert good.receive() == (Kind.PLACES, b"")
        good.send(pack_taken(number, 0, np.arange(5, 9), np.arange(4, dtype=np.uint64)))
        good.send(pack_taken(number, 9, np.arange(5)))
        facts = good.stats()
        assert facts["direct_hits"] == 9


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True])
def test_direct_hits_that_overtake_the_beginning_of_an_epoch_are_not_left_out(texts: Path, begun: bool) -> None:
    """An epoch begins again. A client has its first samples already, before the server has made the epoch ready.

    Whether the message of the beginning was received before or after these direct hits.
    """
    with running_server(texts, memory=1.0) as server, RawClient(server.address) as client:
        client.hello(StoredDataSet(texts).id, worker=(0, 1))
        number = client.order(order_of(texts, StripePolicy(4, stripe=8)))
        for epoch in (0, 1, 2):
            client.begin(number, epoch)
            draw(client, number, epoch, np.arange(20))
        if begun:
            client.begin(number, 0)
        client.send(pack_taken(number, 0, np.arange(100)))
        if not begun:
            client.stats()
            client.begin(number, 0)
        for first in range(100, SAMPLES - 20, 20):
            assert len(draw(client, number, 0, np.arange(first, first + 20)).places) == 20


def _draw_until_killed(path: str, address: str, begun: Any) -> None:
    data_set = BrandDataset(path, server=address, fields=FIELDS)
    sampler = BrandSampler(data_set)
    for number in itertools.count():
        drawn(data_set, iter(sampler), 8)
        if number == 2:
            begun.set()


@pytest.mark.slow
def test_a_client_that_is_killed_while_it_takes(texts: Path) -> None:
    """It leaves nothing behind: the server forgets it, and others draw on."""
    spawn = multiprocessing.get_context("spawn")
    with running_server(texts, memory=1.0) as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=9)
        drawn(data_set, iter(sampler))
        clients = data_set.stats()["clients"]
        for epoch in range(1, 4):
            begun = spawn.Event()
            process = spawn.Process(target=_draw_until_killed, args=(str(texts), server.address, begun))
            process.start()
            assert begun.wait(LIMIT_S)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            wait_until(lambda: data_set.stats()["clients"] == clients, "the server to forget a client that was killed")
            plan = StoredDataSet(texts).indices(sampler.order.plan(epoch).sample_of).tolist()
            assert drawn(data_set, iter(sampler)) == plan
        assert len(data_set.stats()["jobs"]) == 1


@pytest.mark.slow
def test_a_server_that_drops_kept_samples_while_clients_take(texts: Path) -> None:
    """The server's thread drops and brings samples all the time; each sample that a client takes is the right one."""
    data = StoredDataSet(texts)
    rows = data.rows(0, SAMPLES)
    arena = Arena(SAMPLES * 3, PAGE)
    entries = np.zeros(SAMPLES, np.uint64)
    pages = ((rows["size"].astype(np.int64) + 32 + PAGE - 1) // PAGE).astype(np.uint32)
    residents = Residents(PagePool(Allocator(SAMPLES * 3 * PAGE, PAGE), arena, pages), directory=Directory(entries))
    stored = data.stored_bytes(np.arange(SAMPLES), raising=True)
    stop = threading.Event()

    def serve() -> None:
        rng = np.random.default_rng(1)
        while not stop.is_set():
            mask = rng.random(SAMPLES) < 0.6
            residents.keep(mask)
            for place in np.flatnonzero(mask & ~residents.present(slice(None))).tolist():
                places = np.array([place])
                heads, chain = residents.pool.allocator.take(pages[places])
                memory = np.zeros(len(chain) * PAGE, np.uint8)
                memory[32 : 32 + len(stored[place] or b"")] = np.frombuffer(stored[place] or b"", np.uint8)
                arena.pages[chain] = memory.reshape(-1, PAGE)
                residents.pool.came(places, heads, rows[places])
                residents.put(places, heads)
                residents.let_go(places)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        order = np.arange(SAMPLES, dtype=np.int32)
        taking = DirectHitReader(
            Pages(arena.pages, Buffers(), Crew(2)),
            entries,
            lambda message, _: memoryview(
                pack_places(order[unpack(AskPlaces, message[HEAD.size :]).first :])[HEAD.size :]
            ),
            lambda _: None,
        )
        taking.answered(1, 0)
        rng, took = np.random.default_rng(2), 0
        while took < 30:
            positions = np.sort(rng.choice(SAMPLES, 3, replace=False))
            found = taking.take(1, 0, positions, SAMPLES)
            if found is not None:
                took += 1
                assert found[1].rows["index"].tolist() == rows["index"][positions].tolist()
                assert found[1].right().all()
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_a_loader_counts_all_that_it_took(texts: Path) -> None:
    """Also what was told with others, or only when the data set closed."""
    with running_server(texts, memory=1.0) as server:
        with drawing(texts, server.address) as data_set:
            loader = BrandLoader(data_set, 32, num_workers=2)
            for _ in range(3):
                assert sum(len(batch[0]) for batch in loader) == SAMPLES
            facts = data_set.stats()
        assert facts["fetched"] == facts["from_memory"] + facts["direct"] == 3 * SAMPLES
        assert facts["direct_hits"] > SAMPLES


# -- the page cache ----------------------------------------------------------------------------------------------------


class Cache:
    """Samples in a page cache, as a client finds them: those in `there`."""

    def __init__(self, rows: NDArray[np.void], stored: list[bytes], there: set[int]) -> None:
        self._rows, self._stored, self.there = rows, stored, there
        self.asked = 0

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.void]:
        return self._rows[places]

    def copy(
        self, places: NDArray[np.int64], rows: NDArray[np.void], memory: memoryview, starts: NDArray[np.int64]
    ) -> bool:
        self.asked += 1
        for place, row, start in zip(places.tolist(), rows, starts.tolist(), strict=True):
            if place not in self.there:
                return False
            memory[start : start + int(row["size"])] = self._stored[place]
        return True


def test_a_sample_of_another_place_is_not_right(texts: Path) -> None:
    """A whole sample with the right checksum, whose row says that it is another one, or that is damaged."""
    data, places_ = StoredDataSet(texts), np.arange(4)
    stored = [each or b"" for each in data.stored_bytes(places_, raising=True)]
    sizes, rows = np.array(list(map(len, stored))), data.rows_at(places_)
    rows["offset"] = [0, 3, 2, 3]
    rows["checksum"][2] += 1
    found = StoredSamples(np.frombuffer(b"".join(stored), np.uint8), np.cumsum(sizes) - sizes, rows)
    assert Files().right(found, places_).tolist() == [True, False, False, True]
    index = rows["index"].astype(np.int64)
    assert Files(lambda indices, _: indices != index[3]).right(found, places_).tolist() == [True, False, False, False]


@pytest.mark.slow
def test_shown_samples_and_cached_ones_in_one_draw(texts: Path) -> None:
    """Each sample comes from where it is, and is checked; where one is nowhere, the client asks, ever less often."""
    data = StoredDataSet(texts)
    every = np.arange(40)
    rows, stored = data.rows_at(every), data.stored_bytes(every, raising=True)
    arena, entries = Arena(41 * 4, PAGE), np.zeros(40, np.uint64)
    counts = ((rows["size"].astype(np.int64) + ROW_BYTES + PAGE - 1) // PAGE).astype(np.uint32)
    shown = every[::3]
    heads = (4 * shown + 1).astype(np.int32)
    for place, head in zip(shown.tolist(), heads.tolist(), strict=True):
        flat = arena.pages[head : head + 4].reshape(-1)
        flat[:ROW_BYTES] = rows[place : place + 1].view(np.uint8)
        flat[:8] = np.array([place]).view(np.uint8)
        flat[ROW_BYTES : ROW_BYTES + len(stored[place] or b"")] = np.frombuffer(stored[place] or b"", np.uint8)
    Directory(entries).show(shown, heads, counts[shown])
    cache = Cache(rows, [each or b"" for each in stored], set(range(40)))
    taking = DirectHitReader(
        Pages(arena.pages, Buffers(), Crew(2)),
        entries,
        lambda *_: memoryview(pack_places(every.astype(np.int32))[HEAD.size :]),
        lambda _: None,
        1,
        Files(cached=lambda _: cache),  # type: ignore[arg-type,return-value]
    )
    taking.answered(1, 0)
    for first, end in ((0, 40), (0, 1), (1, 3), (5, 30)):
        found = taking.take(1, 0, np.arange(first, end), 40)
        assert found is not None
        assert [bytes(found[1].view(number)) for number in range(end - first)] == stored[first:end]
    assert cache.asked == 3, "the first sample is shown"
    cache.there.clear()
    cache.asked = 0
    for _ in range(2000):
        assert taking.take(1, 0, np.arange(5), 40) is None
    assert 2000 // 64 <= cache.asked <= 2000 // 64 + 8
    cache.there |= set(range(40))
    while taking.take(1, 0, np.arange(5), 40) is None:
        pass
    assert taking.take(1, 0, np.arange(5), 40) is not None


@pytest.mark.slow
def test_data_in_the_page_cache_are_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first epoch of a data set that was just written: the server reads next to nothing, and all is right."""
    monkeypatch.setattr(cached, "LEAST_DATA", 1 << 20)
    path, samples = tmp_path / "large.brand", 300

    def content_of(number: int) -> bytes:
        return np.random.default_rng(number).bytes(9000 + number)

    brand.pack(({"data": content_of(n)} for n in range(samples)), path, schema={"data": "bytes"}, chunk_size=50)
    with running_server(path, memory=1.0) as server, drawing(path, server.address, fields=None) as data_set:
        sampler = BrandSampler(data_set)
        for epoch in range(3):
            plan = StoredDataSet(path).indices(sampler.order.plan(epoch).sample_of).tolist()
            asked, found = list(sampler), []
            for first in range(0, samples, 16):
                for sample in data_set.__getitems__(asked[first : first + 16]):
                    assert sample["data"] == content_of(sample["index"])
                    found.append(sample["index"])
            assert found == plan
        wait_until(lambda: data_set.stats()["reading"] == 0, "the last reads")
        facts = data_set.stats()
    assert facts["fetched"] == facts["from_memory"] + facts["direct"] == 3 * samples
    assert facts["failed_reads"] == 0
    in_memory = facts["memory"]["cached"]
    assert facts["read_bytes"] <= 2 * in_memory + 10_000, "what it read is what it keeps"


def test_direct_hits_are_reported_one_by_one_when_few_positions_are_left() -> None:
    """The process draws every tenth position: it has as many left as the distance of its last two positions says."""
    told: list[bytes] = []
    untold = _Untold(told.append, workers=1)
    untold.add(b"early", np.array([0, 10]), draws=11 + 10 * TOLD_TOGETHER)
    assert told == []
    untold.add(b"late", np.array([20, 30]), draws=31 + 10 * (TOLD_TOGETHER - 1))
    assert told == [b"earlylate"]
