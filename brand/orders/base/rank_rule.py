"""Which rank draws each position of an epoch, if ranks do not draw in turn? An order that needs it has a rule."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.reprs import Reprs

MAX_RANKS: Final = 1 << 16
"""The most ranks that a rule divides positions among."""
_BLOCK: Final = 1 << 12
"""Positions whose ranks are found together: a draw asks for the rank of its first position."""
_BLOCKS: Final = 64
"""Blocks that are remembered: each process of each rank draws from its own."""


class RankRule(Protocol):
    """The division of the positions of all epochs of a run among its ranks."""

    @property
    def replicas(self) -> int:
        """The number of ranks."""

    @property
    def since(self) -> int:
        """A number that grows with the position from which the ranks draw: a later rule replaces an earlier one."""

    @property
    def reach(self) -> int:
        """How far a rank draws positions out of their order: 0 if they ascend."""

    def check_fits(self, order: Any) -> None:
        """Raise ValueError if the rule is not for runs with this order."""

    def ranks_of(self, order: Any, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rank that draws each position of an epoch of an order, same shape."""

    def agrees_with(self, other: object) -> bool:
        """Whether both name the same rank at all positions that ranks still draw."""

    def to_json(self) -> dict[str, Any]:
        """Return the rule as plain values."""


class EpochRanks(Reprs, shows="rule epoch"):
    """The ranks of the positions of one epoch by a rule."""

    def __init__(self, rule: RankRule, order: Any, epoch: int) -> None:
        self.rule, self._order, self.epoch = rule, order, epoch
        self._blocks: dict[int, NDArray[np.int64]] = {}

    def prepare(self) -> None:
        """Do the work that the first question would do, in another thread than the one that asks it."""
        self.rule.ranks_of(self._order, self.epoch, np.array([0, self._order.draws - 1]))

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rank that draws each position, same shape."""
        first = int(positions[0]) // _BLOCK if len(positions) else 0
        if len(positions) != 1:
            return self.rule.ranks_of(self._order, self.epoch, positions)
        if first not in self._blocks:
            if len(self._blocks) == _BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            block = np.arange(first * _BLOCK, min((first + 1) * _BLOCK, self._order.draws))
            self._blocks[first] = self.rule.ranks_of(self._order, self.epoch, block)
        return self._blocks[first][positions - first * _BLOCK]
