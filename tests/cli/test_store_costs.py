"""What a run asks of a store: as `brand simulate` says before, as the server counts, and as the store itself counts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from brand import BrandDataset, BrandSampler, pack
from brand.node.setup.measure import stored_sizes
from brand.orders import Stripes, Uniform
from brand.orders.order import MAX_EPOCH
from brand.simulate.running import SimulatedRun, work_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.profile.profile import STORE, Profile, busy_bytes, load_profile, save_profile
from brand.testing.node import RunningServer, running_server
from tests import places
from tests.shop import Shop, shop
from tests.support import brand

pytestmark = pytest.mark.slow

LAST = (MAX_EPOCH - 1, MAX_EPOCH)
"""The last two epochs that there are: the server reads nothing ahead for a next one."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 texts of many lengths."""
    target = tmp_path_factory.mktemp("costs") / "texts.brand"
    samples = ({"n": n, "text": f"{n} " * (1 + n * 7919 % 97)} for n in range(3000))
    pack(samples, target, {"n": "int", "text": "str"}, chunk_size=250, jobs=1)
    return target


@pytest.fixture
def s3(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """They, in S3."""
    with shop("s3", tmp_path, monkeypatch) as opened:
        shutil.copytree(texts, opened.folder())
        yield opened


Running = Callable[[Shop, float], RunningServer]


@pytest.fixture
def running() -> Iterator[Running]:
    """Servers in this process, which is patient: what they ask for again is none of what they are to ask for."""
    with ExitStack() as stack:
        yield lambda opened, memory: stack.enter_context(running_server(opened.url(), memory=memory))


def drawn(data: BrandDataset, sampler: BrandSampler, epoch: int) -> list[int]:
    """The numbers of all samples of an epoch, in order."""
    sampler.set_epoch(epoch)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    return sorted(int(n) for (batch,) in loader for n in batch)


def run_of(s3: Shop, sampler: BrandSampler, memory: float) -> SimulatedRun:
    """The run that a server makes of it, in batches of 16, for a simulation."""
    busy = busy_bytes(load_profile(s3.url()))
    return SimulatedRun(stored_sizes(StoredDataSet(s3.url())), sampler.order, memory, batch=16, busy_bytes=busy)


@places.turns("memory")
@pytest.mark.parametrize("memory", [0.3, 1.0])
@pytest.mark.parametrize("order", [Stripes(length=16), Uniform()], ids=["stripes", "uniform"])
def test_simulation_server_and_store_count_the_same(
    s3: Shop, running: Running, memory: float, order: Stripes | Uniform
) -> None:
    """Requests and bytes of a run of two epochs, to the last one; there is no other request for a chunk."""
    data = BrandDataset(s3.url(), fields=("n",), server=running(s3, memory).address, order=order)
    sampler = BrandSampler(data)
    run = run_of(s3, sampler, memory)
    works = [work for (work,) in work_of(run, range(2))]
    stripe = ("--stripe", 16) if isinstance(order, Stripes) else ("--order", "uniform")
    told = brand("simulate", s3.url(), "--memory", memory, "--epochs", 2, "--batch", 16, *stripe, "--json")
    counted = [(each["reads"], each["direct"], each["read_bytes"]) for each in told.json["rows"][0]["epochs"]]
    assert counted == [(work.reads, work.direct, work.read_bytes) for work in works]
    s3.store.requests.clear()
    assert [drawn(data, sampler, epoch) for epoch in LAST] == [list(range(3000))] * 2
    asked = [request for request in s3.store.requests if "/chunks/" in request.key]
    works = [work for (work,) in work_of(run, range(LAST[0], LAST[1] + 1))]
    expected = {"requests": sum(work.reads for work in works), "bytes": sum(work.read_bytes for work in works)}
    found = data.stats()["store"]
    assert found == {"requests": len(asked), "bytes": sum(request.sent for request in asked)}
    if memory == 1:
        assert found == expected
    else:
        # A sample that is drawn at the end of an epoch and again soon may stay in memory meanwhile. Of single samples,
        # those that are drawn before the server has chosen what it keeps are read again for that.
        most = 1 if isinstance(order, Stripes) else 1.01
        assert all(0.98 * size <= found[name] <= most * size for name, size in expected.items())
    assert sum(work.direct for work in works) == 0
    assert {request.operation for request in s3.store.requests} == {"GET"}


def test_one_epoch_costs_just_what_was_said(s3: Shop, running: Running) -> None:
    """With little memory, too, where no epoch comes before it or after it."""
    data = BrandDataset(s3.url(), fields=("n",), server=running(s3, 0.3).address, order=Stripes(length=16))
    sampler = BrandSampler(data)
    run = run_of(s3, sampler, 0.3)
    [[work]] = work_of(run, range(MAX_EPOCH, MAX_EPOCH + 1))
    assert drawn(data, sampler, MAX_EPOCH) == list(range(3000))
    assert data.stats()["store"] == {"requests": work.reads, "bytes": work.read_bytes}


def test_exact_reads_count(s3: Shop, running: Running) -> None:
    """Each is a request for the bytes of its sample."""
    data = BrandDataset(s3.url(), fields=("n", "text"), server=running(s3, 0.3).address)
    s3.store.requests.clear()
    for index in (5, 2999, 17):
        assert data[index] == (index, f"{index} " * (1 + index * 7919 % 97))
    asked = [request for request in s3.store.requests if "/chunks/" in request.key]
    assert data.stats()["store"] == {"requests": 3, "bytes": sum(request.sent for request in asked)}


def test_a_folder_has_no_store(texts: Path) -> None:
    """There is nothing to count."""
    data = BrandDataset(texts, fields=("n",), memory=0.3)
    next(iter(DataLoader(data, batch_size=16, sampler=BrandSampler(data))))
    assert data.stats()["store"] is None


def test_the_price_is_that_of_a_later_epoch(s3: Shop) -> None:
    """Requests, by the thousand, and gigabytes: as the table's own columns say."""
    told = brand("simulate", s3.url(), "--price-reads", 0.4, "--price-gb", 90, "--stripe", 8, "--json").json["rows"]
    later = told[0]["epochs"][-1]
    expected = (later["reads"] + later["direct"]) / 1000 * 0.4 + later["read_bytes"] / 1e9 * 90
    assert told[0]["price"] == pytest.approx(expected)


def test_the_storage_is_the_stores_profile(s3: Shop) -> None:
    """The built-in one until the store is measured, which is said; then the measured one."""
    told = brand("simulate", s3.url())
    assert "storage store (assumed)" in told.out.splitlines()[0]
    assert "The storage was not measured (`brand profile`)" in told.out
    rows = (tuple(speed / 10 for speed in row) for row in STORE.bytes_per_s)
    save_profile(Profile("s3://bucket", STORE.sizes, STORE.depths, tuple(rows), STORE.sequential / 10))
    told = brand("simulate", s3.url())
    assert "storage as measured" in told.out.splitlines()[0]
    assert "not measured" not in told.out
