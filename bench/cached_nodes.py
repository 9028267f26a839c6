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

All arms run five times, in turns. Tables: bytes of an epoch, as a fraction of the data, from the second epoch on, by
source (the rest is in memory), measured and predicted; `s`: measured seconds of an epoch; `direct`: samples that
clients read past the servers, in all epochs; `orders equal`: runs in which each rank got the samples of the first arm's
first run, in their order. The prediction is that of `brand simulate`; no node dies in it.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.emulated import EmulatedStorage, pack
from bench.harness import progress, save, show, table
from brand import Cache
from brand.errors import ServerError
from brand.node.client.client import Client
from brand.node.client.session import DrawResult
from brand.node.decide.state.choosing import Placement
from brand.node.setup.choose import Nodes, choose_order, facts_of
from brand.node.setup.measure import stored_sizes
from brand.node.setup.server_spec import ServerSpec
from brand.orders.order import Order
from brand.simulate.running import SimulatedRun, work_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import RunningServer, running_server
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
SOURCES: Final = ("storage", "peers", "folder")

Bytes = NDArray[np.float64]
"""Bytes of each epoch from storage, from other nodes and from folders, shape (epochs, 3)."""


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
    order: str
    """A digest of the samples that each rank got in each epoch, in their order."""


@contextmanager
def serve(
    arm: Arm, path: Path, work: Path, limit: int, epochs: int
) -> Iterator[tuple[list[str], RunningCluster | None]]:
    """Serve the data set by three nodes that share a storage. Yields their addresses, and the cluster if any."""
    storage = EmulatedStorage()
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
    data, counted, seconds, order_of = StoredDataSet(path), [np.zeros(3)], list[float](), hashlib.sha256()
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
            for each in ranks:
                order_of.update(np.concatenate(each.drawn[epoch]).astype("<i8").tobytes())
            counted.append(_bytes(facts(), data.mean_bytes) + before)
        last = facts()
    stored = float(stored_sizes(data).sum())
    cached = [each["memory"]["cached"] / stored for each in last]
    return Measured(
        np.diff(counted, axis=0), seconds, sum(each["direct"] for each in last), cached, order_of.hexdigest()
    )


def _bytes(facts: Sequence[dict[str, Any]], mean_bytes: float) -> NDArray[np.float64]:
    """Return the bytes from storage, from other nodes and from folders that servers have counted."""
    storage = sum(each["read_bytes"] + each["direct"] * mean_bytes for each in facts)
    folder = sum(each["cache"]["read_bytes"] for each in facts if each["cache"] is not None)
    return np.array([storage, sum(each["received_bytes"] for each in facts), folder], np.float64)


def predict(path: Path, arm: Arm, limit: int, epochs: int) -> tuple[Order, Bytes]:
    """Return the order of connected servers, which all arms have, and the prediction of `brand simulate`."""
    data = StoredDataSet(path)
    order = choose_order(facts_of(data), 0, "uniform", None, MEMORY, Nodes(NODES, NODES, None))
    return order, simulated_bytes(order, stored_sizes(data), arm, limit, epochs)


def simulated_bytes(order: Order, sizes: NDArray[np.uint32], arm: Arm, limit: int, epochs: int) -> Bytes:
    """Return the prediction for an arm. No node dies in it."""
    run = SimulatedRun(
        sizes,
        order,
        MEMORY,
        nodes=NODES,
        ranks=NODES,
        batch=BATCH,
        cache_bytes=0 if arm.placement is None else limit,
        connected=arm.connected,
        placement=arm.placement or "auto",
        epochs=epochs,
    )
    found = np.zeros((epochs, 3))
    for epoch, works in enumerate(work_of(run, range(epochs))):
        for work in works:
            found[epoch] += [work.read_bytes + work.exact_bytes.sum(), work.sent_bytes, work.cache_bytes]
    return found


def difference(measured: float, predicted: float) -> str:
    """Return the difference from the prediction as a fraction of it; empty if nothing was predicted."""
    return f"{100 * (measured / predicted - 1):+.1f} %" if predicted else ""


def tables(
    found: dict[str, list[Measured]], predicted: dict[str, Bytes], stored: int
) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield the title, the columns and the rows of each table. `found` has the rounds of each arm."""
    by_source, by_arm, by_epoch = list[list[str]](), list[list[str]](), list[list[str]]()
    undisturbed = next(iter(found.values()))[0].order
    none_of: dict[bool, float] = {}
    for name, rounds in found.items():
        shares = np.stack([each.bytes for each in rounds]) / stored
        theirs = predicted[name] / stored
        later = shares[:, 1:].mean(axis=1)
        for source, label in enumerate(SOURCES):
            ours, guess = later[:, source], float(theirs[1:, source].mean())
            if not (ours.any() or guess):
                continue
            figures = [ours.mean(), ours.min(), ours.max(), guess]
            cells = [f"{100 * figure:.1f}" for figure in figures]
            by_source.append([f"{name}: {label}", *cells, difference(float(ours.mean()), guess)])
            pairs = zip(shares[:, :, source].mean(axis=0), theirs[:, source], strict=True)
            by_epoch.append([f"{name}: {label}", *(f"{100 * one:.1f}; {100 * other:.1f}" for one, other in pairs)])
        storage = float(later[:, 0].mean())
        of_none = storage / none_of.setdefault(name.startswith("connected"), storage)
        seconds = [float(np.mean(each.seconds[1:])) for each in rounds]
        direct = [each.direct for each in rounds]
        equal = sum(each.order == undisturbed for each in rounds)
        spread = f"{np.mean(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        fetched = f"{np.mean(direct):.0f} ({min(direct)} to {max(direct)})"
        by_arm.append([name, f"{of_none:.2f}", spread, fetched, f"{equal} of {len(rounds)}"])
    columns = ["", "mean", "least", "largest", "predicted", "difference"]
    yield "an epoch after the first one, in per cent of the data", columns, by_source
    columns = ["", "storage, of none", "s", "direct", "orders equal"]
    yield "storage as a fraction of none, seconds of an epoch, direct reads", columns, by_arm
    epochs = [str(epoch + 1) for epoch in range(len(theirs))]
    yield "by epoch, in per cent of the data: mean of the runs; predicted", ["", *epochs], by_epoch


def main() -> None:
    """Measure all arms, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="an empty scratch folder, for 1 GB")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each arm, in turns (%(default)s)")
    parser.add_argument("--only", nargs="*", help="names of arms")
    given = parser.parse_args()
    path = pack(given.work, "cached-nodes", given.samples)
    sizes = stored_sizes(StoredDataSet(path))
    stored, limit = int(sizes.sum(dtype=np.int64)), int(FOLDER * int(sizes.sum(dtype=np.int64)))
    found, predicted = dict[str, list[Measured]](), dict[str, Bytes]()
    for turn in range(given.rounds):
        for arm in ARMS:
            if given.only and arm.name not in given.only:
                continue
            progress(f"{arm.name}, {turn + 1} of {given.rounds}")
            order, predicted[arm.name] = predict(path, arm, limit, given.epochs)
            folders = given.work / "folders"
            measured = measure(arm, path, order, folders, limit, given.epochs)
            found.setdefault(arm.name, []).append(measured)
            shares = [100 * each[1:].mean(axis=0) / stored for each in (measured.bytes, predicted[arm.name])]
            progress(f"{shares[0].round(1)}, predicted {shares[1].round(1)}, {sum(measured.seconds):.0f} s")
            shutil.rmtree(folders, ignore_errors=True)
    for title, columns, rows in tables(found, predicted, stored):
        show(f"\n{title}\n{table(columns, rows)}")
    if given.out:
        settings = {
            "samples": given.samples,
            "epochs": given.epochs,
            "rounds": given.rounds,
            "memory": MEMORY,
            "folder": FOLDER,
            "batch": BATCH,
        }
        results = {
            name: {
                "predicted_bytes": predicted[name].tolist(),
                "rounds": [
                    {
                        "bytes": each.bytes.tolist(),
                        "seconds": each.seconds,
                        "direct": each.direct,
                        "cached in memory": each.cached,
                        "order": each.order,
                    }
                    for each in rounds
                ],
            }
            for name, rounds in found.items()
        }
        save(given.out, __doc__, settings, [], results)


if __name__ == "__main__":
    main()
