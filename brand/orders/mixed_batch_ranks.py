"""Which rank draws each position of a member of a mixture whose batches are planned from lengths?

As for any mixture, a data server goes from the draws of a member to positions of the mixture. As for planned batches,
it plans the batches of these positions, from the lengths of all members' samples. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.part import Subset
from brand.orders.base.policy import check_number
from brand.orders.batch_ranks import PlannedRule, SampleLengths, digest_of, ranks_by_position
from brand.orders.batches.batching import BatchLimits
from brand.orders.mixtures.mixed_order import MixedOrder
from brand.orders.mixtures.shares import MAX_POSITION
from brand.orders.order import Order

_FIELDS: Final = ("limits", "lengths", "member", "order", "subsets", "epoch", "batch", "replicas")


@dataclass(frozen=True, slots=True)
class MixedBatchRanks(PlannedRule):
    """The rank of each position of a member, from the batch on with which ranks have begun.

    Satisfies `brand.orders.base.rank_rule.RankRule`. Raises ValueError if a number is out of range.
    """

    limits: BatchLimits
    lengths: tuple[SampleLengths, ...]
    """By member."""
    member: int
    order: MixedOrder
    """The order of the mixture."""
    epoch: int
    batch: int
    """The first batch of `epoch`, an epoch of the mixture, that ranks draw. Later epochs are drawn as a whole."""
    replicas: int

    def __post_init__(self) -> None:
        PlannedRule.__post_init__(self)
        check_number("member", self.member, 0, len(self.order.orders) - 1)
        if not all(isinstance(order, Order) for order in self.order.orders):
            raise ValueError("batches are planned over a mixture of data sets, not of mixtures")
        if digest_of(self.lengths) != self.limits.lengths:
            raise ValueError("the batches are of other lengths")

    def check_fits(self, order: Any) -> None:
        """Raise ValueError if the member has another order, or a sample no length that fits a batch."""
        if order != self.order.orders[self.member]:
            raise ValueError(f"member {self.member} of the mixture has another order")
        for each, lengths in zip(self.order.orders, self.lengths, strict=True):
            assert isinstance(each, Order)
            lengths.check_fits(each, self.limits)

    def ranks_of(self, order: Order, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rank that draws each position of an epoch of the member, same shape.

        Positions that no rank draws, because they are before `epoch` or never come, count as drawn in turn.
        """
        at = self.order.pattern.positions(self.member, epoch * order.draws + positions)
        epoch_of, at = np.divmod(at, self.order.samples)
        ranks = positions % self.replicas
        for each in np.unique(epoch_of[epoch_of >= self.epoch]).tolist():
            if each < MAX_POSITION // self.order.samples:
                here, start = np.flatnonzero(epoch_of == each), self.batch if each == self.epoch else 0
                table = ranks_by_position(self.limits, self.lengths, self.order, each, start, self.replicas)
                ranks[here] = table[at[here]]
        return ranks

    def agrees_with(self, other: object) -> bool:
        """Whether both name the same rank at all positions that ranks draw from the later one's beginning on."""
        if not isinstance(other, MixedBatchRanks):
            return False
        mine, theirs = ((rule.limits, rule.member, rule.order, rule.replicas) for rule in (self, other))
        return mine == theirs and self.begins_as(other)

    def to_json(self) -> dict[str, Any]:
        return {
            "limits": self.limits.to_json(),
            "lengths": [lengths.to_json() for lengths in self.lengths],
            "member": self.member,
            "order": self.order.to_json(),
            "subsets": [[member, subset.to_text()] for member, subset in self.order.subsets.items()],
            "epoch": self.epoch,
            "batch": self.batch,
            "replicas": self.replicas,
        }

    @classmethod
    def from_json(cls, value: Any) -> MixedBatchRanks:
        """Read the output of `to_json`. Raises ValueError, TypeError or LookupError if it is invalid."""
        if not isinstance(value, Mapping) or set(value) != set(_FIELDS):
            raise ValueError(f"ranks of batches of a mixture have the fields {', '.join(_FIELDS)}")
        lengths = tuple(map(SampleLengths.from_json, value["lengths"]))
        subsets = {member: Subset.from_text(len(lengths[member].values), text) for member, text in value["subsets"]}
        order = MixedOrder.from_json(value["order"], subsets=subsets)
        limits = BatchLimits.from_json(value["limits"])
        return cls(limits, lengths, value["member"], order, value["epoch"], value["batch"], value["replicas"])
