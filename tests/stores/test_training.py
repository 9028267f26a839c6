"""Training from a store: what is asked of it, what it may do wrong, and what a training sees of that."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from brand.errors import ServerError
from brand.node.setup.caching import Cache
from brand.node.setup.server_spec import ServerSpec
from brand.stores import cloud
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.buckets import KEYS, Bucket, bucket
from tests.support import wait_until
from tests.tools.cluster import RunningCluster, running_cluster
from tests.tools.objects import Busy, Expired, Fault, Faults, Lost, Reset, Short, Stall
from tests.torch.support import indices_of, make_samples, make_set, openings

pytestmark = pytest.mark.slow

URL, COUNT = "s3://bucket/set.brand", 600
CHUNKS = "bucket/set.brand/chunks/*"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 samples of up to 3 kB in chunks of twenty."""
    return make_set(tmp_path_factory.mktemp("sets") / "set.brand", make_samples(COUNT, 3000), 20)


@pytest.fixture
def store(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A store that has the data set."""
    with bucket(tmp_path, monkeypatch) as found:
        shutil.copytree(folder, found.place("set.brand"))
        yield found


def of_chunks(store: Bucket) -> tuple[int, int]:
    """GETs of chunks since the last call, and the bytes that they brought; nothing but GETs was asked."""
    asked = list(store.store.requests)
    store.store.requests.clear()
    assert {request.operation for request in asked} <= {"GET"}
    found = [request for request in asked if "/chunks/" in request.key]
    return len(found), sum(request.sent for request in found)


def chunks_asked(store: Bucket) -> int:
    """GETs of chunks that were answered."""
    return sum("/chunks/" in request.key for request in list(store.store.requests))


def stored_bytes(folder: Path) -> int:
    """Of all samples."""
    return BrandDataset(folder)._source.data.manifest.stored_bytes


@pytest.mark.parametrize("order", ["stripes", "uniform", "slots"])
def test_a_training_asks_for_the_reads_of_its_plan_and_nothing_else(store: Bucket, folder: Path, order: str) -> None:
    """In the order of a folder. The manifest is read twice, by the training and by its server."""
    loaders = []
    with ExitStack() as stack:
        for where in (URL, folder):
            server = stack.enter_context(running_server(where, memory=0.4))
            data = BrandDataset(where, server=server.address, order=order, fields=("index",))  # type: ignore[arg-type]
            loaders.append((server, BrandLoader(data, 32, sampler=BrandSampler(data, seed=5))))
        (server, loader), (_, local) = loaders
        found = [indices_of(loader) for _ in range(2)]
        manifests = [request for request in store.store.requests if request.key.endswith("brand.json")]
        assert len(manifests) == 2
        wait_until(lambda: server.facts()["reads"] == chunks_asked(store), "no read is under way")
        facts = server.facts()
        assert of_chunks(store) == (facts["reads"], facts["read_bytes"])
        assert (facts["direct"], facts["failed_reads"]) == (0, 0)
        assert found == [indices_of(local) for _ in range(2)]


def test_a_cache_that_holds_all_asks_for_nothing(store: Bucket, folder: Path, tmp_path: Path) -> None:
    """As soon as it does, and from the start of the next training."""
    with running_server(URL, memory=0.2, cache=Cache(tmp_path / "ssd")) as server:
        data = BrandDataset(URL, server=server.address, fields=("index",))
        loader = BrandLoader(data, 16)
        for _ in range(20):  # what memory had no room for until it was written is written in a later epoch
            assert len(indices_of(loader)) == COUNT
            if server.facts()["cache"]["cached"] == COUNT:
                break
        assert server.facts()["cache"]["used"] == stored_bytes(folder)
        wait_until(lambda: server.facts()["reads"] == chunks_asked(store), "no read is under way")
        assert of_chunks(store)[1] >= stored_bytes(folder)
        assert len(indices_of(loader)) == COUNT
        assert of_chunks(store) == (0, 0)
    with running_server(URL, memory=0.2, cache=Cache(tmp_path / "ssd")) as server:
        data = BrandDataset(URL, server=server.address, fields=("index",))
        assert len(indices_of(BrandLoader(data, 16))) == COUNT
    assert of_chunks(store) == (0, 0)


def reached(cluster: RunningCluster, node: int) -> int:
    """How many other nodes a node can ask."""
    return len(cluster.facts(node)["cluster"]["reachable"])


@pytest.mark.usefixtures("one_job")
def test_three_nodes_fetch_each_byte_once(store: Bucket) -> None:
    """The node that owns a sample reads it, and sends it to whoever draws it."""
    with running_cluster(URL, nodes=3, memory=0.5) as cluster, ThreadPoolExecutor(3) as pool:
        wait_until(lambda: all(reached(cluster, node) == 2 for node in range(3)), "nodes are connected")
        of_chunks(store)

        def draw(rank: int) -> list[int]:
            data = BrandDataset(URL, server=cluster.addresses[rank], fields=("index",))
            return indices_of(BrandLoader(data, 10, sampler=BrandSampler(data, num_replicas=3, rank=rank)))

        assert sorted(index for found in pool.map(draw, range(3)) for index in found) == list(range(COUNT))
        assert [cluster.facts(node)["direct"] for node in range(3)] == [0, 0, 0]
    times = Counter((request.key, request.range) for request in store.store.requests if "/chunks/" in request.key)
    assert set(times.values()) <= {1, 2}  # the second time for the next epoch, which the nodes begin to read
    assert Counter(times.values())[2] < len(times) / 2


def test_faults_of_a_store_are_not_seen_by_a_training(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Refusals, resets, short bodies, stalls: every sample once, in the same order, without a word."""
    monkeypatch.setattr(cloud, "EAGER_STALL_S", 0.3)
    found = []
    for share in (0.0, 1.0):
        store.store.faults = Faults(
            Fault(Busy(), key=CHUNKS, share=0.1 * share),
            Fault(Reset(after=300), key=CHUNKS, share=0.1 * share),
            Fault(Short(after=300), key=CHUNKS, share=0.1 * share),
            Fault(Lost(), key=CHUNKS, share=0.05 * share),
            Fault(Stall(60, after=200), key=CHUNKS, share=0.05 * share),
            seed=4,
        )
        with running_server(URL, memory=0.3) as server, caplog.at_level(logging.WARNING):
            data = BrandDataset(URL, server=server.address, fields=("index",))
            loader = BrandLoader(data, 16, sampler=BrandSampler(data, seed=2))
            found.append([indices_of(loader) for _ in range(2)])
            facts = server.facts()
            assert (facts["failed_reads"], facts["replaced"]) == (0, [])
    assert found[0] == found[1]
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in found[1])
    assert not [record for record in caplog.records if "wait" not in record.getMessage()]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Lost(), r"no connection|error sending"),
        (Busy(), "SlowDown"),
        (Expired(), "the credentials have expired: renew"),
    ],
)
def test_a_store_that_fails_in_mid_epoch(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, fault: Lost | Busy | Expired, told: str
) -> None:
    """The error names URL and reason after the limit, also where draws may skip; a run that resumes goes on exactly."""
    monkeypatch.setattr(cloud, "PATIENCE_S", 0.5)
    with running_server(URL, memory=0.2) as server:
        data = BrandDataset(URL, server=server.address, fields=("index",), on_error="skip")
        whole = indices_of(BrandLoader(data, 16, sampler=BrandSampler(data, seed=2)))
        loader = BrandLoader(data, 16, sampler=BrandSampler(data, seed=2))
    with running_server(URL, memory=0.2) as server:
        data = BrandDataset(URL, server=server.address, fields=("index",), on_error="skip")
        loader = BrandLoader(data, 16, sampler=BrandSampler(data, seed=2))
        batches = iter(loader)
        found = [index for _ in range(3) for index in indices_of([next(batches)])]
        store.store.faults = Faults(Fault(fault, key=CHUNKS))
        with pytest.raises(ServerError, match=rf"s3://bucket/set\.brand/chunks/.*({told})"):
            found.extend(index for batch in batches for index in indices_of([batch]))
        state = loader.state_dict()
        store.store.faults = Faults()
    with running_server(URL, memory=0.2) as server:
        data = BrandDataset(URL, server=server.address, fields=("index",))
        loader = BrandLoader(data, 16, sampler=BrandSampler(data, seed=2))
        loader.load_state_dict(state)
        assert found + indices_of(loader) == whole


def test_a_chunk_that_is_replaced_in_mid_epoch(store: Bucket) -> None:
    """Is an error, and never a mixture of two data sets."""
    with running_server(URL, memory=0.2) as server:
        data = BrandDataset(URL, server=server.address, fields=("index",))
        loader = BrandLoader(data, 16)
        assert len(indices_of(loader)) == COUNT
        time.sleep(0.01)  # so that files have another time, of which the store makes its versions
        for chunk in (store.place("set.brand") / "chunks").iterdir():
            chunk.write_bytes(chunk.read_bytes())
        with pytest.raises(ServerError, match="was replaced while it was in use: open the data set again"):
            indices_of(loader)


def test_no_secret_is_seen_by_others(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the command line of a process, in what a server is told, in stats or in the address of a server."""
    told: list[str] = []
    plain = ServerSpec.to_json

    def to_json(spec: ServerSpec) -> str:
        told.append(plain(spec))
        return told[-1]

    monkeypatch.setattr(ServerSpec, "to_json", to_json)
    with openings() as opened:
        data = opened(URL, memory=0.4, fields=("index",))
        next(iter(BrandLoader(data, 8)))
        stats = data.stats()
        lines = []
        for process in os.listdir("/proc"):
            if process.isdigit():
                try:
                    lines.append((Path("/proc") / process / "cmdline").read_bytes())
                except OSError:  # it has ended meanwhile
                    continue
    assert len(told) == 1
    assert KEYS.secret not in f"{told}{stats}{data!r}"
    assert not [line for line in lines if f"AWS_SECRET_ACCESS_KEY={KEYS.secret}".encode() in line]
