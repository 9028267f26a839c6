"""When must a node choose its kept samples anew, and how much memory may they take?"""

from __future__ import annotations

from typing import Final

from brand.node.decide.caching import Caching
from brand.node.decide.epochs import Epochs
from brand.node.decide.members import Members
from brand.node.decide.tasks import Choice
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import RunNumber
from brand.protocol.order import Order

AHEAD_SHARE: Final = 8
"""`1 / AHEAD_SHARE` of the arena stays free of kept samples, for reading ahead."""
AHEAD_MOST: Final = 256 << 20
"""The most bytes that stay free of kept samples, for reading ahead."""


class Keeping:
    """Choices of kept samples. Other nodes may fill `remote_pages` of the arena."""

    def __init__(
        self, residents: Residents, epochs: Epochs, members: Members, caching: Caching, remote_pages: int
    ) -> None:
        self._residents, self._epochs, self._members, self._caching = residents, epochs, members, caching
        self._remote_pages = remote_pages
        self._runs: set[RunNumber] = set()
        """Runs that were under way at the last choice."""

    def choice_wanted(self) -> Choice | None:
        """The choice to make now: a run has begun, or has ended and left its memory. None: the last choice holds."""
        live = self._epochs.lives.live()
        runs = {run for (run, _), _ in live}
        if runs != self._runs:  # a run may wait for the plan of its next epoch
            runs |= self._runs & {key[0] for key, life in self._epochs.lives.items() if life.planned}
        if runs == self._runs or (runs and not live):
            return None
        self._runs = runs
        orders = [(self._epochs.runs[run].order, at.epoch.plan) for (run, _), at in live]
        keeping = [each for each in orders if each[0].policy.kept_unit is not None]
        for order, plan in keeping or orders:
            unit = order.policy.kept_unit
            shelf = self._caching.shelf(unit, order.chunk_size)
            if unit is not None or shelf is not None:
                owners = self._members.owners(order.mapping)
                return Choice(plan, unit, order.seed, self._room(order), owners, shelf)
        return None

    def _room(self, order: Order) -> int:
        """Pages that kept samples and an epoch's samples of this order may take together."""
        pages = self._residents.pool.allocator.count - 1 - self._remote_pages
        if int(self._residents.pages_of.sum(dtype="int64")) <= pages:
            return pages  # all samples fit, so nothing is read ahead
        pages -= min(pages // AHEAD_SHARE, AHEAD_MOST // self._residents.pool.allocator.page)
        mean = float(self._residents.pages_of.mean())
        others = {self._epochs.runs[run].order for (run, _), _ in self._epochs.lives.live()} - {order}
        return pages - round(sum(other.policy.held(other.mapping) for other in others) * mean)
