"""When must it be chosen anew which samples are kept, and how much memory may they take?"""

from __future__ import annotations

from typing import Final

from brand.node.arena import Arena
from brand.node.epochs import Epochs
from brand.node.residents import Residents
from brand.node.tasks import Choice
from brand.protocol.order import Order

AHEAD_SHARE: Final = 8
"""One part in so many of the arena is left free of kept samples, to read ahead into."""
AHEAD_MOST: Final = 256 << 20
"""No more bytes than this are left free for that."""


class Keeping:
    """Choices of what is kept. Other nodes may fill `remote_pages` of the arena."""

    def __init__(self, arena: Arena, residents: Residents, epochs: Epochs, chunk_size: int, remote_pages: int) -> None:
        self._arena, self._residents, self._epochs = arena, residents, epochs
        self._chunk_size, self._remote_pages = chunk_size, remote_pages
        self._runs: set[int] = set()
        """Runs that were under way when it was decided what is kept."""

    def choice_wanted(self) -> Choice | None:
        """What is to be kept must be chosen anew: a run has begun, or has ended and left its memory."""
        runs = self._epochs.under_way(self._runs)
        if runs == self._runs or (runs and not self._epochs.orders()):
            return None
        self._runs = runs
        for (run, _), epoch in self._epochs:
            order = self._epochs.order(run)
            unit = order.policy.kept_unit
            if unit is not None:
                return Choice(epoch.plan, unit, order.seed, self._room(order), self._epochs.owners(order))
        return None

    def _room(self, order: Order) -> int:
        """Pages that kept samples and an epoch's samples of this order may take together."""
        pages = self._arena.count - 1 - self._remote_pages
        if int(self._residents.pages_of.sum(dtype="int64")) <= pages:
            return pages  # all fits, and nothing will ever have to be read ahead
        pages -= min(pages // AHEAD_SHARE, AHEAD_MOST // self._arena.page)
        mean = float(self._residents.pages_of.mean())
        others = self._epochs.orders() - {order}
        return pages - round(sum(other.mapping.groups * self._chunk_size * mean for other in others))
