"""What the tests of the data server share: clients that speak as they like, and what a server leaves behind."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from brand.node.wire import messages
from brand.node.wire.client_messages import ClientRegisters, pack
from brand.node.wire.connection import PREFIX, socket_name
from brand.node.wire.draw_messages import Lease, unpack_lease
from brand.node.wire.messages import HEAD, Kind
from brand.node.wire.numbers import NO_CLIENT
from brand.orders.order import Order
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch import BrandDataset
from tests.node.packing import pack_begin, pack_draw, pack_release
from tests.support import LIMIT_S


class RawClient:
    """A connection that sends whatever a test wants to."""

    def __init__(self, address: str, *, connect: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(LIMIT_S)
        if connect:
            self.socket.connect(socket_name(address))

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def hello(self, data_set: str, **more: Any) -> dict[str, Any]:
        """Say hello as a client does; what the server answers."""
        self.send(messages.pack_json(Kind.HELLO, {"data_set": data_set, "owner": os.getpid()} | more))
        return self.answer(Kind.HELLO)

    def order(self, order: Order, run: str = "run", tag: int | None = None) -> int:
        """Register a run; its number."""
        self.send(pack(ClientRegisters(NO_CLIENT, order, run, tag)))
        return int(self.answer(Kind.ORDER)["number"])

    def begin(self, run: int, epoch: int, position: int = 0, *, rank: int = 0, replicas: int = 1) -> None:
        """Say that a rank is about to draw."""
        self.send(pack_begin(run, epoch, position, rank, replicas))

    def stats(self) -> dict[str, Any]:
        """What the server has done."""
        self.send(messages.frame(Kind.STATS))
        return self.answer(Kind.STATS)

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def answer(self, expected: Kind) -> dict[str, Any]:
        """The next message, which must be JSON of this kind."""
        kind, body = self.receive()
        assert kind == expected, (kind, body)
        return messages.unpack_json(body)

    def lease(self) -> Lease:
        """The next message, which must be a lease."""
        kind, body = self.receive()
        assert kind == Kind.LEASE, (kind, body)
        return unpack_lease(body)

    def receive(self) -> tuple[Kind, bytes]:
        """The next message. Raises ConnectionResetError where there is none any more."""
        kind, length = messages.parse_head(self._exactly(HEAD.size), messages.MAX_REPLY)
        return kind, self._exactly(length)

    def ended(self) -> list[tuple[Kind, bytes]]:
        """Everything until the server hangs up."""
        found = []
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while True:
                found.append(self.receive())
        return found

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the server hung up")
            data += more
        return data


@contextlib.contextmanager
def greeted(address: str, path: Path) -> Iterator[RawClient]:
    """A raw client that has said hello."""
    with RawClient(address) as client:
        client.hello(StoredDataSet(path).id)
        yield client


def servers_of(path: Path) -> list[int]:
    """Server processes of a data set: those that were started for it and still run, by what they have open."""
    found = []
    wanted = str(path)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes()
            if b"brand.node.serve.process" in command and wanted in (folder / "maps").read_text():
                found.append(int(folder.name))
    return found


def listeners(name: str) -> list[str]:
    """Abstract addresses that begin so, of sockets that are open anywhere."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    addresses = {line.split()[-1] for line in lines if line.split()[-1].startswith("@")}
    return sorted(address for address in addresses if address[1:].startswith(name.removeprefix(PREFIX)))


def memory_kib(process: int, *names: str) -> int:
    """Sum of lines of /proc/PID/status such as RssAnon, in KiB."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in status if line.split(":")[0] in names)


@contextlib.contextmanager
def drawing(path: Path, address: str, **more: Any) -> Iterator[BrandDataset]:
    """A `BrandDataset` that draws from a running server, and hangs up at the end."""
    data_set = BrandDataset(path, server=address, **({"fields": ("number", "index")} | more))
    try:
        yield data_set
    finally:
        data_set._source.port.client.close()


def draw(client: RawClient, run: int, epoch: int, positions: Any) -> Lease:
    """Draw, and release at once."""
    client.send(pack_draw(run, epoch, np.asarray(positions, np.int64)))
    lease = client.lease()
    client.send(pack_release(lease.number, checked=True))
    return lease
