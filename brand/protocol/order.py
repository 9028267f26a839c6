"""What fixes the order of every epoch? A few numbers, which a state keeps and a server is told.

Everything else (memory limits, workers, timing) changes how fast samples come, never which or in what order. Nodes and
ranks are part of it only where nodes send each other samples ahead, which the paper's protocol alone does.
"""

from __future__ import annotations

from collections.abc import Mapping as Values
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from brand.protocol.mapping import Mapping
from brand.protocol.owners import MAX_NODES
from brand.protocol.plan import Plan
from brand.protocol.prefetch import plan_slots_across_nodes
from brand.protocol.slots import plan_slots
from brand.protocol.stripes import plan_stripes
from brand.protocol.tickets import MAX_POSITIONS

MAX_EPOCH: Final = (1 << 16) - 1
MAX_SEED: Final = (1 << 128) - 1
MAX_RANKS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Order:
    """The order of all epochs of one run over one data set."""

    data_set: str
    """Id of the data set."""
    samples: int
    chunk_size: int
    group_chunks: int
    """`n`: chunks that share an abstract chunk."""
    seed: int = 0
    protocol: str = "stripes"
    stripe: int = 1
    """`r`, of protocol `stripes`."""
    refill: str = "fill_rate"
    """Of protocol `slots`: `fill_rate` or `random`."""
    nodes: int = 1
    """Of protocol `slots`, as all that follow: nodes that own groups and draw."""
    ranks: int = 1
    """Ranks on all nodes together, equally many on each; node 0 has the first of them."""
    window: int = 0
    """Next draws of a node that are checked with each of its requests for what can be sent ahead; 0: nothing is."""
    remote: int = 0
    """Samples sent ahead that a node has room for: the limit of its remote abstract memory."""

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"{name} of an order is {value!r}, not of type {kind.__name__}")
        if self.protocol not in ("stripes", "slots"):
            raise ValueError(f"protocol {self.protocol!r} is neither 'stripes' nor 'slots'")
        if self.refill not in ("fill_rate", "random"):
            raise ValueError(f"refill {self.refill!r} is neither 'fill_rate' nor 'random'")
        for name in ("samples", "chunk_size", "group_chunks"):
            if not 1 <= getattr(self, name) <= MAX_POSITIONS:
                raise ValueError(f"{name}={getattr(self, name)} of an order is not from 1 to {MAX_POSITIONS:,}")
        if not 1 <= self.stripe <= self.chunk_size:
            raise ValueError(f"a stripe of {self.stripe} samples of chunks of {self.chunk_size}")
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed {self.seed} is not from 0 to 2**128 - 1")
        if self.group_chunks > self.mapping.chunks:
            raise ValueError(f"group_chunks={self.group_chunks} of an order of {self.mapping.chunks} chunks")
        self._check_nodes()

    def _check_nodes(self) -> None:
        """Raise ValueError where the fields of many nodes are wrong."""
        if not 1 <= self.nodes <= MAX_NODES:
            raise ValueError(f"nodes={self.nodes} of an order is not from 1 to {MAX_NODES:,}")
        if not 1 <= self.ranks <= MAX_RANKS or self.ranks % self.nodes:
            raise ValueError(f"ranks={self.ranks} of an order is no multiple of {self.nodes} nodes up to {MAX_RANKS:,}")
        for name in ("window", "remote"):
            if not 0 <= getattr(self, name) <= MAX_POSITIONS:
                raise ValueError(f"{name}={getattr(self, name)} of an order is not from 0 to {MAX_POSITIONS:,}")
        for name, default in _OF_NODES.items():
            if self.protocol == "stripes" and getattr(self, name) != default:
                raise ValueError(f"{name}={getattr(self, name)} of an order of stripes, which do not depend on nodes")

    @property
    def mapping(self) -> Mapping:
        """Places to chunks to groups."""
        return Mapping(self.samples, self.chunk_size, self.group_chunks)

    def plan(self, epoch: int) -> Plan:
        """The plan of one epoch."""
        if not 0 <= epoch <= MAX_EPOCH:
            raise ValueError(f"epoch {epoch} is not from 0 to {MAX_EPOCH:,}")
        if self.protocol == "stripes":
            return plan_stripes(self.mapping, self.stripe, self.seed, epoch)
        if self.nodes == 1:
            return plan_slots(self.mapping, self.refill, self.seed, epoch)  # type: ignore[arg-type]
        return plan_slots_across_nodes(
            self.mapping,
            self.nodes,
            self.ranks,
            self.window,
            self.remote,
            self.refill,  # type: ignore[arg-type]
            self.seed,
            epoch,
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values. Fields of many nodes are there only where they differ from their defaults."""
        return {name: value for name, value in asdict(self).items() if value != _OF_NODES.get(name)}

    @classmethod
    def from_json(cls, value: Any) -> Order:
        """Inverse of `to_json`, distrusting. Raises ValueError."""
        if not isinstance(value, Values) or not set(_KINDS) - set(_OF_NODES) <= set(value) <= set(_KINDS):
            raise ValueError(f"an order has the fields {', '.join(_KINDS)}")
        return cls(**value)


_KINDS: Final[dict[str, type]] = {
    "data_set": str,
    "samples": int,
    "chunk_size": int,
    "group_chunks": int,
    "seed": int,
    "protocol": str,
    "stripe": int,
    "refill": str,
    "nodes": int,
    "ranks": int,
    "window": int,
    "remote": int,
}
_OF_NODES: Final = {
    field.name: field.default for field in fields(Order) if field.name in ("nodes", "ranks", "window", "remote")
}
"""Fields that only protocol `slots` uses and that a state may lack, with their defaults."""
