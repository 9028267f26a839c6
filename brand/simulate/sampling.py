"""Which samples does each rank draw in each batch? `drawing` asks, and the orders and rules of the samplers answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.rank_rule import RankRule
from brand.orders.batch_ranks import BatchRanks, SampleLengths
from brand.orders.batches.batching import BatchLimits, PositionBatches
from brand.orders.mixtures.member_ranks import MemberRanks
from brand.orders.mixtures.mixed_order import MixedDraws, MixedOrder, positions_of_rank
from brand.orders.order import Order
from brand.reprs import Reprs


class Sampling(Protocol):
    """The draws of the ranks of a sampler."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """The orders that are drawn at a time, by number."""

    @property
    def draws(self) -> int:
        """Positions of an epoch."""

    def begins(self, epoch: int) -> list[tuple[int, int, int]]:
        """Return the number, the epoch and the position of each order with which an epoch of the sampler begins."""

    def of_rank(self, epoch: int, ranks: tuple[int, int], batch: int) -> tuple[MixedDraws, NDArray[np.int64]]:
        """Return the draws of a rank, and the end of each batch in these. `ranks`: the rank and the number of ranks."""

    def rule(self, number: int, epoch: int, ranks: int) -> RankRule:
        """Return the rule by which ranks that begin with an epoch of the sampler divide an order."""


@dataclass(frozen=True)
class MixedSampling:
    """A sampler of a few orders: of weights, a subset, or the members of a mixture."""

    order: MixedOrder

    @property
    def orders(self) -> tuple[Order, ...]:
        return tuple(each for each in self.order.orders if isinstance(each, Order))

    @property
    def draws(self) -> int:
        return self.order.samples

    def begins(self, epoch: int) -> list[tuple[int, int, int]]:
        weights, counts = self.order.weights_at(epoch, 0), self.order.counts(epoch, 0)
        found = enumerate(zip(weights, counts, self.order.sizes, strict=True))
        return [(number, *divmod(count, size)) for number, (weight, count, size) in found if weight]

    def of_rank(self, epoch: int, ranks: tuple[int, int], batch: int) -> tuple[MixedDraws, NDArray[np.int64]]:
        samples = self.order.samples
        positions = positions_of_rank(self.order.seed, epoch, 0, range(-(-samples // ranks[1])), ranks)
        positions = positions[positions < samples]
        ends = np.minimum(np.arange(batch, len(positions) + batch, batch), len(positions))
        return self.order.draws(epoch, positions), ends

    def rule(self, number: int, epoch: int, ranks: int) -> RankRule:
        order = self.order
        level = number, order.pattern
        return MemberRanks((level,), order.sizes[number], order.samples, order.seed, epoch * order.samples, ranks)


class PlannedSampling(Reprs, shows="_limits"):
    """A sampler that plans batches from the lengths of samples."""

    def __init__(self, order: Order, limits: BatchLimits, lengths: SampleLengths) -> None:
        self.orders = (order,)
        self._limits, self._lengths = limits, lengths
        self._planned: tuple[int, PositionBatches] | None = None
        """The epoch whose batches were planned last, and these."""

    @property
    def draws(self) -> int:
        return self.orders[0].draws

    @property
    def mean_samples(self) -> int:
        """Mean number of samples of a batch of the first epoch, at least 1."""
        return max(1, round(self.draws / len(self._batches(0))))

    def begins(self, epoch: int) -> list[tuple[int, int, int]]:
        return [(0, epoch, 0)]

    def of_rank(self, epoch: int, ranks: tuple[int, int], batch: int) -> tuple[MixedDraws, NDArray[np.int64]]:  # noqa: ARG002
        batches = self._batches(epoch)
        positions, sizes = batches.taken(np.arange(ranks[0], len(batches), ranks[1]))
        drawn = MixedDraws(np.zeros(len(positions), np.int16), np.full(len(positions), epoch), positions)
        return drawn, np.cumsum(sizes)

    def rule(self, number: int, epoch: int, ranks: int) -> RankRule:  # noqa: ARG002 - there is one order
        return BatchRanks(self._limits, self._lengths, epoch, 0, ranks)

    def _batches(self, epoch: int) -> PositionBatches:
        if self._planned is None or self._planned[0] != epoch:
            (order,) = self.orders
            lengths = self._lengths.values[order.plan(epoch).sample_of]
            self._planned = epoch, self._limits.batches(lengths, order.seed, epoch)
        return self._planned[1]
