"""Protocol `joader`: several jobs draw the same sample at the same time as often as uniform draws allow (JOADER).

Which sample comes next is decided while jobs draw (`dependent`), by what all of them still need. So a plan has no order
to follow: it lists the samples of the part, in the order of `uniform`, and its order *grows* (`growing`). Each sample
is a read of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.choice import OrderChoice, Setting
from brand.orders.base.joins import Join
from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import BY_ONE_NODE, Policy
from brand.orders.base.random import RandomStream, permutation


@dataclass(frozen=True)
class JoaderPolicy(Policy):
    """Jobs draw by JOADER's dependent sampling. Groups only say which samples replace damaged ones."""

    name: ClassVar[str] = "joader"

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        """A plan whose order grows."""
        return EpochPlan(
            mapping, permutation(mapping.samples, seed, RandomStream.ACCESS, epoch), reads=None, grows=True
        )

    def plan_joined(
        self, mapping: Mapping, seed: int, mask: NDArray[np.bool_] | None, joins: Sequence[Join]
    ) -> EpochPlan:
        """A plan whose order grows, of the places of `mask`."""
        return replace(super().plan_joined(mapping, seed, mask, joins), grows=True)

    def held(self, mapping: Mapping) -> int:
        """One sample: all others may be given back."""
        del mapping
        return 1

    @property
    def kept_unit(self) -> int:
        """A sample. Memory keeps samples only where it has room for all; else it is the jobs' cache."""
        return 1

    @property
    def common(self) -> Hashable:
        """The rule: all jobs of one seed draw together, whatever their numbers are."""
        return self.name

    @property
    def one_node(self) -> bool:
        """Only one server decides for all jobs."""
        return True

    @property
    def grows(self) -> bool:
        """The order is decided while jobs draw."""
        return True


@dataclass(frozen=True, slots=True)
class Joader(OrderChoice):
    """A baseline, to compare with `Shared()`: the dependent sampling of JOADER (NeurIPS 2022).

    A uniform shuffle by single samples, on one node. Jobs fetch the same sample at the same time as often as uniform
    shuffles allow.
    """

    policy: ClassVar[type[JoaderPolicy]] = JoaderPolicy
    baseline: ClassVar[bool] = True

    def choose_policy(self, setting: Setting) -> JoaderPolicy:
        """Return the policy."""
        if setting.nodes > 1:
            raise UsageError(BY_ONE_NODE)
        return JoaderPolicy(setting.owned_chunks)
