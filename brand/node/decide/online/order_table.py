"""How far is each online order decided, known to other nodes, and asked for? Orders outlast the entries of epochs."""

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
    confirmed: int | None = None
    """All other nodes know the positions before this one; None if none has to confirm them."""

    def add_request(self, end: int, count: int, now_s: float) -> None:
        """Note that a client asks for `count` positions before `end`, or needs them decided."""
        self.most, self.largest = max(self.most, end), max(self.largest, count)
        self.since_s = now_s if self.since_s is None else self.since_s

    @property
    def complete(self) -> bool:
        return self.growing is not None and self.growing.complete

    @property
    def decided(self) -> int:
        return 0 if self.growing is None else self.growing.decided

    @property
    def final(self) -> int:
        """Clients may be answered at positions before this one."""
        return self.decided if self.confirmed is None else min(self.decided, self.confirmed)

    def confirm(self, position: int | None) -> None:
        """Note that all other nodes know the positions before this one; None: none has to.

        Positions that were final remain final when a node joins that does not know them.
        """
        self.confirmed = None if position is None else max(self.final, position)

    def mark_begun(self) -> None:
        self.begun = True

    def mark_told(self) -> None:
        self.told = True

    def set_growing(self, growing: Growing) -> Growing:
        """Set the order if there was none. Return the order."""
        if self.growing is None:
            self.growing = growing
        return self.growing


class OnlineOrderTable(dict[Key, OnlineOrder]):
    """The online orders of all runs of a node, by run and epoch. A missing order is added, unless it is forgotten."""

    def __init__(self, runs: Runs, lives: EpochTable) -> None:
        self._runs, self._lives = runs, lives
        self._over: dict[RunNumber, set[int]] = {}
        """Epochs whose orders are forgotten, although samples were sent to clients."""

    def __missing__(self, key: Key) -> OnlineOrder:
        if self.is_over(key):
            raise UsageError(
                f"epoch {key[1]} of job {self._runs[key[0]].name} is over, and its order is not remembered"
            )
        return self.setdefault(key, OnlineOrder())

    def is_over(self, key: Key) -> bool:
        """Return whether the order of an epoch is forgotten, although samples were sent to clients."""
        return key[1] in self._over.get(key[0], ())

    def reopen(self, key: Key) -> OnlineOrder:
        """Return the order of an epoch that a rank begins or a client knows; a new one if it is forgotten."""
        self._over.get(key[0], set()).discard(key[1])
        return self[key]

    def final(self, key: Key) -> int:
        """Return the position before which clients may know the order."""
        order = self.get(key)
        return 0 if order is None else order.final

    def publish(self, key: Key, first: int, most: int) -> NDArray[np.int32]:
        """Return up to `most` samples at positions from `first` on, as far as clients may know them."""
        return self._tell(key, first, min(first + most, self.final(key)))

    def send(self, key: Key, first: int, most: int) -> NDArray[np.int32]:
        """Return up to `most` decided samples at positions from `first` on, for another node."""
        order = self.get(key)
        return self._tell(key, first, 0 if order is None else min(first + most, order.decided))

    def _tell(self, key: Key, first: int, end: int) -> NDArray[np.int32]:
        """Return the samples at positions `first` to `end` - 1. These positions are final from now on."""
        if first >= end:
            return np.empty(0, np.int32)
        order = self[key]
        order.mark_told()
        assert order.growing is not None
        return order.growing.sample_of[first:end].copy()

    def forget_old(self) -> list[Key]:
        """Forget runs that have ended, and epochs long before the current ones. Return these epochs."""
        gone = [key for key in self if key[0] not in self._runs]
        self._over = {run: epochs for run, epochs in self._over.items() if run in self._runs}
        idle: dict[RunNumber, list[Key]] = {}
        for key in self:
            if key[0] in self._runs and self._lives.get(key) is None:
                idle.setdefault(key[0], []).append(key)
        for keys in idle.values():
            old = sorted(keys)[:-MOST_KEPT]
            gone += old
            for run, epoch in (key for key in old if self[key].told):
                self._over.setdefault(run, set()).add(epoch)
        for key in gone:
            del self[key]
        return gone
