"""What makes a node server one of several? What it is told besides, as plain values."""

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
        tls = None if self.tls is None else self.tls.to_json()
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "tls": tls}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Member:
        """Inverse of `to_json`."""
        tls = value["tls"]
        return cls(**value | {"tls": None if tls is None else Tls(**tls)})
