"""Which online orders does a server know, and which positions have clients asked for?

An order belongs to an epoch of a run and outlasts its entries: an answer to a client is final. The server remembers
the orders of a run's epochs that have an entry, and the last few others. If it has forgotten an order, it makes no new
one before a rank begins the epoch again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.state.epoch_table import EpochTable, Key
from brand.node.decide.state.runs import Runs
from brand.node.wire.numbers import RunNumber
from brand.orders.joader.growing import Growing

MOST_KEPT: Final = 4
"""Orders of epochs without an entry that are remembered per run, because a slow process may still draw from them."""


@dataclass(eq=False, slots=True)
class OnlineOrder:
    """The order of one epoch, and the positions that clients have asked for."""

    growing: Growing | None = None
    """None until a plan is made."""
    most: int = 0
    """Clients have asked for positions before this one."""
    largest: int = 0
    """Positions of the largest draw."""
    begun: bool = False
    """Whether a rank has begun the epoch here."""
    told: bool = False
    """Whether a sample was sent to a client, so that decided positions are final."""
    since_s: float | None = None
    """The time of the first request for it, or of the first report of what a client knows."""

    def add_request(self, end: int, count: int, now_s: float) -> None:
        """Note that a client asks for `count` positions before `end`, or wants them decided."""
        self.most, self.largest = max(self.most, end), max(self.largest, count)
        self.since_s = now_s if self.since_s is None else self.since_s

    def mark_begun(self) -> None:
        """Note that a rank begins the epoch."""
        self.begun = True

    def mark_told(self) -> None:
        """Note that samples are sent to a client."""
        self.told = True

    def set_growing(self, growing: Growing) -> Growing:
        """Set the order if there was none. Return the order."""
        if self.growing is None:
            self.growing = growing
        return self.growing


class OnlineOrderTable:
    """The online orders of all runs of a node, by run and epoch."""

    def __init__(self, runs: Runs, lives: EpochTable) -> None:
        self._runs, self._lives = runs, lives
        self._orders: dict[Key, OnlineOrder] = {}
        self._over: dict[RunNumber, set[int]] = {}
        """Epochs whose orders are forgotten, although samples were sent to clients."""

    def __repr__(self) -> str:
        return f"OnlineOrderTable({ {key: order.growing for key, order in self._orders.items()} })"

    def __getitem__(self, key: Key) -> OnlineOrder:
        """Return the order of an epoch. Raises `UsageError` if it is forgotten."""
        if self.is_over(key):
            raise UsageError(
                f"epoch {key[1]} of job {self._runs[key[0]].name} is over, and its order is not remembered"
            )
        return self._orders.setdefault(key, OnlineOrder())

    def get(self, key: Key) -> OnlineOrder | None:
        """Return the order of an epoch, or None if the server has none."""
        return self._orders.get(key)

    def items(self) -> list[tuple[Key, OnlineOrder]]:
        """Return all orders."""
        return list(self._orders.items())

    def is_over(self, key: Key) -> bool:
        """Return whether the order of an epoch is forgotten, although samples were sent to clients."""
        return key[1] in self._over.get(key[0], ())

    def reopen(self, key: Key) -> OnlineOrder:
        """Return the order of an epoch that a rank begins or a client knows; a new one if it is forgotten."""
        self._over.get(key[0], set()).discard(key[1])
        return self[key]

    def decided(self, key: Key) -> int:
        """Return how many positions of an epoch are decided."""
        order = self._orders.get(key)
        return 0 if order is None or order.growing is None else order.growing.decided

    def publish(self, key: Key, first: int, most: int) -> NDArray[np.int32]:
        """Return up to the given number of decided samples at positions from `first` on.

        These positions are final from now on.
        """
        if first >= self.decided(key):
            return np.empty(0, np.int32)
        order = self._orders[key]
        order.mark_told()
        assert order.growing is not None
        return order.growing.sample_of[first : min(first + most, order.growing.decided)].copy()

    def forget_old(self) -> list[Key]:
        """Forget runs that have ended, and epochs long before the current ones. Return these epochs."""
        gone = [key for key in self._orders if key[0] not in self._runs]
        self._over = {run: epochs for run, epochs in self._over.items() if run in self._runs}
        idle: dict[RunNumber, list[Key]] = {}
        for key in self._orders:
            if key[0] in self._runs and self._lives.get(key) is None:
                idle.setdefault(key[0], []).append(key)
        for keys in idle.values():
            old = sorted(keys)[:-MOST_KEPT]
            gone += old
            for run, epoch in (key for key in old if self._orders[key].told):
                self._over.setdefault(run, set()).add(epoch)
        for key in gone:
            del self._orders[key]
        return gone
