"""What fixes the order of every epoch? A few numbers, which a state keeps and a client tells its server.

Everything else (memory limits, workers, timing) changes how fast samples come, never which or in what order.
"""

from __future__ import annotations

from collections.abc import Mapping as Values
from dataclasses import dataclass
from typing import Any, Final

from brand.protocol.mapping import Mapping
from brand.protocol.plan import Plan
from brand.protocol.policies import policy_named
from brand.protocol.policy import Policy, check_number, check_type
from brand.protocol.tickets import MAX_POSITIONS

MAX_EPOCH: Final = (1 << 16) - 1
MAX_SEED: Final = (1 << 128) - 1


@dataclass(frozen=True, slots=True)
class Order:
    """The order of all epochs of one run over one data set. Raises ValueError."""

    data_set: str
    """Id of the data set."""
    samples: int
    chunk_size: int
    seed: int
    policy: Policy

    def __post_init__(self) -> None:
        check_type("data_set", self.data_set, str)
        check_number("samples", self.samples, 1, MAX_POSITIONS)
        check_number("chunk_size", self.chunk_size, 1, MAX_POSITIONS)
        check_type("seed", self.seed, int)
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed {self.seed} is not from 0 to 2**128 - 1")
        check_type("policy", self.policy, Policy)
        self.policy.check_fits(self.mapping)

    @property
    def mapping(self) -> Mapping:
        """Places to chunks to groups."""
        return self.policy.mapping(self.samples, self.chunk_size)

    def plan(self, epoch: int) -> Plan:
        """The plan of one epoch."""
        if not 0 <= epoch <= MAX_EPOCH:
            raise ValueError(f"epoch {epoch} is not from 0 to {MAX_EPOCH:,}")
        return self.policy.plan(self.mapping, self.seed, epoch)

    def to_json(self) -> dict[str, Any]:
        """The order as plain values: its own fields, and beside them the fields of the policy."""
        return {
            "data_set": self.data_set,
            "samples": self.samples,
            "chunk_size": self.chunk_size,
            "group_chunks": self.policy.group_chunks,  # here, because the bytes of a state have this order of fields
            "seed": self.seed,
            "protocol": self.policy.name,
        } | self.policy.to_json()

    @classmethod
    def from_json(cls, value: Any) -> Order:
        """Inverse of `to_json`, distrusting. Raises ValueError."""
        if not isinstance(value, Values) or not set(_OF_ALL) <= set(value):
            raise ValueError(f"an order has the fields {', '.join(_OF_ALL)}, and those of its protocol")
        own = {name: each for name, each in value.items() if name not in _OF_ALL}
        policy = policy_named(value["protocol"]).from_json(own)
        return cls(value["data_set"], value["samples"], value["chunk_size"], value["seed"], policy)


_OF_ALL: Final = ("data_set", "samples", "chunk_size", "seed", "protocol")
"""Fields that the JSON of every order has beside the fields of its policy."""
