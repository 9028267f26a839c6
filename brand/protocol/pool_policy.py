"""What fixes the order of protocol `pool`, beside what every order has?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from brand.protocol.mapping import Mapping
from brand.protocol.plan import Plan
from brand.protocol.policy import Policy, check_number
from brand.protocol.pool import plan_pool
from brand.protocol.tickets import MAX_POSITIONS


@dataclass(frozen=True)
class PoolPolicy(Policy):
    """Chunks come in random order, and samples are shuffled within each few of them (`pool`).

    Groups say which node owns which chunks. They change nothing in the order.
    """

    name: ClassVar[str] = "pool"
    pool: int
    """`k`: chunks of a pool. The last pool of an epoch may have fewer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("pool", self.pool, 1, MAX_POSITIONS)

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> Plan:
        """The plan of one epoch."""
        return plan_pool(mapping, self.pool, seed, epoch)

    def check_fits(self, mapping: Mapping) -> None:
        """Raise ValueError where a pool or a group is larger than the data set."""
        super().check_fits(mapping)
        if self.pool > mapping.chunks:
            raise ValueError(f"pool={self.pool} of an order of {mapping.chunks} chunks")

    def held(self, mapping: Mapping) -> int:
        """The samples of a pool."""
        return self.pool * mapping.chunk_size

    @property
    def kept_unit(self) -> int:
        """A chunk, however large it is: a read brings all of it."""
        return MAX_POSITIONS
