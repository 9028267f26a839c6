"""What makes a node server one of several? Its number, where it listens for the others, and what they all know."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from brand.cluster.greeting import Greeting
from brand.cluster.peers import Peers
from brand.cluster.tls import Tls
from brand.errors import UsageError
from brand.node.memory import Memory
from brand.node.server import NodeServer
from brand.storage.dataset import StoredDataSet
from brand.storage.vectored import Storage
from brand.version import __version__


@dataclass(frozen=True)
class Member:
    """One node of a cluster."""

    node: int
    """Its number, from 0."""
    nodes: int
    """How many there are."""
    token: str
    """What all nodes of the cluster know, and nobody else."""
    bind: str = "127.0.0.1:0"
    """Where it listens for other nodes, `host:port`; port 0 is any."""
    remote_memory: Memory = None
    """How much of its memory other nodes may fill; None: a tenth."""
    tls: Tls | None = None
    """Certificates; None: not encrypted."""

    def __post_init__(self) -> None:
        if not 0 <= self.node < self.nodes:
            raise UsageError(f"node {self.node} of {self.nodes}: nodes are 0 to {self.nodes - 1}")

    def to_json(self) -> dict[str, Any]:
        """As a server process is told."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Member:
        """Inverse of `to_json`."""
        tls = value.pop("tls")
        return cls(**value, tls=None if tls is None else Tls(**tls))

    def server(
        self,
        path: str | os.PathLike[str],
        address: str,
        *,
        memory: Memory = None,
        owners: tuple[int, ...] = (),
        depth: int | None = None,
        storage: Callable[[], Storage] | None = None,
    ) -> NodeServer:
        """The node server of this member; arguments as for `NodeServer`."""

        def network(data: StoredDataSet, page: int) -> Peers:
            shares = None if data.share is None else data.share.group_chunks
            greeting = Greeting(data.id, self.node, self.nodes, page, shares, __version__)
            return Peers(greeting, self.token, self.bind, self.tls)

        return NodeServer(
            path,
            address,
            memory=memory,
            owners=owners,
            depth=depth,
            storage=storage,
            node=self.node,
            nodes=self.nodes,
            network=network,
            remote_memory=self.remote_memory,
        )
