"""The configuration of a data server that is one of several: a few more plain values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from brand.errors import UsageError
from brand.node.setup.memory import Memory
from brand.node.setup.tls import Tls


@dataclass(frozen=True)
class Member:
    """One node of a cluster."""

    node: int
    """Number of the node, from 0."""
    nodes: int
    """Number of nodes in the cluster."""
    token: str
    """A secret that only the nodes of the cluster know."""
    bind: str = "127.0.0.1:0"
    """Address at which the node listens for other nodes, `host:port`; port 0 for any free port."""
    peer_memory: Memory = None
    """How much of the node's memory other nodes may fill; None for a tenth."""
    tls: Tls | None = None
    """Certificates; None if messages are not encrypted."""

    def __post_init__(self) -> None:
        if not 0 <= self.node < self.nodes:
            raise UsageError(f"node {self.node} of {self.nodes}: nodes are 0 to {self.nodes - 1}")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a server process."""
        tls = None if self.tls is None else self.tls.to_json()
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "tls": tls}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Member:
        """Invert `to_json`."""
        tls = value["tls"]
        return cls(**value | {"tls": None if tls is None else Tls(**tls)})
