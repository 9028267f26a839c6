"""Several nodes in one process: how do code and data set behave when owners die, links are cut, chunks are damaged?

    with running_cluster(path, nodes=3, memory="64MB") as cluster:
        data_sets = [BrandDataset(path, server=address) for address in cluster.addresses]
        ...
        cluster.kill(2)
        cluster.links[0, 1].cut()

Each node is the server that training uses, in a thread, joined to the others by real gRPC on loopback; every link goes
through a `Link` that can be slowed and cut. `storage` gives each node its own storage to break. Linux only.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from brand.cluster.process import server_of
from brand.node.setup.caching import Cache, as_caches
from brand.node.setup.choose import DEFAULT_DEPTH
from brand.node.setup.memory import Memory
from brand.node.setup.server_spec import Member, ServerSpec, Tls
from brand.testing.node import RunningServer, random_address, running
from brand.testing.storage import Habit
from tests.tools.link import Link


@dataclass
class RunningCluster:
    """Nodes that run in threads of this process."""

    path: str
    token: str
    servers: dict[int, RunningServer] = field(default_factory=dict)
    """Node -> its server; a killed node is missing."""
    links: dict[tuple[int, int], Link] = field(default_factory=dict)
    """(asking node, answering node) -> the link between them."""
    _start: Callable[[int], RunningServer] | None = None
    _stacks: dict[int, ExitStack] = field(default_factory=dict)

    @property
    def addresses(self) -> list[str]:
        """What `BrandDataset(path, server=...)` takes, by node."""
        return [self.servers[node].address for node in sorted(self.servers)]

    def facts(self, node: int) -> dict[str, Any]:
        """What `BrandDataset.stats` tells of a node."""
        return self.servers[node].facts()

    def kill(self, node: int) -> None:
        """End a node at once; the other nodes find out by themselves."""
        del self.servers[node]
        self._stacks.pop(node).close()

    def close(self) -> None:
        """End all nodes."""
        for node in list(self.servers):
            self.kill(node)

    def restart(self, node: int) -> None:
        """Start a killed node again, with empty memory, at the address where the other nodes look for it."""
        assert self._start is not None
        self.servers[node] = self._start(node)


@contextmanager
def running_cluster(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    nodes: int,
    memory: Memory = None,
    peer_memory: Memory = None,
    depth: int = DEFAULT_DEPTH,
    storage: Mapping[int, Habit] | None = None,
    tls: Tls | None = None,
    caches: Sequence[Cache | None] | None = None,
) -> Iterator[RunningCluster]:
    """Serve a data set by several nodes for the length of the block.

    Args:
        path: Folder of the data set that all nodes see, or the folders of their shares (`brand partition`).
        nodes: How many nodes there are.
        memory: How much memory each node may hold, as `BrandDataset(memory=...)`.
        peer_memory: How much of it other nodes may fill.
        depth: Reads in flight of each node.
        storage: What is wrong with the storage of single nodes, by node.
        tls: Certificates, the same for all nodes.
        caches: The cache folder of each node, or None.
    """
    paths = [os.fspath(path)] * nodes if isinstance(path, str | os.PathLike) else [os.fspath(p) for p in path]
    token, where = secrets.token_hex(16), [random_address() for _ in range(nodes)]
    cluster = RunningCluster(paths[0], token)
    listens: dict[int, str] = {}

    def start(node: int) -> RunningServer:
        bind = listens.get(node, "127.0.0.1:0")
        member = Member(node, nodes, token, bind, peer_memory, tls)
        habit = (storage or {}).get(node)
        path = paths[node] if habit is None else habit.at(paths[node])
        cache = as_caches(None if caches is None else caches[node])
        spec = ServerSpec(path, where[node], memory, cache=cache, member=member, depth=depth, page_cache=True)
        server = server_of(spec)
        stack = cluster._stacks[node] = ExitStack()
        found = stack.enter_context(running(paths[node], server))
        assert server.listens_at is not None
        listens[node] = server.listens_at
        if len(cluster.links) == nodes * (nodes - 1):
            server.connect({other: cluster.links[node, other].address for other in range(nodes) if other != node})
        return found

    cluster._start = start
    with ExitStack() as everything:
        everything.callback(cluster.close)
        for node in range(nodes):
            cluster.servers[node] = start(node)
        for one in range(nodes):
            for other in range(nodes):
                if one != other:
                    link = Link(listens[other])
                    everything.callback(link.close)
                    cluster.links[one, other] = link
        for node in range(nodes):
            others = {other: cluster.links[node, other].address for other in range(nodes) if other != node}
            cluster.servers[node].node.connect(others)
        yield cluster
