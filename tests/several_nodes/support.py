"""What tests of several nodes share: data servers as processes, and ranks that draw in step, as DDP has them."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.client.client import Client
from brand.node.client.connector import look_at, start_server
from brand.node.client.decoded import DecodeSpecs
from brand.node.client.session import Session
from brand.node.setup.server_spec import Member, ServerSpec
from brand.node.wire import messages
from brand.node.wire.drawing import Announcement
from brand.node.wire.messages import Kind
from brand.orders.order import Order
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import random_address
from tests.support import LIMIT_S, runs, wait_until
from tests.tools.cluster import RunningCluster

Places = NDArray[np.int64]
TOKEN = "a token for tests only, 32 bytes"


def node_of(path: Path, address: str, run: str = "run", wants: DecodeSpecs | None = None) -> Client:
    """A client of one of the servers, which wants something prepared or nothing."""
    data = StoredDataSet(path)
    return Client(ServerSpec(str(path), address), data.id, data.mean_bytes, run, attach=True, specs=wants)


@dataclass
class Rank:
    """One rank of a training: draws its positions of each epoch in batches, in step with all others."""

    node: Client
    order: Order
    rank: int
    ranks: int
    batch: int = 16
    locality: bool = False
    start: int = 0
    drawn: dict[int, list[Places]] = field(default_factory=dict)
    """Places by epoch."""
    positions: dict[int, Places] = field(default_factory=dict)
    late: int = 0
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.data = StoredDataSet(self.node.path)

    def run(self, epochs: Sequence[int], step: threading.Barrier) -> None:
        """Draw epochs; what goes wrong is kept."""
        try:
            for epoch in epochs:
                self._epoch(epoch, step)
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            self.error = error
            step.abort()

    def _epoch(self, epoch: int, step: threading.Barrier) -> None:
        start = self.start if not self.drawn else 0
        batch = self.batch if self.locality else 0
        mine = self.node.begin(self.order, 1, Announcement(epoch, start, self.rank, self.ranks, batch), turn=0)
        if mine is None:
            mine = np.arange(start + self.rank, self.order.samples, self.ranks)
        self.positions[epoch] = mine
        found = self.drawn.setdefault(epoch, [])
        for first in range(0, -(-self.order.samples // self.ranks), self.batch):
            some = mine[first : first + self.batch]
            if len(some):
                for part in self.node.draw(self.order, epoch, some, owner=os.getpid()):
                    assert part.stored.right().all()
                    here = self.data.indices(part.places[part.present])
                    assert part.stored.rows["index"].tolist() == here.tolist(), "another sample than the plan's"
                    found.append(part.places)
                    self.late += len(part.places) - len(part.present)
            step.wait(LIMIT_S)


def draw_in_step(ranks: Sequence[Rank], epochs: Sequence[int], between: Callable[[int], None] = lambda _: None) -> None:
    """All ranks draw epochs, batch by batch together; raises what went wrong in any of them.

    `between` is called with the number of batches that each rank has drawn, while all ranks wait.
    """
    drawn = itertools.count(1)
    step = threading.Barrier(len(ranks), action=lambda: between(next(drawn)))
    threads = [threading.Thread(target=rank.run, args=(epochs, step)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    wrong = [r.error for r in ranks if r.error is not None and not isinstance(r.error, threading.BrokenBarrierError)]
    if wrong:
        raise wrong[0]
    assert not any(thread.is_alive() for thread in threads)
    assert not any(rank.error for rank in ranks)


def check_epoch(ranks: Sequence[Rank], epoch: int) -> None:
    """Every rank got what the plan has at its positions, and all together every position once."""
    plan = ranks[0].order.plan(epoch)
    seen = np.zeros(len(plan.sample_of), np.int64)
    for rank in ranks:
        places = np.concatenate(rank.drawn[epoch])
        assert places.tolist() == plan.sample_of[rank.positions[epoch]].tolist()
        np.add.at(seen, places, 1)
    assert (seen == 1).all()


@dataclass
class Server:
    """A data server of its own process."""

    path: Path
    address: str
    member: Member
    memory: float | str
    process: int = 0
    listens_at: str = ""

    def start(self) -> None:
        """Start it, again at the same address."""
        member = replace(self.member, bind=self.listens_at or self.member.bind)
        start_server(ServerSpec(str(self.path), self.address, self.memory, (os.getpid(),), member))
        with closing(self._session()) as session:
            self.listens_at = session.server.listens_at or ""
        self.process = self.facts()["process"]

    def tell(self, addresses: Sequence[str]) -> None:
        """Where the others are."""
        told = [None if node == self.member.node else address for node, address in enumerate(addresses)]
        with closing(self._session()) as session:
            session.send(messages.pack_json(Kind.PEERS, {"addresses": told}))
            session.request(messages.frame(Kind.STATS), Kind.STATS)

    def facts(self) -> dict[str, Any]:
        """Its statistics."""
        return look_at(self.address)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it."""
        os.kill(self.process, number)
        if number == signal.SIGKILL:
            wait_until(lambda: not runs(self.process), "it is dead")

    def _session(self) -> Session:
        return Session(self.address, StoredDataSet(self.path).id, os.getpid())


@contextmanager
def servers(paths: Path | Sequence[Path], nodes: int, memory: float | str = 0.3, **more: Any) -> Iterator[list[Server]]:
    """Data servers in processes of their own, that know each other, for the length of the block."""
    where = [paths] * nodes if isinstance(paths, Path) else list(paths)
    token = secrets.token_hex(16)
    found = [Server(where[n], random_address(), Member(n, nodes, token, **more), memory) for n in range(nodes)]
    with ExitStack() as stack:
        for server in found:
            server.start()
            stack.callback(_end, server)
        for server in found:
            server.tell([other.listens_at for other in found])
        yield found


def all_reachable(found: Sequence[Server]) -> bool:
    """Whether every node can ask every other one."""
    return all(len(server.facts()["cluster"]["reachable"]) == len(found) - 1 for server in found)


def all_open(cluster: RunningCluster) -> bool:
    """The same of nodes that run in threads."""
    others = len(cluster.servers) - 1
    return all(len(cluster.facts(node)["cluster"]["reachable"]) == others for node in cluster.servers)


def _end(server: Server) -> None:
    with suppress(ProcessLookupError):
        os.kill(server.process, signal.SIGKILL)
    wait_until(lambda: not runs(server.process), "a server ends")
