"""Which rank draws each position of a member of a mixture?

Ranks divide the positions of the mixture, so the positions of a member follow no simple rule. Data servers of several
nodes need the rank of each: they send samples to the node whose rank draws them. So they go the way back, from the
draws of a member to the positions of its mixture (`Pattern.positions`), and from these to ranks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.policy import check_number
from brand.orders.base.rank_rule import MAX_RANKS
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.mixtures.mixed_order import ranks_of_rounds
from brand.orders.mixtures.shares import MAX_POSITION, Pattern
from brand.orders.order import MAX_SEED

MAX_LEVELS: Final = 8
"""Mixtures of mixtures are at most this deep."""


@dataclass(frozen=True, slots=True)
class MemberRanks:
    """The rank of each position of a member, from the position on at which ranks began to draw the mixture.

    Satisfies `brand.orders.base.rank_rule.RankRule`. Raises ValueError if a number is out of range.
    """

    levels: tuple[tuple[int, Pattern], ...]
    """The number of the member and the pattern of its mixture; then those of that mixture in the next one."""
    draws: int
    """Positions of an epoch of the member."""
    samples: int
    """Positions of an epoch of the outermost mixture."""
    seed: int
    first: int
    """The position of the outermost mixture's sequence from which the ranks divide its epoch."""
    replicas: int

    def __post_init__(self) -> None:
        check_number("draws", self.draws, 1, MAX_POSITIONS)
        check_number("samples", self.samples, 1, MAX_POSITIONS)
        check_number("seed", self.seed, 0, MAX_SEED)
        check_number("first", self.first, 0, MAX_POSITION)
        check_number("replicas", self.replicas, 1, MAX_RANKS)
        if not 1 <= len(self.levels) <= MAX_LEVELS:
            raise ValueError(f"{len(self.levels)} levels of mixtures: there are 1 to {MAX_LEVELS}")
        for member, pattern in self.levels:
            check_number("member", member, 0, pattern.members - 1)

    @property
    def since(self) -> int:
        """The position of the outermost mixture at which the ranks began."""
        return self.first

    @property
    def reach(self) -> int:
        """How far a rank draws positions out of their order: their positions ascend."""
        return 0

    def check_fits(self, order: Any) -> None:
        """Raise ValueError if epochs of the order have another length."""
        if order.draws != self.draws:
            raise ValueError(f"a member of {self.draws:,} positions an epoch, and its order has {order.draws:,}")

    def ranks_of(self, order: Any, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the rank that draws each position of an epoch of the member, same shape.

        Positions that no rank draws, because they are before `first` or never come, count as drawn in turn.
        """
        at = epoch * self.draws + positions
        for member, pattern in self.levels:
            at = pattern.positions(member, at)
        ranks = positions % self.replicas
        epoch_of, at = np.divmod(at, self.samples)
        begun, start = divmod(self.first, self.samples)
        for each in np.unique(epoch_of[epoch_of >= begun]).tolist():
            from_start = at - (start if each == begun else 0)
            here = np.flatnonzero((epoch_of == each) & (from_start >= 0))
            if len(here) and each < MAX_POSITION // self.samples:
                ranks[here] = self._of_epoch(each, start if each == begun else 0, from_start[here])
        return ranks

    def _of_epoch(self, epoch: int, start: int, from_start: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ranks of positions of an epoch of the mixture, counted from `start`."""
        rounds, in_round = np.divmod(from_start, self.replicas)
        least = int(rounds.min())
        turned = ranks_of_rounds(self.seed, epoch, start, range(least, int(rounds.max()) + 1), self.replicas)
        found: NDArray[np.int64] = (in_round - turned[rounds - least]) % self.replicas
        return found

    def agrees_with(self, other: object) -> bool:
        """Whether both name the same rank at all positions that ranks draw from the later one's beginning on."""
        if not isinstance(other, MemberRanks) or replace(self, first=0) != replace(other, first=0):
            return False
        return self.first == other.first or max(self.first, other.first) % self.samples == 0

    def to_json(self) -> dict[str, Any]:
        return {
            "levels": [[member, pattern.to_json()] for member, pattern in self.levels],
            "draws": self.draws,
            "samples": self.samples,
            "seed": self.seed,
            "first": self.first,
            "replicas": self.replicas,
        }

    @classmethod
    def from_json(cls, value: Any) -> MemberRanks:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        names = ("draws", "samples", "seed", "first", "replicas")
        if not isinstance(value, Mapping) or set(value) != {"levels", *names} or not isinstance(value["levels"], list):
            raise ValueError(f"ranks of a member have the fields levels, {', '.join(names)}")
        levels = []
        for each in value["levels"]:
            match each:
                case [member, [*pattern]] if len(pattern) and len(pattern[0]) == 2:
                    levels.append((member, Pattern.from_json(pattern)))
                case _:
                    raise ValueError("a level of a mixture has the number of a member, and weights")
        return cls(tuple(levels), *(value[name] for name in names))
