"""What fixes the order of protocol `stripes`, beside what every order has?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from brand.protocol.flat import FlatPolicy
from brand.protocol.mapping import Mapping
from brand.protocol.plan import Plan
from brand.protocol.policy import check_number
from brand.protocol.stripes import plan_stripes
from brand.protocol.tickets import MAX_POSITIONS


@dataclass(frozen=True)
class StripePolicy(FlatPolicy):
    """Each stripe of a chunk is read once an epoch (`stripes`), and a server may keep whole stripes in memory."""

    name: ClassVar[str] = "stripes"
    stripe: int = 1
    """`r`: samples of a stripe. The last stripe of a chunk may be shorter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("stripe", self.stripe, 1, MAX_POSITIONS)

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> Plan:
        """The plan of one epoch."""
        return plan_stripes(mapping, self.stripe, seed, epoch)

    def check_fits(self, mapping: Mapping) -> None:
        """Raise ValueError where a stripe is longer than a chunk, or a group larger than the data set."""
        super().check_fits(mapping)
        if self.stripe > mapping.chunk_size:
            raise ValueError(f"a stripe of {self.stripe} samples of chunks of {mapping.chunk_size}")

    @property
    def kept_unit(self) -> int:
        """A stripe."""
        return self.stripe
