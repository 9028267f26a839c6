"""The common base of policies whose jobs draw from one sequence of laps, the epochs of `stripes`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import Policy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.stripes import plan_stripes


@dataclass(frozen=True)
class LapPolicy(Policy):
    """A policy with the numbers of the laps."""

    stripe: int = 1
    """`r`: samples of a stripe, as in `StripePolicy`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.stripes

    @property
    def stripes(self) -> StripePolicy:
        """The policy of the laps."""
        return StripePolicy(self.group_chunks, self.stripe)

    def check_fits(self, mapping: Mapping) -> None:
        """Raise ValueError if the laps cannot be planned."""
        self.stripes.check_fits(mapping)

    @property
    def kept_unit(self) -> int:
        """A stripe."""
        return self.stripe

    @property
    def common(self) -> Hashable:
        """The numbers of the laps."""
        return self.stripes

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        """Return the lap `epoch`, the plan of a job that is alone."""
        return plan_stripes(mapping, self.stripe, seed, epoch)
