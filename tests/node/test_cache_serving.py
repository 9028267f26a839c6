"""A real server with a cache folder: which bytes come from where, and what if the folder is broken."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.errors import CacheError, UsageError
from brand.node.setup.caching import Cache, parse_cache
from brand.node.setup.measure import stored_sizes
from brand.orders.base.policy import Policy
from brand.orders.order import MAX_EPOCH
from brand.orders.policies.uniform import UniformPolicy
from brand.simulate.running import SimulatedRun, work_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.device import device_name, mount_of
from brand.storage.profile.profile import Profile, busy_bytes, load_profile, save_profile
from brand.testing.node import RunningServer, running_server
from brand.testing.storage import CountedStorage, Fault, FaultyStorage
from brand.torch import BrandDataset, BrandSampler
from tests import places
from tests.made_orders import SLOTS, STRIPES, order_of
from tests.node.conftest import SAMPLES, text
from tests.node.support import drawing
from tests.several_nodes.support import Rank, draw_in_step, node_of
from tests.support import Disk, wait_until

pytestmark = [places.EVERYWHERE, pytest.mark.usefixtures("folders_always")]

ALL = 10**9


def bytes_of(path: Path) -> int:
    """Stored bytes of all samples."""
    return int(stored_sizes(StoredDataSet(path)).sum())


def draw(path: Path, server: RunningServer, epochs: int = 1) -> None:
    """Draw epochs; each brings each sample once, and as it was packed."""
    with drawing(path, server.address, fields=("index", "number", "text")) as data_set:
        sampler = BrandSampler(data_set, seed=3)
        for _ in range(epochs):
            found = []
            for first in range(0, SAMPLES, 40):
                tickets = [ticket for _, ticket in zip(range(40), sampler_iterator(sampler, first), strict=False)]
                for index, number, words in data_set.__getitems__(tickets):
                    assert (number, words) == (index, text(index))
                    found.append(index)
            assert sorted(found) == list(range(SAMPLES))


_iterators: dict[int, Any] = {}


def sampler_iterator(sampler: BrandSampler, first: int) -> Any:
    """The tickets of an epoch, from its beginning where `first` is 0."""
    if not first:
        _iterators[id(sampler)] = iter(sampler)
    return _iterators[id(sampler)]


def written(server: RunningServer) -> dict[str, Any]:
    """What the server tells of its cache, once nothing is on its way to it."""

    def rests() -> bool:
        before = server.facts()
        return before["reading"] == 0 and server.facts() | {"uptime_s": 0} == before | {"uptime_s": 0}

    wait_until(rests, "all that waits is written")
    found: dict[str, Any] = server.facts()["cache"]
    return found


def fill(path: Path, folder: Path, **more: Any) -> dict[str, Any]:
    """A server has drawn until the folder holds all that it has room for; what it told at last."""
    with running_server(path, memory=0.3, cache=Cache(folder, **more)) as server:
        for _ in range(20):
            draw(path, server)
            facts = written(server)
            if facts["state"] == "full":
                return facts
    raise AssertionError(f"the cache is never full: {facts}")


def parts(folder: Path) -> list[Path]:
    """Files with pieces of chunks."""
    return sorted(folder.glob("brand-cache/*/chunks/*.part"))


@pytest.mark.slow
def test_all_comes_from_the_folder_once_it_is_there(texts: Path, tmp_path: Path) -> None:
    """Also for a server that starts later: it reads nothing from the storage any more, but fronts of chunks."""
    first = fill(texts, tmp_path)
    assert first["used"] == bytes_of(texts)
    assert first["cached"] == SAMPLES
    storage = CountedStorage()
    with running_server(texts, memory=0.3, cache=Cache(tmp_path), storage=storage) as server:
        draw(texts, server, 2)
        facts = server.facts()
    assert [read for read in storage.reads if not read.exact] == []
    assert (facts["reads"], facts["read_bytes"], facts["direct"]) == (0, 0, 0)
    assert facts["cache"]["read_bytes"] > bytes_of(texts)
    assert facts["cache"]["written_bytes"] == 0
    assert facts["read_amplification"] == 0


@places.turns("share")
@pytest.mark.slow
@pytest.mark.parametrize("share", [0.4, 1.0])
@pytest.mark.parametrize("policy", [STRIPES, SLOTS, UniformPolicy(2)], ids=["stripes", "slots", "uniform"])
def test_a_server_reads_what_is_predicted(texts: Path, tmp_path: Path, policy: Policy, share: float) -> None:
    """Reads and bytes of both sources, in an epoch after the folder is full, are those of `brand simulate`."""
    room, data = int(share * bytes_of(texts)), StoredDataSet(texts)
    busy = busy_bytes(load_profile(data.name))
    run = SimulatedRun(stored_sizes(data), order_of(texts, policy), 0.4, batch=16, cache_bytes=room, busy_bytes=busy)
    cache = Cache(tmp_path, f"{room}B")
    with running_server(texts, memory=0.4, cache=cache) as server, closing(node_of(texts, server.address)) as client:
        for epoch in range(20):
            draw_in_step([Rank(client, run.order, 0, 1)], [epoch])
            if written(server)["state"] == "full":
                break
        before = server.facts()
        draw_in_step([Rank(client, run.order, 0, 1)], [MAX_EPOCH])
        after = server.facts()
    *_, [work] = work_of(run, [*range(epoch + 1), MAX_EPOCH])  # what is cached follows from the first epochs
    assert before["cache"]["state"] == "full"
    assert after["reads"] - before["reads"] == work.reads
    assert after["read_bytes"] - before["read_bytes"] == work.read_bytes
    assert after["cache"]["reads"] - before["cache"]["reads"] == work.cache_reads
    assert after["cache"]["read_bytes"] - before["cache"]["read_bytes"] == work.cache_bytes
    assert after["direct"] - before["direct"] == work.direct
    assert work.cache_bytes > 0
    assert share < 1 or work.reads == 0


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def _flip(path: Path) -> None:
    data = np.fromfile(path, np.uint8)
    (data ^ 1).tofile(path)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [Path.unlink, _cut, _flip])
def test_a_broken_part_costs_time_and_nothing_else(texts: Path, tmp_path: Path, harm: Callable[[Path], object]) -> None:
    """A file that is gone or short: its reads go to the storage. Bytes that changed: clients read those exactly."""
    fill(texts, tmp_path)
    for part in parts(tmp_path)[:5]:
        harm(part)
    with running_server(texts, memory=0.3, cache=Cache(tmp_path)) as server:
        draw(texts, server, 2)
        facts = server.facts()
    if harm is not _flip:
        assert facts["direct"] == 0
        assert facts["reads"] > 0
        assert facts["cache"]["bad"] == 5 * 32
        assert min(parts(tmp_path)).name == "00000005.part"
    else:
        assert facts["cache"]["bad"] == 5 * 32
    assert facts["cache"]["read_bytes"] > 0
    assert facts["failed_reads"] == 0


@places.IN_A_FOLDER
@pytest.mark.slow
def test_wrong_bytes_of_the_storage_are_not_cached(texts: Path, tmp_path: Path, lies_in: str) -> None:
    """A chunk whose reads are wrong without an error has no part afterwards that is wrong."""
    storage = FaultyStorage(Fault(chunk=2, kind="wrong", first=5000))
    with running_server(texts, memory=0.3, cache=Cache(tmp_path), storage=storage) as server:
        with drawing(texts, server.address) as data_set:
            sampler = BrandSampler(data_set, seed=3)
            data_set.__getitems__(list(sampler)[:600])
        written(server)
    data = StoredDataSet(texts)
    chunk_file, rows = (texts / "chunks" / "00000002.brand").read_bytes(), data.rows(64, 96)
    part = tmp_path / "brand-cache" / data.id / "chunks" / "00000002.part"
    if part.exists():
        for row in rows:
            span = slice(int(row["offset"]), int(row["offset"] + row["size"]))
            assert part.read_bytes()[span] in (chunk_file[span], bytes(int(row["size"])))


def test_a_second_server_reads_only(texts: Path, tmp_path: Path) -> None:
    """It has what the first one had published when it started."""
    with (
        running_server(texts, memory=0.3, cache=Cache(tmp_path)),
        running_server(texts, memory=0.3, cache=Cache(tmp_path)) as second,
    ):
        draw(texts, second)
        facts = second.facts()["cache"]
    assert (facts["state"], facts["written_bytes"], facts["cached"]) == ("reads only", 0, 0)


@pytest.mark.slow
def test_a_full_disk_is_told_and_training_goes_on(texts: Path, disk: Disk, caplog: Any) -> None:
    """State `full`; what is there is read on."""
    disk.mount("size=200k")
    with caplog.at_level(logging.WARNING), running_server(texts, memory=0.3, cache=Cache(disk.folder, ALL)) as server:
        draw(texts, server, 3)
        facts = written(server)
    assert facts["state"] == "full"
    assert 0 < facts["used"] < 200_000
    assert facts["read_bytes"] > 0
    assert caplog.text.count("no more samples are written to the cache") == 1


def test_a_folder_that_others_may_write_stops_the_server(texts: Path, tmp_path: Path) -> None:
    """With its name, and what to do."""
    (tmp_path / "brand-cache").mkdir()
    (tmp_path / "brand-cache").chmod(0o777)
    with pytest.raises(CacheError, match="chmod -R go-w"), running_server(texts, cache=Cache(tmp_path)):
        pass
    with running_server(texts, memory=0.3):
        pass


@places.IN_A_FOLDER
def test_a_slower_disk_is_not_used(
    texts: Path, disk: Disk, monkeypatch: Any, tmp_path: Path, caplog: Any, lies_in: str
) -> None:
    """By the profiles of both, at the size of a stripe."""
    disk.mount("size=1m")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "profiles"))
    fast = Profile(device_name(mount_of(texts)), (4096, 1 << 20), (1, 8), ((1e8, 1e9), (2e8, 2e9)), 2e9)
    device = device_name(mount_of(disk.folder))
    slow = replace(fast, device=device, bytes_per_s=((1e6, 1e7), (2e6, 2e7)), sequential=2e7)
    save_profile(fast)
    save_profile(slow)
    with caplog.at_level(logging.WARNING), running_server(texts, memory=0.3, cache=Cache(disk.folder)) as server:
        draw(texts, server)
        facts = server.facts()["cache"]
    assert (facts["state"], facts["read_bytes"], facts["written_bytes"]) == ("off", 0, 0)
    assert "is not used: its disk reads 18 MB/s, the storage of" in caplog.text
    save_profile(replace(slow, bytes_per_s=((2e8, 2e9), (4e8, 4e9)), sequential=4e9))
    with running_server(texts, memory=0.3, cache=Cache(disk.folder, ALL)) as server:
        assert server.facts()["cache"]["state"] == "filling"


@pytest.mark.slow
def test_a_training_starts_its_server_with_the_folder(texts: Path, tmp_path: Path) -> None:
    """`cache=` as a path or a `Cache`; what one training has cached, the next one reads."""
    for cache in (tmp_path, str(tmp_path), Cache(tmp_path, "1GB")):
        data_set = BrandDataset(texts, memory=0.5, cache=cache, fields=("index", "text"))
        try:
            sampler = BrandSampler(data_set, seed=1)
            for index, words in data_set.__getitems__(list(sampler)):
                assert words == text(index)
            facts = data_set.stats()
            assert facts["cache"]["folder"] == str(tmp_path)
        finally:
            data_set._source.port.client.close()
    assert json.loads(next(tmp_path.glob("brand-cache/*/cache.json")).read_text())["samples"] == SAMPLES


def test_wrong_use_of_a_cache(texts: Path, tmp_path: Path) -> None:
    """With `server=`, and sizes that are none."""
    with pytest.raises(UsageError, match=r"brand serve .* --cache FOLDER"):
        BrandDataset(texts, server="unix:@x", cache=tmp_path)
    for size in ("much", 0, -5, 1, "1000", (1 << 20) - 1, 1.5, True, "0GB"):
        with pytest.raises(UsageError):
            Cache(tmp_path, size)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Cache("")


@pytest.mark.parametrize(
    ("words", "folder", "size"),
    [
        ("/nvme", "/nvme", None),
        ("/nvme:100GB", "/nvme", 100 * 10**9),
        ("/a:b/c", "/a:b/c", None),
        ("/a:b:1.5GiB", "/a:b", 3 << 29),
        ("cache:5000000", "cache", 5_000_000),
    ],
)
def test_a_cache_on_the_command_line(words: str, folder: str, size: int | None) -> None:
    """A folder, and a size behind the last colon."""
    cache = parse_cache(words)
    assert (cache.folder, cache.limit_bytes) == (folder, size)
    assert Cache(**cache.to_json()).limit_bytes == size
