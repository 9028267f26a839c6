"""Which samples does a node draw again soonest, and so which should it cache if it reads for itself only?

A node whose ranks draw only some of the positions draws other samples in each epoch. The order of all epochs is known,
so it is also known when, and how often, the node draws each unit of samples again:

    NextUse      epochs until the next draw: units that are drawn again soonest are cached (Lobster's reuse distance,
                 which is Belady's rule epoch by epoch)
    Frequency    draws in all epochs that are left: units that are drawn most often are cached (HDMLP)

A table for an epoch needs its order, so each call of `foresee` makes one table, and plans wait only briefly. An order
that has parts is counted part by part. One thread uses a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.placement import unit_at, unit_count
from brand.orders.order import Order
from brand.reprs import Reprs

FARTHEST: Final = 64
"""The most epochs that `NextUse` looks ahead."""
TURNS: Final = 8
"""`NextUse` looks this many draws of a sample ahead, on average: 1 in 3,000 samples is not drawn in that time."""

MANY: Final = 1 << 32
"""A number larger than that of any epoch."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of one node, among `replicas` that draw in turn."""

    here: tuple[int, ...]
    replicas: int

    @property
    def all(self) -> bool:
        """Whether the node draws all positions."""
        return len(self.here) == self.replicas

    @property
    def share(self) -> float:
        """The fraction of the positions that the node draws."""
        return len(self.here) / self.replicas

    def places(self, sample_of: NDArray[Any], start: int = 0) -> list[NDArray[Any]]:
        """Return the places that each of these ranks draws from position `start` on, in order."""
        return [sample_of[start + rank :: self.replicas] for rank in self.here]


class NextUse(Reprs, shows="_ahead _drawn"):
    """The next epoch in which these ranks draw each unit of `unit` samples. `last` is the number of the last epoch."""

    def __init__(self, order: Order, ranks: Ranks, unit: int, last: int) -> None:
        self._order, self._ranks, self._unit, self._last = order, ranks, unit, last
        self._ahead = min(FARTHEST, max(TURNS, round(TURNS / ranks.share)))
        self._drawn: dict[int, NDArray[np.uint8]] = {}
        """By epoch, a bit for each unit."""

    def _epochs(self, epoch: int) -> range:
        return range(epoch + 1, min(epoch + self._ahead, self._last) + 1)

    def foresee(self, epoch: int) -> bool:
        """Make one more table that `key` needs. Return whether one was missing."""
        missing = [each for each in self._epochs(epoch) if each not in self._drawn]
        if missing:
            self._drawn[missing[0]] = np.packbits(_draws(self._order, self._ranks, self._unit, missing[0]) > 0)
        return bool(missing)

    def key(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the epochs until each unit is drawn again after `epoch`, and whether the tables contain such a draw.

        Both have the shape (units,).
        """
        while self.foresee(epoch):
            pass
        self._drawn = {each: bits for each, bits in self._drawn.items() if each > epoch}
        ahead = [self._drawn[each] for each in self._epochs(epoch)]
        until = next_use(ahead, unit_count(self._order.mapping, self._unit))
        return until.astype(np.int64), until <= len(ahead)


class Frequency(Reprs, shows="_at _last"):
    """The number of draws of each unit of `unit` samples by these ranks, in the epochs to `last`."""

    def __init__(self, order: Order, ranks: Ranks, unit: int, last: int) -> None:
        self._order, self._ranks, self._unit, self._last = order, ranks, unit, last
        units = unit_count(order.mapping, unit)
        self._draws, self._first = np.zeros(units, np.int64), np.zeros(units, np.int64)
        self._at: range | None = None
        """Epochs that were counted."""

    def foresee(self, epoch: int) -> bool:
        """Count one more epoch, from `epoch` on. Return whether one was missing."""
        if self._at is None or self._at.start != epoch:
            self._at = range(epoch, epoch)
            self._draws[:], self._first[:] = 0, MANY
        if self._at.stop > max(self._last, epoch):
            return False
        draws = _draws(self._order, self._ranks, self._unit, self._at.stop)
        self._first[(draws > 0) & (self._draws == 0)] = self._at.stop
        self._draws += draws
        self._at = range(epoch, self._at.stop + 1)
        return True

    def key(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return a key that is smaller the more often a unit is drawn, and whether it is drawn at all. Both (units,).

        If two units are drawn equally often, the unit that is drawn first has the smaller key.
        """
        while self.foresee(epoch):
            pass
        return self._first - MANY * self._draws, self._draws > 0


def next_use(drawn: Sequence[NDArray[np.uint8]], units: int) -> NDArray[np.uint8]:
    """Return the epochs until each unit is drawn: 1 for the first of `drawn`, `len(drawn) + 1` if it is in none.

    `drawn` has the packed bits of at most 254 epochs, a bit for each unit.
    """
    until = np.full(units, len(drawn) + 1, np.uint8)
    for distance in range(len(drawn), 0, -1):
        until[np.unpackbits(drawn[distance - 1], count=units).view(np.bool_)] = distance
    return until


def _draws(order: Order, ranks: Ranks, unit: int, epoch: int) -> NDArray[np.int64]:
    """Return how many samples of each unit these ranks draw in an epoch, shape (units,)."""
    found, first = np.zeros(unit_count(order.mapping, unit), np.int64), 0
    for part in order.drawn(epoch):
        for rank in ranks.here:
            places = part[(rank - first) % ranks.replicas :: ranks.replicas]
            np.add.at(found, unit_at(order.mapping, unit, places), 1)
        first += len(part)
    return found
