"""Real servers that are alone: each has a folder of its own, and its rank draws a quarter of each epoch."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.errors import UsageError
from brand.node.decide.state.choosing import Placement
from brand.node.setup.caching import Cache
from brand.node.setup.measure import stored_sizes
from brand.orders.policies.uniform import UniformPolicy
from brand.storage.cache.cachefiles import BLOCK
from brand.storage.cache.cachefolder import CacheFolder
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import RunningServer, running_server
from tests.made_orders import order_of
from tests.several_nodes.support import Rank, check_epoch, draw_in_step, node_of
from tests.support import wait_until

SAMPLES = 240
EPOCHS = 8
RANKS = 4


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of about 70 kB."""
    target = tmp_path_factory.mktemp("alone") / "large.brand"
    random = np.random.default_rng(0)
    samples = [{"data": random.bytes(66_000 + number * 997 % 8000)} for number in range(SAMPLES)]
    brand.pack(samples, target, {"data": "bytes"}, chunk_size=16, compression="none", jobs=1)
    return target


def quiet(server: RunningServer) -> bool:
    """Whether nothing is on its way into the folder, or out of it."""
    core = server.node._state.core
    return not core.caching.writing._pages and not core.caching._lost and not core.reads.under_way


def at_rest(server: RunningServer) -> bool:
    """Whether `quiet` holds before and after a turn of the loop: within a turn it may hold for a moment."""
    return quiet(server) and bool(server.facts()) and quiet(server)


@pytest.mark.usefixtures("folders_always")
@pytest.mark.slow
@pytest.mark.parametrize("placement", ["auto", "frequency", "even"])
def test_four_servers_that_are_alone(large: Path, tmp_path: Path, placement: Placement) -> None:
    """All ranks together draw each sample once an epoch. With `next`, far less comes from the storage.

    What a folder says that it holds is there, byte for byte, and no folder takes more than its limit.
    """
    data = StoredDataSet(large)
    sizes = stored_sizes(data)
    limit = int(sizes.sum()) // 4 + SAMPLES // 4 * BLOCK
    folders = [tmp_path / str(rank) for rank in range(RANKS)]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        caches = [Cache(folder, f"{limit}B", placement=placement, epochs=EPOCHS) for folder in folders]
        servers = [stack.enter_context(running_server(large, memory=0.3, cache=cache)) for cache in caches]
        clients = [stack.enter_context(closing(node_of(large, server.address))) for server in servers]
        order = order_of(large, UniformPolicy(2))
        ranks = [Rank(client, order, rank, RANKS, batch=4) for rank, client in enumerate(clients)]
        read = []
        for epoch in range(EPOCHS):
            draw_in_step(ranks, [epoch], lambda _: wait_until(lambda: all(map(quiet, servers)), "all is written"))
            check_epoch(ranks, epoch)
            read.append(sum(server.facts()["read_samples"] for server in servers))
        facts = [server.facts() for server in servers]
        for client in clients:  # else what is read ahead still comes and goes
            client.close()
        wait_until(lambda: all(not server.node._state.core.epochs.runs for server in servers), "all runs have ended")
        wait_until(lambda: all(map(at_rest, servers)), "all is written")
        holds = [server.facts()["cache"]["cached"] for server in servers]
    assert sum(rank.late for rank in ranks) == sum(each["direct"] for each in facts)
    later = (read[-1] - read[3]) / (SAMPLES * (EPOCHS - 4))
    kept = np.mean([each["memory"]["cached"] / each["memory"]["limit"] for each in facts]) * 0.3
    assert {each["cache"]["state"] for each in facts} <= ({"full", "filling"} if placement == "even" else {"changing"})
    assert later < {"auto": 0.55, "frequency": 0.72, "even": 0.8}[placement] * (1 - kept)
    for folder, each, held in zip(folders, facts, holds, strict=True):
        assert each["cache"]["used"] <= limit
        assert each["cache"]["bad"] == 0
        parts = list(folder.glob("brand-cache/*/chunks/*.part"))
        assert sum(part.stat().st_blocks * 512 for part in parts) <= limit + 16 * BLOCK
        with closing(CacheFolder(str(folder), data, sizes, limit)) as found:
            assert found.held.sum() == held
            for place in np.flatnonzero(found.held).tolist():
                row = data.rows(place, place + 1)[0]
                span = slice(int(row["offset"]), int(row["offset"]) + int(row["size"]))
                name = f"{place // 16:08d}"
                part = folder / "brand-cache" / data.id / "chunks" / f"{name}.part"
                assert part.read_bytes()[span] == (large / "chunks" / f"{name}.brand").read_bytes()[span]


def test_wrong_use_of_a_placement(tmp_path: Path) -> None:
    """The message says what to give."""
    with pytest.raises(UsageError, match="'auto', 'even', 'next', 'frequency'"):
        Cache(tmp_path, placement="best")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs epochs="):
        Cache(tmp_path, placement="frequency")
    for epochs in (0, -1, 1 << 17, 2.5, True):
        with pytest.raises(UsageError, match="epochs="):
            Cache(tmp_path, epochs=epochs)  # type: ignore[arg-type]
    cache = Cache(tmp_path, "1GB", placement="frequency", epochs=90)
    assert Cache(**cache.to_json()) == Cache(str(tmp_path), "1GB", placement="frequency", epochs=90)
