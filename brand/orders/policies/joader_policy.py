"""Order `joader`: several jobs draw the same sample at the same time as often as uniform draws allow (JOADER).

The next sample is decided while jobs draw (`tree`), from the samples that all of them still need. So a plan has no
order to follow: it lists the samples of the subset, in the order of `uniform`, and its order *grows* (`growing`). Each
sample is a read of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.joins import Join
from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import BY_ONE_NODE, OrderChoice, Setting
from brand.orders.policies.uniform import UniformPolicy


@dataclass(frozen=True)
class JoaderPolicy(UniformPolicy):
    """The policy of JOADER's dependent sampling. Groups only determine which samples replace damaged ones.

    Memory caches samples over epochs only if it can hold all; else it is the jobs' cache.
    """

    name: ClassVar[str] = "joader"
    one_node: ClassVar[bool] = True  # only one server decides for all jobs
    grows: ClassVar[bool] = True

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        return replace(super().plan(mapping, seed, epoch), grows=True)

    def plan_joined(
        self, mapping: Mapping, seed: int, mask: NDArray[np.bool_] | None, joins: Sequence[Join]
    ) -> EpochPlan:
        return replace(super().plan_joined(mapping, seed, mask, joins), grows=True)

    @property
    def common(self) -> Hashable:
        """The name of the rule: all jobs of one seed draw together, whatever their numbers are."""
        return self.name


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
