"""Order `uniform`: a uniform shuffle, one read for each sample.

The order of an epoch is a random permutation of all samples. It depends on the seed and the epoch only: not on memory,
nodes or chunks. Each sample is a read of its own, and leaves memory when it is drawn, unless it is cached. Cached
samples are chosen one by one, by the seed, as many as memory holds.

Up to `MOST_SORTED` samples are sorted by random words: every order is possible, and all are equally likely. A larger
permutation is a Feistel network, which makes any part of it without the rest (`feistel`). A network of few samples
would miss arrangements. Its bias falls with the number of samples: from `MOST_SORTED` on, it would take about a million
epochs to see it.

`Stripes(length=1)` has the same distribution of orders, but not the same memory: it buffers about a chunk of each group
for shuffling, which single samples do not need. Here a plan holds one sample at a time, and memory caches all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import index_dtype
from brand.orders.base.feistel import FeistelNetwork
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, OpenReads, PlanWindow
from brand.orders.base.policy import OrderChoice, Policy, Setting
from brand.orders.base.random import RandomStream, blocks, permutation
from brand.reprs import Reprs

MOST_SORTED: Final = 1 << 16
"""The most samples that are sorted: 5 ms, and half a megabyte. It fixes orders that users resume."""


class UniformOrder(Reprs, shows="count"):
    """A random order of the numbers 0 to `count` - 1. It needs memory for a table only if they are few."""

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        self.count = count
        self._network: FeistelNetwork | None = None
        self._number_at: NDArray[Any] = np.arange(0)
        """The number at each position, if there is no network."""
        self._position_of: NDArray[Any] = np.arange(0)
        """The position of each number, if there is no network."""
        if count > MOST_SORTED:
            self._network = FeistelNetwork(count, seed, RandomStream.SHIFTS, epoch)
        else:
            self._number_at = permutation(count, seed, RandomStream.ACCESS, epoch)
            self._position_of = np.empty_like(self._number_at)
            self._position_of[self._number_at] = np.arange(count)

    def numbers(self, positions: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the number at each position, shape (positions,)."""
        self._check(positions)
        found: NDArray[Any] = self._number_at[positions] if self._network is None else self._network.numbers(positions)
        return found

    def positions(self, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the position of each number, shape (numbers,)."""
        self._check(numbers)
        found: NDArray[Any] = self._position_of[numbers] if self._network is None else self._network.positions(numbers)
        return found

    def _check(self, numbers: NDArray[np.integer[Any]]) -> None:
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.count:
            raise ValueError(f"positions {numbers.min()} to {numbers.max()} of {self.count:,} samples")


class UniformWindows(Reprs, shows="mapping"):
    """One epoch of `uniform`, in windows: each sample is a read of its own. It needs memory for a window."""

    def __init__(self, mapping: Mapping, seed: int, epoch: int) -> None:
        self.mapping = mapping
        self.order = UniformOrder(mapping.samples, seed, epoch)

    def window(self, first: int, end: int) -> PlanWindow:
        """Return the plan of positions `first` to `end` - 1."""
        sample_of = np.empty(end - first, index_dtype(self.mapping.samples))
        for part in blocks(end - first):
            sample_of[part] = self.order.numbers(np.arange(first + part.start, first + part.stop))
        return PlanWindow(first, sample_of, None)

    @property
    def draws(self) -> int:
        return self.mapping.samples

    @property
    def subset(self) -> None:
        return None

    @property
    def read_count(self) -> int:
        return 0

    @property
    def position_of(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return self.order.positions

    def open_reads(self, position: int) -> OpenReads:  # noqa: ARG002 - as `PlanWindows`
        """Return no reads: none has a sample that is drawn later."""
        return OpenReads.none(self.mapping)

    def whole(self) -> EpochPlan:
        """Return the plan as a whole. Any thread may call this."""
        window = self.window(0, self.mapping.samples)
        return EpochPlan(self.mapping, window.sample_of, window.reads)

    def reads_before(self, position: int) -> int:
        """Return the number of reads that are due before a position is drawn."""
        return position


@dataclass(frozen=True)
class UniformPolicy(Policy):
    """The policy of a random order with one read per sample. Groups only determine which node owns which chunks."""

    name: ClassVar[str] = "uniform"
    version: ClassVar[int] = 2
    """Until version 1, an epoch of any size was sorted."""

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        return UniformWindows(mapping, seed, epoch).whole()

    def windows(self, mapping: Mapping, seed: int, subset: Subset | None, epoch: int) -> UniformWindows | None:
        return UniformWindows(mapping, seed, epoch) if subset is None else None

    def drawn(self, mapping: Mapping, seed: int, subset: Subset | None, epoch: int) -> Iterator[NDArray[Any]]:
        order, mask = UniformOrder(mapping.samples, seed, epoch), None if subset is None else subset.mask
        for part in blocks(mapping.samples):
            places = order.numbers(np.arange(part.start, part.stop))
            yield places if mask is None else places[mask[places]]

    def held(self, mapping: Mapping) -> int:
        del mapping
        return 1

    @property
    def kept_unit(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Uniform(OrderChoice):
    """A uniform shuffle: any sample is as likely as any other at each position.

    Each sample is a read of its own. Memory has no shuffle buffer: it prefetches, and caches single samples over all
    epochs. The order depends on the seed only.
    """

    policy: ClassVar[type[UniformPolicy]] = UniformPolicy

    def choose_policy(self, setting: Setting) -> UniformPolicy:
        """Return the policy."""
        return UniformPolicy(setting.owned_chunks)
