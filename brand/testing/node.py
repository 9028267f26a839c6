"""A data server in a thread of this process: how do code and data set behave on storage that you can break?

    with running_server(path, memory="64MB", storage=FaultyStorage(Fault(chunk=3))) as server:
        data_set = BrandDataset(path, server=server.address)
        ...
        assert server.facts()["failed_reads"] == 1

It is the server that training uses, with real sockets and shared pages. It runs in this process, so a test is fast, can
inspect the server's state, and leaves nothing behind. `brand.testing.storage` has storage that breaks. Linux only.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from brand.node.client.client import Client
from brand.node.serve.server import NodeServer
from brand.node.setup.caching import CacheOf, as_caches
from brand.node.setup.choose import DEFAULT_DEPTH
from brand.node.setup.decoding import Prepared
from brand.node.setup.memory import Memory
from brand.node.setup.server_spec import ServerSpec
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.storage import Habit

END_LIMIT_S: Final = 30.0
"""Seconds that a server may take to end."""


def random_address() -> str:
    """Return an address at which no server listens."""
    return f"unix:@brand-testing-{secrets.token_hex(8)}"


@dataclass(frozen=True)
class RunningServer:
    """A server that runs in a thread."""

    path: str
    """Folder of its data set."""
    address: str
    """The address, as `BrandDataset(path, server=...)` and `Client` accept it."""
    node: NodeServer
    """The server itself. Its state belongs to its thread: read it only while nothing happens."""
    thread: threading.Thread

    @property
    def memory_bytes(self) -> int:
        """Size of its arena in bytes."""
        return self.node.memory

    def facts(self) -> dict[str, Any]:
        """Return the statistics of `BrandDataset.stats`, requested over a connection of its own, as any client does."""
        with closing(attached(self)) as client:
            return client.stats()


def attached(server: RunningServer, run: str | None = None) -> Client:
    """Return a client of a running server, without PyTorch, in a run of this name. It never starts another server."""
    data = StoredDataSet(server.path)
    spec = ServerSpec(server.path, server.address)
    return Client(spec, data.id, data.mean_bytes, run or secrets.token_hex(8), attach=True)


@contextmanager
def running_server(
    path: str | os.PathLike[str],
    *,
    memory: Memory = None,
    depth: int = DEFAULT_DEPTH,
    storage: Habit | None = None,
    page_cache: bool = True,
    owners: tuple[int, ...] = (),
    address: str | None = None,
    cache: CacheOf = None,
    prepared: Prepared | None = None,
) -> Iterator[RunningServer]:
    """Serve the data set at `path` for the length of the block.

    Args:
        path: Folder of the data set.
        memory: Memory limit of the server, as `BrandDataset(memory=...)`.
        depth: Reads in flight.
        storage: Behaviour of the storage that the server reads from.
        page_cache: Whether large reads use the page cache.
        owners: Processes; the server ends by itself when the last of them has ended.
        address: The address at which the server listens; None for any.
        cache: The server's cache folder, or several.
        prepared: Resources for server-side decoding.

    At the end of the block, raises the error that ended the server, if there was one.
    """
    where = path if storage is None else storage.at(path)
    spec = ServerSpec(
        where,
        address or random_address(),
        memory,
        owners,
        cache=as_caches(cache),
        prepared=prepared,
        depth=depth,
        page_cache=page_cache,
    )
    with running(os.fspath(path), NodeServer(spec)) as found:
        yield found


@contextmanager
def running(path: str, server: NodeServer) -> Iterator[RunningServer]:
    """Run a server in a thread for the length of the block. Raises the error that ended it, if there was one."""
    faults: list[BaseException] = []

    def serve() -> None:
        try:
            server.run()
        except BaseException as fault:  # noqa: BLE001 - raised in the thread that opened the block
            faults.append(fault)

    thread = threading.Thread(target=serve, name="data server", daemon=True)
    thread.start()
    try:
        yield RunningServer(path, server.address, server, thread)
    finally:
        server.stop()
        thread.join(END_LIMIT_S)
        if faults:
            raise faults[0]
        if thread.is_alive():
            raise TimeoutError(f"the data server at {server.address} did not end within {END_LIMIT_S:.0f} s")
