"""Shares of a data set, and links with TLS, while everything breaks around them: late is allowed, wrong is not.

Three ranks draw in step while something breaks or is mended at random: links are cut, held, slowed or garbled, nodes
are stopped, killed and started again, storage fails or lies. Each rank gets exactly what the plan has at its positions.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from brand.errors import FormatError, ServerError
from brand.node.decide.draws import fetches
from brand.testing.storage import Fault, FaultyStorage, SlowStorage
from brand.torch import BrandDataset, BrandSampler
from tests.cluster.conftest import Certificates
from tests.cluster.conftest import certificates as certificates
from tests.rounds import Chance, rounds
from tests.several_nodes.support import Server, servers
from tests.support import LIMIT_S
from tests.tools.cluster import RunningCluster, running_cluster
from tests.torch.support import planned

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_job")]
NODES, EPOCHS, BATCH = 3, 2, 16
_STUCK_S = 2.0
"""All is mended where no step was done for so long."""

Undo = Callable[[], object]
Disturbance = Callable[[], Undo | None]
"""Breaks something, and says how it is mended."""


class Disturber:
    """Breaks and mends things between the steps of a training, from a thread of its own, in the middle of draws."""

    def __init__(self, rng: random.Random, disturbances: Sequence[Disturbance]) -> None:
        self._rng, self._disturbances = rng, disturbances
        self._broken: list[Undo] = []
        self._asked: queue.Queue[threading.Event | Literal["break"] | None] = queue.Queue()
        self._error: BaseException | None = None
        self.broken = 0
        """How often something was."""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Something may happen now."""
        self._asked.put("break")

    def mend(self) -> None:
        """Mend everything."""
        mended = threading.Event()
        self._asked.put(mended)
        assert mended.wait(LIMIT_S)

    def close(self) -> None:
        """Mend everything, and break nothing more; raises what went wrong in it."""
        self._asked.put(None)
        self._thread.join(LIMIT_S)
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            try:
                asked = self._asked.get(timeout=_STUCK_S)
            except queue.Empty:  # a node that is stopped, perhaps: nobody gets an error, and nobody goes on
                asked = threading.Event()
            try:
                if asked == "break" and self._error is None:
                    self._act()
                else:
                    while self._broken:
                        self._broken.pop()()
            except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
                self._error = error
            if isinstance(asked, threading.Event):
                asked.set()
            elif asked is None:
                return

    def _act(self) -> None:
        what = self._rng.random()
        if what < 0.2 and len(self._broken) < 3:
            self.broken += 1
            undo = self._rng.choice(self._disturbances)()
            if undo is not None:
                self._broken.append(undo)
        elif what < 0.4 and self._broken:
            self._broken.pop(self._rng.randrange(len(self._broken)))()


@pytest.fixture(autouse=True)
def _questions_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node in this process asks for a sample of a node that is gone for one second only, instead of eight."""
    monkeypatch.setattr(fetches, "LIMIT_S", 1.0)


def draw_while(disturber: Disturber, data_sets: Sequence[BrandDataset]) -> None:
    """All ranks draw; what cannot be drawn while something is broken is drawn again when all is mended."""
    step = threading.Barrier(NODES, action=disturber.step)
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        data_set = data_sets[number]
        try:
            sampler = BrandSampler(data_set, num_replicas=NODES, rank=number)
            for epoch in range(EPOCHS):
                plan = planned(data_set.path, sampler.order, epoch)
                sampler.set_epoch(epoch)
                tickets = attempt(lambda: list(sampler))
                found: list[int] = []
                for first in range(0, len(tickets), BATCH):
                    some = tickets[first : first + BATCH]
                    samples = attempt(lambda some=some: data_set.__getitems__(some))  # type: ignore[misc]
                    assert all(sample["text"].startswith(f"{sample['index']}:") for sample in samples)
                    found += [sample["index"] for sample in samples]
                    step.wait(LIMIT_S)
                assert found == plan[number::NODES]
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            errors.append(error)
            step.abort()

    def attempt(act: Callable[[], list[Any]]) -> list[Any]:
        end_s = time.monotonic() + LIMIT_S
        while True:
            try:
                return act()
            except (ServerError, FormatError):  # an owner cannot read what only it has
                if time.monotonic() > end_s:
                    raise
                disturber.mend()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(NODES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    disturber.close()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert errors == []


def on_links(rng: random.Random, cluster: RunningCluster, *, garbled: bool) -> list[Disturbance]:
    """What may happen to links; only TLS finds out that bytes were changed."""

    def link() -> tuple[int, int]:
        return rng.choice(sorted(cluster.links))

    def cut() -> Undo:
        found = cluster.links[link()]
        found.cut()
        return found.mend

    def hold() -> Undo:
        found = cluster.links[link()]
        found.hold()
        return found.release

    def slow() -> Undo:
        found = cluster.links[link()]
        found.bytes_per_s = rng.choice([20_000.0, 300_000.0])
        return lambda: setattr(found, "bytes_per_s", None)

    def flip() -> None:
        cluster.links[link()].flip()

    return [cut, hold, slow, *([flip, flip] if garbled else [])]


def on_sides(rng: random.Random, cluster: RunningCluster) -> list[Disturbance]:
    """One of two nodes does not see the other one, or neither does: connections end, or bytes vanish on their way."""

    def part() -> Undo:
        one, other = rng.sample(range(NODES), 2)
        links = [cluster.links[one, other], cluster.links[other, one]][: rng.choice([1, 2])]
        ends, there = rng.random() < 0.5, rng.random() < 0.5
        for link in links:
            if ends:
                link.cut()
            else:
                link.hold(there=there, back=not there)

        def undo() -> None:
            for link in links:
                if ends:
                    link.mend()
                else:
                    link.release()

        return undo

    return [part]


def on_nodes(rng: random.Random, cluster: RunningCluster) -> list[Disturbance]:
    """A node ends, and comes back."""

    def end() -> Undo | None:
        if not cluster.servers:
            return None
        node = rng.choice(sorted(cluster.servers))
        cluster.kill(node)
        return lambda: cluster.restart(node)

    return [end]


def on_storage(rng: random.Random, storages: Sequence[FaultyStorage]) -> list[Disturbance]:
    """Reads fail, end early, or bring other bytes."""

    def fail() -> Undo:
        storage = rng.choice(storages)
        storage.faults.append(Fault(kind=rng.choice(["error", "short", "wrong"])))
        return storage.faults.clear

    return [fail]


def on_processes(rng: random.Random, found: Sequence[Server]) -> list[Disturbance]:
    """A node's process is killed, or stopped."""
    gone: set[int] = set()

    def tell() -> None:
        for server in found:
            if server.member.node not in gone:
                server.tell([other.listens_at for other in found])

    def signalled(number: signal.Signals) -> Undo | None:
        node = rng.choice(range(NODES))
        if node in gone:
            return None
        gone.add(node)
        if number == signal.SIGKILL:
            found[node].kill()
        else:
            os.kill(found[node].process, number)

        def undo() -> None:
            if number == signal.SIGKILL:
                found[node].start()
                found[node].tell([other.listens_at for other in found])
            else:
                os.kill(found[node].process, signal.SIGCONT)
            gone.discard(node)

        return undo

    return [lambda: signalled(signal.SIGKILL), lambda: signalled(signal.SIGSTOP)]


def opened(paths: Sequence[Path], addresses: Sequence[str]) -> list[BrandDataset]:
    """One data set for each rank."""
    return [BrandDataset(path, server=address) for path, address in zip(paths, addresses, strict=True)]


@rounds(1)
def test_shares_under_faults(shares: list[Path], chance: Chance) -> None:
    """Nobody else has what a node that is gone should read: the draw fails, and is right when the node is back."""
    rng = chance.rng
    storages = [FaultyStorage(inner=SlowStorage(rng.randrange(100), 0.003)) for _ in range(NODES)]
    with running_cluster(
        shares, nodes=NODES, memory=rng.choice([0.3, 0.6]), storage=dict(enumerate(storages))
    ) as cluster:
        disturbances = [*on_links(rng, cluster, garbled=False), *on_nodes(rng, cluster), *on_storage(rng, storages)]
        draw_while(Disturber(rng, disturbances), opened(shares, cluster.addresses))


@rounds(1)
def test_shares_whose_nodes_are_killed(shares: list[Path], chance: Chance) -> None:
    """By SIGKILL, or stopped for a while, in processes of their own."""
    rng = chance.rng
    with servers(shares, NODES, memory=rng.choice([0.3, 0.6])) as found:
        disturber = Disturber(rng, on_processes(rng, found))
        draw_while(disturber, opened(shares, [server.address for server in found]))


@rounds(1)
def test_tls_under_faults(texts: Path, certificates: Certificates, chance: Chance) -> None:
    """A changed bit ends the connection; nodes meet again with new ones."""
    rng = chance.rng
    storages = [FaultyStorage(inner=SlowStorage(rng.randrange(100), 0.003)) for _ in range(NODES)]
    tls = replace(certificates.ours, mutual=rng.random() < 0.5)
    with running_cluster(
        texts, nodes=NODES, memory=rng.choice([0.3, 0.6]), storage=dict(enumerate(storages)), tls=tls
    ) as cluster:
        disturbances = [*on_links(rng, cluster, garbled=True), *on_nodes(rng, cluster), *on_storage(rng, storages)]
        draw_while(Disturber(rng, disturbances), opened([texts] * NODES, cluster.addresses))


@rounds(1)
@pytest.mark.parametrize("divided", [False, True])
def test_sides_of_a_triangle_under_faults(texts: Path, shares: list[Path], chance: Chance, divided: bool) -> None:
    """Nodes see each other in one direction only or not at all, again and again, while nodes end and come back."""
    rng = chance.rng
    paths = shares if divided else [texts] * NODES
    with running_cluster(paths, nodes=NODES, memory=rng.choice([0.3, 0.6])) as cluster:
        disturbances = [*on_sides(rng, cluster), *on_sides(rng, cluster), *on_nodes(rng, cluster)]
        disturber = Disturber(rng, disturbances)
        draw_while(disturber, opened(paths, cluster.addresses))
        assert disturber.broken
