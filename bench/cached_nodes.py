"""How many bytes do three nodes take from storage, from each other and from cache folders, for each placement?

    python -m bench.cached_nodes --work SCRATCH [--out FILE]

The setting of HDMLP in small: three data servers, each with memory for 5 % of the data and a cache folder for 20 %, and
one storage for all of them that gives 120 MB/s and 400 reads a second (`nas`). Each node has a rank. The ranks fetch
epochs of `order="uniform"` in batches of 8, in step. Nothing is decoded. Every epoch is checked: each rank gets the
samples of its positions, in their order, and all ranks together get each sample once.

`connected`: the servers are joined by gRPC on loopback, so that each sample has one home node, and the folders hold
different samples. `alone`: each server reads what its own rank fetches. The placements are those of `brand.Cache`; with
`none` there is no folder. Connected servers use `even` for any placement, and say so. `connected, a node dies`: the
server of the third node ends in the middle of the fifth epoch. Its rank waits until it has started again, a second
later, with empty memory.

Columns: bytes of an epoch, as a fraction of the data, from the second epoch on (`storage`, `peers`, `folder`; the rest
is in memory), measured and predicted; `s`: measured seconds of an epoch; `direct`: samples that clients read past the
servers, in all epochs. The prediction for connected servers is that of `brand simulate`. It cannot have servers that
are alone, so theirs is a model of the fetches here (`alone_bytes`).
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import brand
from bench.harness import progress, save, show, table
from brand import Cache
from brand.errors import ServerError
from brand.node.client.client import Client
from brand.node.client.session import DrawResult
from brand.node.decide.cache.keeping import AHEAD_MOST, AHEAD_SHARE
from brand.node.decide.state.choosing import ON_TOP, SLACK_SHARE, Placement
from brand.node.decide.state.members import ALONE
from brand.node.setup.choose import Nodes, choose_order, facts_of
from brand.node.setup.measure import lay_out, stored_sizes
from brand.node.setup.server_spec import ServerSpec
from brand.orders.base.placement import choose_kept, place, unit_count
from brand.orders.order import Order
from brand.simulate.running import SimulatedRun, work_of
from brand.simulate.storages import BUILT_IN
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import RunningServer, running_server
from brand.testing.storage import Habit, _Pending
from tests.several_nodes.support import Rank, all_open, check_epoch, draw_in_step
from tests.support import wait_until
from tests.tools.cluster import RunningCluster, running_cluster

NODES: Final = 3
MEMORY: Final = 0.05
FOLDER: Final = 0.2
BATCH: Final = 8
DIES: Final = 4
"""The epoch in which a node dies."""
DEAD_S: Final = 1.0
PATIENCE_S: Final = 60.0

Bytes = NDArray[np.float64]
"""Bytes of each epoch from storage, from other nodes and from folders, shape (epochs, 3)."""


class Nas(Habit):
    """A storage that serves one read after the other: 120 MB/s and 400 reads a second, for all its readers together."""

    def __init__(self) -> None:
        super().__init__(None)
        self._lock, self._free_s = threading.Lock(), 0.0

    def _read(self, pending: _Pending) -> None:
        nas = BUILT_IN["nas"]
        takes_s = float(nas.seconds(np.array([float(pending.call.size)]), np.ones(1))[0])
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic()) + takes_s
            end_s = self._free_s
        time.sleep(max(0.0, end_s - time.monotonic()))
        pending.do()


class Patient(Client):
    """A client that fetches again if its server has ended, until the server is there again."""

    def draw(self, *given: Any, **named: Any) -> list[DrawResult]:
        """Fetch samples as `Client.draw` does, for up to `PATIENCE_S`."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return super().draw(*given, **named)
            except ServerError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to cache."""

    name: str
    placement: Placement | None
    """None if there is no folder."""
    dies: bool = False

    @property
    def connected(self) -> bool:
        """Whether the servers are connected."""
        return self.name.startswith("connected")

    def cache(self, folder: Path, limit: int, epochs: int) -> Cache | None:
        """Return the cache of a node in a new folder, of at most `limit` bytes. None if there is none."""
        if self.placement is None:
            return None
        folder.mkdir(parents=True)
        return Cache(folder, limit, placement=self.placement, epochs=epochs)


ARMS: Final = (
    Arm("connected, none", None),
    Arm("connected, even", "even"),
    Arm("connected, a node dies", "even", dies=True),
    Arm("alone, none", None),
    Arm("alone, even", "even"),
    Arm("alone, frequency", "frequency"),
    Arm("alone, next", "next"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The counts of the servers, by epoch."""

    bytes: Bytes
    seconds: list[float]
    direct: int
    cached: list[float]
    """Cached bytes of each node's memory at the end, as a fraction of the data."""


@contextmanager
def serve(
    arm: Arm, path: Path, work: Path, limit: int, epochs: int
) -> Iterator[tuple[list[str], RunningCluster | None]]:
    """Serve the data set by three nodes that share a storage. Yields their addresses, and the cluster if any."""
    storage = Nas()
    caches = [arm.cache(work / arm.name.replace(", ", "-") / str(node), limit, epochs) for node in range(NODES)]
    if arm.connected:
        habits = dict.fromkeys(range(NODES), storage)
        with running_cluster(path, nodes=NODES, memory=MEMORY, storage=habits, caches=caches) as cluster:
            wait_until(lambda: all_open(cluster), "all nodes can be reached")
            yield cluster.addresses, cluster
        return
    with ExitStack() as stack:
        found: list[RunningServer] = [
            stack.enter_context(running_server(path, memory=MEMORY, storage=storage, cache=cache)) for cache in caches
        ]
        yield [server.address for server in found], None


def measure(arm: Arm, path: Path, order: Order, work: Path, limit: int, epochs: int) -> Measured:
    """Fetch epochs on all nodes. Raises `AssertionError` if a rank gets another sample than its plan's."""
    data, counted, seconds = StoredDataSet(path), [np.zeros(3)], list[float]()
    before = np.zeros(3)  # of a server that has ended
    with ExitStack() as stack, serve(arm, path, work, limit, epochs) as (addresses, cluster):
        clients = [
            stack.enter_context(
                closing(Patient(ServerSpec(str(path), address), data.id, data.mean_bytes, arm.name, attach=True))
            )
            for address in addresses
        ]
        ranks = [Rank(client, order, rank, NODES, batch=BATCH) for rank, client in enumerate(clients)]

        def facts() -> list[dict[str, Any]]:
            return [client.stats() for client in clients]

        def disturb(batches: int) -> None:
            nonlocal before
            if cluster is not None and batches == len(data) // NODES // BATCH // 2:
                before = _bytes([clients[2].stats()], data.mean_bytes)
                cluster.kill(2)
                threading.Timer(DEAD_S, cluster.restart, [2]).start()

        for epoch in range(epochs):
            began_s = time.monotonic()
            between: Callable[[int], None] = disturb if arm.dies and epoch == DIES else lambda _: None
            draw_in_step(ranks, [epoch], between)
            seconds.append(time.monotonic() - began_s)
            check_epoch(ranks, epoch)
            counted.append(_bytes(facts(), data.mean_bytes) + before)
        last = facts()
    stored = float(stored_sizes(data).sum())
    cached = [each["memory"]["cached"] / stored for each in last]
    return Measured(np.diff(counted, axis=0), seconds, sum(each["direct"] for each in last), cached)


def _bytes(facts: Sequence[dict[str, Any]], mean_bytes: float) -> NDArray[np.float64]:
    """Return the bytes from storage, from other nodes and from folders that servers have counted."""
    storage = sum(each["read_bytes"] + each["direct"] * mean_bytes for each in facts)
    folder = sum(each["cache"]["read_bytes"] for each in facts if each["cache"] is not None)
    return np.array([storage, sum(each["received_bytes"] for each in facts), folder], np.float64)


def connected_bytes(path: Path, arm: Arm, limit: int, epochs: int) -> tuple[Order, Bytes]:
    """Return the order of connected servers, and the prediction of `brand simulate`."""
    data = StoredDataSet(path)
    sizes = stored_sizes(data)
    order = choose_order(facts_of(data), 0, "uniform", None, MEMORY, Nodes(NODES, NODES, None))
    cache_bytes = 0 if arm.placement is None else limit
    run = SimulatedRun(sizes, order, MEMORY, None, NODES, NODES, BATCH, cache_bytes)
    found = np.zeros((epochs, 3))
    for epoch, works in enumerate(work_of(run, range(epochs))):
        for work in works:
            found[epoch] += [work.read_bytes + work.exact_bytes.sum(), work.sent_bytes, work.cache_bytes]
    return order, found


def alone_bytes(order: Order, sizes: NDArray[np.uint32], placement: Placement | None, limit: int, epochs: int) -> Bytes:
    """Return a prediction for three servers that are alone, from the fetches of their ranks.

    A server caches a random choice in memory, and in its folder samples that have no place in memory, from the time
    that its rank has fetched them. With `frequency`, memory and folder get the samples that the rank fetches most
    often, from the middle of the first epoch on. Until then the folder gets all samples, and keeps those that the
    second epoch fetches until they are read. With `next`, the folder keeps after each epoch the samples that are
    fetched soonest.
    """
    draws = np.stack([order.plan(epoch).sample_of for epoch in range(epochs)])
    found = np.zeros((epochs, 3))
    for rank in range(NODES):
        mine = draws[:, rank::NODES]
        counts = np.bincount(mine.ravel(), minlength=len(sizes))
        random, often = _kept(order, sizes, None), _kept(order, sizes, -counts)
        memory = often if placement == "frequency" else random
        room = np.array([limit - limit // SLACK_SHARE if placement in ("next", "frequency") else limit])
        cost = sizes.astype(np.int64) + (ON_TOP if placement in ("next", "frequency") else 0)
        key = np.random.default_rng(rank).permutation(len(sizes)) / len(sizes)
        placed = np.zeros(len(sizes), np.bool_)
        if placement in ("even", "frequency"):
            wanted = np.where(memory, np.inf, key - (counts if placement == "frequency" else 0))
            placed = place(wanted, np.where(memory, 0, cost), room) > 0
            placed &= ~memory
        in_memory, in_folder = np.zeros((2, len(sizes)), np.bool_)
        for epoch, drawn in enumerate(mine):
            folder = in_folder[drawn]
            stored = ~folder & ~in_memory[drawn]
            found[epoch] += [sizes[drawn[stored]].sum(), 0, sizes[drawn[folder]].sum()]
            early = drawn[: len(drawn) // 2] if epoch == 0 and placement == "frequency" else drawn[:0]
            kept = memory[drawn] & (random[drawn] | ~np.isin(drawn, early))
            in_memory[drawn[kept]] = True
            if placement == "next":
                here = in_folder.copy()
                here[drawn] = True
                here &= ~memory
                in_folder = _soonest(here, mine[epoch + 1 :], cost, room, key)
            else:
                in_folder[drawn[placed[drawn]]] = True
                in_folder &= placed
                in_folder[np.intersect1d(early, mine[min(1, epochs - 1)])] = True
    return found


def _kept(order: Order, sizes: NDArray[np.uint32], key: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """Return a mask of the samples that the memory of a server that is alone caches."""
    layout = lay_out(sizes, MEMORY, None, ALONE)
    pages = layout.allocator.count - 1
    room = pages - min(pages // AHEAD_SHARE, AHEAD_MOST // layout.allocator.page)
    if key is not None:
        key = np.pad(key, (0, unit_count(order.mapping, 1) - len(key)))
    return choose_kept(order.plan(0), layout.pages_of, room, 1, order.seed, key=key)


def _soonest(
    here: NDArray[np.bool_], later: NDArray[Any], cost: NDArray[np.int64], room: NDArray[Any], key: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which of the samples `here` a folder keeps: those that the `later` epochs fetch soonest."""
    until = np.full(len(cost), len(later), np.int64)
    for distance in range(len(later) - 1, -1, -1):
        until[later[distance]] = distance
    fetched = here & (until < len(later))
    kept: NDArray[np.bool_] = place(np.where(fetched, until + key, np.inf), np.where(fetched, cost, 0), room) > 0
    return kept & fetched


def pack(work: Path, samples: int) -> Path:
    """Return a data set of samples of 62 to 74 kB, which is made if it is missing."""
    target, rng = work / f"cached-nodes-{samples}.brand", np.random.default_rng(0)
    if not target.exists():
        rows = ({"data": rng.bytes(66_000 + number * 997 % 8000)} for number in range(samples))
        brand.pack(rows, target, {"data": "bytes"}, chunk_size=64, compression="none", jobs=1)
    return target


def main() -> None:
    """Measure all arms, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="an empty scratch folder, for 1 GB")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--samples", type=int, default=2400)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--only", nargs="*", help="names of arms")
    given = parser.parse_args()
    path = pack(given.work, given.samples)
    sizes = stored_sizes(StoredDataSet(path))
    stored, limit = int(sizes.sum(dtype=np.int64)), int(FOLDER * int(sizes.sum(dtype=np.int64)))
    rows, by_epoch, results = list[list[str]](), dict[str, list[str]](), dict[str, Any]()
    none_of: dict[bool, float] = {}
    for arm in ARMS:
        if given.only and arm.name not in given.only:
            continue
        progress(arm.name)
        order, predicted = connected_bytes(path, arm, limit, given.epochs)
        if not arm.connected:
            predicted = alone_bytes(order, sizes, arm.placement, limit, given.epochs)
        found = measure(arm, path, order, given.work / "folders", limit, given.epochs)
        ours, theirs = found.bytes[1:].mean(axis=0) / stored, predicted[1:].mean(axis=0) / stored
        none_of.setdefault(arm.connected, float(ours[0]))
        pairs = [f"{100 * one:.1f}; {100 * other:.1f}" for one, other in zip(ours, theirs, strict=True)]
        progress(f"{arm.name}: {', '.join(pairs)}; {found.direct} direct")
        later_s = float(np.mean(found.seconds[1:]))
        rows.append([arm.name, *pairs, f"{ours[0] / none_of[arm.connected]:.2f}", f"{later_s:.1f}", str(found.direct)])
        for source, name in enumerate(("storage", "peers", "folder")):
            if predicted[:, source].any() or found.bytes[:, source].any():
                shares = zip(found.bytes[:, source] / stored, predicted[:, source] / stored, strict=True)
                by_epoch[f"{arm.name}: {name}"] = [f"{100 * one:.1f}; {100 * other:.1f}" for one, other in shares]
        results[arm.name] = {
            "bytes": found.bytes.tolist(),
            "predicted_bytes": predicted.tolist(),
            "seconds": found.seconds,
            "direct": found.direct,
            "cached in memory": found.cached,
        }
    columns = ["", "storage %", "peers %", "folder %", "storage, of none", "s", "direct"]
    show("\nan epoch after the first one, in per cent of the data: measured; predicted\n" + table(columns, rows))
    epochs = [str(epoch + 1) for epoch in range(given.epochs)]
    show(
        "\nby epoch, in per cent of the data: measured; predicted\n"
        + table(["", *epochs], ([k, *v] for k, v in by_epoch.items()))
    )
    if given.out:
        settings = {
            "samples": given.samples,
            "epochs": given.epochs,
            "memory": MEMORY,
            "folder": FOLDER,
            "batch": BATCH,
        }
        save(given.out, __doc__, settings, [], results)


if __name__ == "__main__":
    main()
