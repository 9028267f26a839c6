"""Draws over real sockets: whatever memory, storage and clients do, each epoch brings each sample once, and right."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import brand
from brand.errors import FormatError, MissingFileError
from brand.formats.compression import Mode
from brand.node.decide.state import choosing
from brand.node.memory.pages import EqualPages, IndexedPages, all_pages, most_pages
from brand.node.setup import measure
from brand.node.setup.measure import measure_pages, pages_in, stored_sizes
from brand.orders.base.policy import Policy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import RunningServer, running_server
from brand.testing.storage import BlockedStorage, CountedStorage, Fault, FaultyStorage, SlowStorage
from brand.torch import BrandDataset, BrandSampler
from tests import places
from tests.made_orders import SLOTS, order_of
from tests.node.conftest import SAMPLES, text
from tests.node.packing import pack_draw
from tests.node.support import drawing, greeted
from tests.storage.support import chunk as chunk_path
from tests.support import wait_until

pytestmark = places.EVERYWHERE

FIELDS = ("index", "number", "text")


def take(data_set: BrandDataset, asked: Iterable[int], batch: int = 37) -> list[int]:
    """Draw in batches; the indices of the samples, each of which must be what was packed."""
    asked, found = list(asked), []
    for first in range(0, len(asked), batch):
        for index, number, words in data_set.__getitems__(asked[first : first + batch]):
            assert (number, words) == (index, text(index))
            found.append(index)
    return found


def planned(sampler: BrandSampler, path: Path, epoch: int) -> list[int]:
    """The indices of an epoch in the order of its plan."""
    found: list[int] = StoredDataSet(path).indices(sampler.order.plan(epoch).sample_of).tolist()
    return found


def pages(path: Path, count: int) -> int:
    """Memory of so many pages."""
    return count * measure_pages(stored_sizes(StoredDataSet(path)))[0]


@pytest.mark.parametrize(
    ("values", "schema", "shown"),
    [
        ([{"value": number} for number in range(300)], {"value": "int"}, True),
        ([{"text": "x" * (number % 60)} for number in range(300)], {"text": "str"}, True),
        ([{"data": bytes(3000)} for _ in range(300)], {"data": "bytes"}, True),
        ([{"data": bytes(3000 + number % 2)} for number in range(300)], {"data": "bytes"}, False),
        ([{"data": bytes(40 * number)} for number in range(300)], {"data": "bytes"}, False),
    ],
    ids=["numbers", "short texts", "equal sizes", "nearly equal sizes", "other sizes"],
)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_manifest_shows_whether_samples_take_equal_pages(
    tmp_path: Path, values: list[dict[str, Any]], schema: dict[str, str], shown: bool, compression: Mode
) -> None:
    """The pages are those of the stored sizes. Equal sizes are seen without the index, if not compressed."""
    brand.pack(values, tmp_path / "set", schema, jobs=1, compression=compression)
    data = StoredDataSet(tmp_path / "set")
    page, pages_of = pages_in(data)
    expected, by_size = measure_pages(stored_sizes(data))
    assert (page, pages_of[:].tolist()) == (expected, by_size.tolist())
    assert (all_pages(pages_of), most_pages(pages_of)) == (int(by_size.sum()), int(by_size.max()))
    if compression == "none":
        assert isinstance(pages_of, EqualPages) == shown


def test_the_pages_of_a_large_data_set_are_those_of_its_index(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of neighbours, of several runs, of scattered places, of one, of a table of them, and of rows that are damaged."""
    data = StoredDataSet(texts)
    page, expected = measure_pages(stored_sizes(data))
    monkeypatch.setattr(measure, "MOST_LISTED", 0)
    found, pages_of = pages_in(data)
    assert isinstance(pages_of, IndexedPages)
    assert (found, len(pages_of)) == (page, SAMPLES)
    assert expected.max() <= most_pages(pages_of)
    assert expected.sum() <= all_pages(pages_of) <= expected.sum() + SAMPLES
    rng = np.random.default_rng(0)
    runs = np.concatenate([np.arange(40, 90), np.arange(7), np.arange(500, 600)])
    scattered = rng.permutation(SAMPLES), rng.integers(0, SAMPLES, (5, 7))
    for places_ in (np.arange(30, 300), runs, *scattered, runs[:0], runs[:1]):
        assert np.array_equal(pages_of[places_], expected[places_])
    assert np.array_equal(pages_of[17:93], expected[17:93])
    assert int(pages_of[5]) == int(expected[5])

    def unreadable(*_: object) -> NDArray[np.void]:
        raise MissingFileError("gone", path=texts)

    gone = replace(pages_of, rows=unreadable, rows_at=unreadable)
    assert (gone[np.arange(50)] == 1).all()
    assert (gone[rng.permutation(50)] == 1).all()


@pytest.mark.parametrize("memory", [0.3, 1.0])
def test_a_large_data_set_of_samples_of_all_sizes(texts: Path, memory: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages by the index and cached units: each epoch has each sample, nothing is read alone, memory is used."""
    monkeypatch.setattr(measure, "MOST_LISTED", 0)
    monkeypatch.setattr(choosing, "MOST_LISTED", 0)
    with running_server(texts, memory=memory) as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=3)
        for epoch in range(3):
            assert take(data_set, sampler) == planned(sampler, texts, epoch)
        facts = server.facts()
    assert facts["direct"] == facts["failed_reads"] == 0
    assert facts["memory"]["cached"] > 0


STRIPES_OF_8 = StripePolicy(4, stripe=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "policy"),
    [(2, STRIPES_OF_8), (5, SLOTS), (40, STRIPES_OF_8), (0.1, SLOTS), (0.3, STRIPES_OF_8), (1.0, SLOTS)],
)
def test_the_samples_do_not_depend_on_memory_or_time(texts: Path, memory: int | float, policy: Policy) -> None:
    """Memory of two pages, of a few, of everything; reads that take any time and end in any order."""
    storage = SlowStorage(seed=int(memory * 100), longest_s=0.002)
    limit = pages(texts, memory) if isinstance(memory, int) else memory
    with running_server(texts, memory=limit, storage=storage) as server:
        with greeted(server.address, texts) as client:
            order = order_of(texts, policy)
            number = client.order(order)
            client.begin(number, 0)
        with drawing(texts, server.address, fields=FIELDS) as data_set:
            sampler = BrandSampler(data_set)
            sampler.load_state_dict(sampler.state_dict() | {"order": order.to_json()})
            for epoch in range(2):
                assert take(data_set, sampler) == planned(sampler, texts, epoch)
        memory_facts = server.facts()["memory"]
        assert memory_facts["used"] <= memory_facts["limit"]


@pytest.mark.slow
def test_epoch_after_epoch_from_memory(texts: Path) -> None:
    """Three epochs in step: nothing is read one by one, and no read brings less than is asked for."""
    with running_server(texts, memory=0.3) as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=3)
        for epoch in range(3):
            assert take(data_set, sampler) == planned(sampler, texts, epoch)
        facts = server.facts()
    assert facts["fetched"] == 3 * SAMPLES
    assert facts["direct"] == 0
    assert facts["failed_reads"] == 0


@pytest.mark.slow
def test_a_rewind_a_skip_an_early_break(texts: Path) -> None:
    """States from before and behind, an epoch that is left early, the same epoch again."""
    with running_server(texts, memory=0.3) as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=4)
        want = [planned(sampler, texts, epoch) for epoch in range(4)]
        tickets_ = iter(sampler)
        assert take(data_set, [next(tickets_) for _ in range(300)]) == want[0][:300]
        state = sampler.state_dict()
        assert take(data_set, [next(tickets_) for _ in range(200)]) == want[0][300:500]
        sampler.load_state_dict(state)
        assert take(data_set, list(sampler)[:100]) == want[0][300:400]
        sampler.set_epoch(2)
        assert take(data_set, list(sampler)) == want[2]
        sampler.load_state_dict(state | {"position": 1100})
        assert take(data_set, sampler) == want[0][1100:]
        for _ in range(2):
            sampler.set_epoch(3)
            assert take(data_set, list(sampler)[:50]) == want[3][:50]
        order, skipping = sampler.order, sampler._sequence.ints(3, np.arange(700, SAMPLES))
        assert take(data_set, skipping.tolist()) == want[3][700:]
        assert order == sampler.order


def test_positions_in_any_order_and_more_than_once(texts: Path) -> None:
    """Backwards, repeated, far apart."""
    with running_server(texts, memory=0.2) as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=5)
        want = planned(sampler, texts, 0)
        rng = np.random.default_rng(1)
        for positions in (np.arange(SAMPLES)[::-1], np.zeros(50, int), rng.integers(0, SAMPLES, 2000)):
            asked = sampler._sequence.ints(0, positions).tolist()
            assert take(data_set, asked, batch=200) == [want[p] for p in positions.tolist()]


@pytest.mark.slow
def test_several_runs_at_once(texts: Path) -> None:
    """Four trainings, two of them with the same order, each at its own speed, at one small server."""
    faults: list[BaseException] = []

    def train(address: str, seed: int, batch: int, epochs: Sequence[int]) -> None:
        try:
            with drawing(texts, address, fields=FIELDS) as data_set:
                sampler = BrandSampler(data_set, seed=seed)
                for epoch in epochs:
                    sampler.set_epoch(epoch)
                    assert take(data_set, sampler, batch) == planned(sampler, texts, epoch)
        except BaseException as fault:  # noqa: BLE001 - raised in the test's thread
            faults.append(fault)

    storage = SlowStorage(seed=2, longest_s=0.001)
    with running_server(texts, memory=0.2, storage=storage) as server:
        jobs = [(1, 20, (0, 1)), (1, 33, (0, 1)), (2, 50, (0, 1, 2)), (3, 7, (1,))]
        threads = [threading.Thread(target=train, args=(server.address, *job)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]
        wait_until(lambda: server.facts()["clients"] == 1, "all have hung up")
        wait_until(lambda: not server.facts()["reading"], "no read is on its way")
        facts = server.facts()
    assert facts["epochs"] == []
    assert facts["memory"]["leased"] == 0
    assert facts["memory"]["used"] == facts["memory"]["cached"]


def test_several_threads_of_one_process(texts: Path) -> None:
    """Threads that share a data set draw parts of one epoch."""
    with running_server(texts, memory=0.3) as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=6)
        asked = list(sampler)
        found: dict[int, list[int]] = {}

        def draw(part: int) -> None:
            found[part] = take(data_set, asked[part::4], 25)

        threads = [threading.Thread(target=draw, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        want = planned(sampler, texts, 0)
        assert found == {part: want[part::4] for part in range(4)}


@pytest.mark.slow
def test_where_everything_fits_each_sample_is_read_once(texts: Path) -> None:
    """All bytes of the chunks' samples are read in the first epoch, and none ever again."""
    data = StoredDataSet(texts)
    stored = int(data.rows(0, SAMPLES)["size"].sum())
    with running_server(texts, memory=1.0) as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=7)
        for epoch in range(3):
            assert take(data_set, sampler) == planned(sampler, texts, epoch)
            assert server.facts()["read_bytes"] == stored
        assert server.facts()["direct"] == 0
        assert server.facts()["memory"]["cached"] == server.facts()["memory"]["used"]


@pytest.mark.slow
def test_where_everything_fits_and_storage_is_slow(texts: Path) -> None:
    """Training waits for storage: still each sample is read once."""
    storage = CountedStorage(inner=SlowStorage(seed=3, longest_s=0.02))
    served = running_server(texts, memory=1.0, storage=storage, depth=4)
    with served as server, drawing(texts, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=8)
        for epoch in range(2):
            assert take(data_set, sampler, 100) == planned(sampler, texts, epoch)
        assert server.facts()["direct"] == 0
    read = sorted((call.chunk, call.offset) for call in storage.reads if not call.exact)
    assert len(read) == len(set(read))


@pytest.fixture(scope="module")
def one_giant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, one of which is larger than the others together."""
    target = tmp_path_factory.mktemp("giant") / "giant.brand"
    samples = [{"number": n, "text": text(n) if n != 77 else text(77) * 400} for n in range(200)]
    brand.pack(samples, target, {"number": "int", "text": "str"}, chunk_size=16, compression="none", jobs=1)
    return target


@pytest.mark.parametrize("memory", [20_000, 40_000, 1.0])
def test_a_sample_that_is_larger_than_the_memory(one_giant: Path, memory: int | float) -> None:
    """It is read exactly, or held where it fits; the others come as ever."""
    with running_server(one_giant, memory=memory) as server, drawing(one_giant, server.address, fields=FIELDS) as ds:
        sampler = BrandSampler(ds, seed=9)
        for epoch in range(2):
            asked = list(sampler)
            found = [sample for first in range(0, 200, 20) for sample in ds.__getitems__(asked[first : first + 20])]
            assert [index for index, _, _ in found] == planned(sampler, one_giant, epoch)
            assert all(words == (text(i) if i != 77 else text(77) * 400) for i, _, words in found)
        if isinstance(memory, int):
            assert server.memory_bytes < len(text(77)) * 400


@places.IN_A_FOLDER
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["error", "short", "wrong"])
def test_a_read_that_goes_wrong(texts: Path, kind: str, lies_in: str) -> None:
    """Large reads of some chunks fail, end early or bring other bytes; the files themselves are right."""
    storage = FaultyStorage(Fault(chunk=3, kind=kind), Fault(chunk=11, first=2000, kind=kind))  # type: ignore[arg-type]
    with running_server(texts, memory=0.5, storage=storage) as server:
        with drawing(texts, server.address, fields=FIELDS) as data_set:
            sampler = BrandSampler(data_set, seed=10)
            for epoch in range(2):
                assert take(data_set, sampler) == planned(sampler, texts, epoch)
            storage.faults.clear()
            assert take(data_set, sampler) == planned(sampler, texts, 2)
        facts = server.facts()
    assert (facts["failed_reads"] > 0) == (kind != "wrong")
    assert (facts["direct"] > 0) == (kind != "wrong")


@places.IN_A_FOLDER
@pytest.mark.slow
def test_wrong_bytes_are_never_taken_for_checked(texts: Path, lies_in: str) -> None:
    """Half of memory is wrong, for all epochs: every draw of it is found out and read exactly."""
    storage = FaultyStorage(*(Fault(chunk=chunk, kind="wrong") for chunk in range(0, 38, 2)))
    with running_server(texts, memory=1.0, storage=storage) as server:
        for seed in (0, 0, 1):  # one client after the other, as one that checks tells the server
            with drawing(texts, server.address, fields=FIELDS) as data_set:
                sampler = BrandSampler(data_set, seed=seed)
                assert take(data_set, sampler) == planned(sampler, texts, 0)


def damaged_copy(texts: Path, tmp_path: Path) -> Path:
    """A copy of the texts that may be damaged."""
    target = tmp_path / "damaged.brand"
    for path in texts.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(texts)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return target


@pytest.mark.slow
@pytest.mark.parametrize("what", ["byte", "short", "gone"])
@pytest.mark.parametrize("memory", [0.02, 1.0])
def test_damage_is_told_by_file_chunk_and_sample(texts: Path, tmp_path: Path, what: str, memory: float) -> None:
    """A byte has changed, a file is too short or gone: the draw that meets it raises, others bring what is asked."""
    path = damaged_copy(texts, tmp_path)
    data = StoredDataSet(path)
    place = 5 * 32 + 9
    row = data.rows(place, place + 1)[0]
    file = chunk_path(path, 5)
    content = bytearray(file.read_bytes())
    if what == "byte":
        content[int(row["offset"]) + int(row["size"]) // 2] ^= 1
        file.write_bytes(content)
        bad = {int(row["index"])}
    elif what == "short":
        file.write_bytes(content[: int(row["offset"])])
        bad = set(data.indices(np.arange(place, 6 * 32)).tolist())
    else:
        file.unlink()
        bad = set(data.indices(np.arange(5 * 32, 6 * 32)).tolist())
    with running_server(path, memory=memory) as server, drawing(path, server.address, fields=FIELDS) as data_set:
        sampler = BrandSampler(data_set, seed=11)
        want = planned(sampler, path, 0)
        asked = list(sampler)
        for first in range(0, SAMPLES, 30):
            tickets, expected = asked[first : first + 30], want[first : first + 30]
            if not bad & set(expected):
                assert take(data_set, tickets) == expected
                continue
            with pytest.raises(MissingFileError if what == "gone" else FormatError) as told:
                take(data_set, tickets)
            assert told.value.sample in bad & set(expected)
            assert (told.value.chunk, told.value.path) == (5, places.named(data, 5))


@pytest.mark.slow
def test_a_server_ends_while_storage_hangs(texts: Path) -> None:
    """`stop` does not wait for reads that never end."""
    with BlockedStorage() as storage:
        with running_server(texts, depth=2, storage=storage) as server, greeted(server.address, texts) as client:
            client.begin(client.order(order_of(texts)), 0)
            wait_until(lambda: storage.waiting == 2, "reads hang")
        assert storage.waiting == 2


def clients_and_reads(server: RunningServer) -> tuple[int, int]:
    """How many are connected, and how many reads are on their way."""
    facts = server.facts()
    return facts["clients"], facts["reading"]


def test_clients_that_hang_up_at_any_moment(texts: Path) -> None:
    """While a draw waits, while a lease is held, in the middle of a message: nothing stays behind."""
    with BlockedStorage() as storage, running_server(texts, memory=0.2, depth=2, storage=storage) as server:
        with greeted(server.address, texts) as client:  # a draw waits
            number = client.order(order_of(texts))
            client.begin(number, 0)
            client.send(pack_draw(number, 0, np.arange(10)))
            wait_until(lambda: server.facts()["waiting"] == 1, "the draw waits")
        wait_until(lambda: clients_and_reads(server)[0] == 1, "it is gone")
        assert server.facts()["waiting"] == 0
        storage.release()
        with greeted(server.address, texts) as client:  # a lease is held
            number = client.order(order_of(texts))
            client.begin(number, 0)
            client.send(pack_draw(number, 0, np.arange(10)))
            assert (client.lease().state > 0).all()
            assert server.facts()["memory"]["leased"] > 0
            client.send(pack_draw(number, 0, np.arange(10, 20))[:30])  # half a message
        wait_until(lambda: clients_and_reads(server) == (1, 0), "it is gone")
        facts = server.facts()["memory"]
        assert facts["leased"] == 0
        assert facts["used"] == facts["cached"]
