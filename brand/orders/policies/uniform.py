"""Order `uniform`: a uniform shuffle. Every order of the samples is possible, and all are equally likely.

The order of an epoch is a random permutation of all samples. It depends on the seed and the epoch only: not on memory,
nodes or chunks. Each sample is a read of its own, and leaves memory when it is drawn, unless it is cached. Cached
samples are chosen one by one, by the seed, as many as memory holds.

`Stripes(length=1)` has the same distribution of orders, but not the same memory: it buffers about a chunk of each group
for shuffling, which single samples do not need. Here a plan holds one sample at a time, and memory caches all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import OrderChoice, Policy, Setting
from brand.orders.base.random import RandomStream, permutation


@dataclass(frozen=True)
class UniformPolicy(Policy):
    """The policy of a random order with one read per sample. Groups only determine which node owns which chunks."""

    name: ClassVar[str] = "uniform"

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        return EpochPlan(mapping, permutation(mapping.samples, seed, RandomStream.ACCESS, epoch), reads=None)

    def held(self, mapping: Mapping) -> int:
        del mapping
        return 1

    @property
    def kept_unit(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Uniform(OrderChoice):
    """A uniform shuffle: every order of the samples is possible, and all are equally likely.

    Each sample is a read of its own. Memory has no shuffle buffer: it prefetches, and caches single samples over all
    epochs. The order depends on the seed only.
    """

    policy: ClassVar[type[UniformPolicy]] = UniformPolicy

    def choose_policy(self, setting: Setting) -> UniformPolicy:
        """Return the policy."""
        return UniformPolicy(setting.owned_chunks)
