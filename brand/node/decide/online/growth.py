"""How far must each online order be decided, and what does a new server learn of it from clients?

Positions are decided up to the last one that a client has asked for, and somewhat ahead, so that reads have time and
jobs draw together.

**A server that replaces another one** knows no order. Each client process knows the orders of its epochs as far as they
were decided at its last draw. Before its next draw it sends them, with the number of first positions that may have been
answered (`learn`). For `RECOVERY_S` the server decides nothing beyond these, because other processes may know more.
Then it decides. If a late process was answered other samples than clients of this server have received meanwhile, the
process is refused, because no sample may be drawn twice unnoticed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.online.growing_epoch import OnlineEpoch
from brand.node.decide.online.growing_orders import OnlineOrder, OnlineOrderTable
from brand.node.decide.online.rounds import Levels, Rounds
from brand.node.decide.state.epoch import Division, EpochSetting
from brand.node.decide.state.epoch_table import EpochTable, Key, PlanReady
from brand.node.decide.state.features import NOT_ONLINE, Feature
from brand.node.decide.state.runs import Runs
from brand.orders.joader.growing import Growing

AHEAD: Final = 1024
"""Positions that are decided ahead, unless memory bridges more (the channel in JOADER's code)."""
AHEAD_SHARE: Final = 32
"""Upper limit on the share of an epoch that is decided ahead: one job's own decisions are shared with no other job."""
LEAST_AHEAD: Final = 16
RECOVERY_S: Final = 5.0
"""Time that an epoch begun by another server waits for the knowledge of client processes."""


class OnlineOrders(Feature):
    """Decides the online orders of all runs of a node. `samples`: of the data set."""

    def __init__(self, runs: Runs, lives: EpochTable, samples: int) -> None:
        self._runs, self._lives = runs, lives
        self.orders = OnlineOrderTable(runs, lives)
        self._rounds = Rounds(samples)
        self._levels: dict[Key, Levels] = {}

    def __repr__(self) -> str:
        return f"OnlineOrders({self.orders!r}, {self._rounds!r})"

    @property
    def hurries(self) -> bool:
        """Whether there is more to decide at once."""
        return self._rounds.is_due(self._levels)

    # -- events ------------------------------------------------------------------------------------------------------

    def begin(self, key: Key) -> None:
        """Note that a rank begins an epoch."""
        if self._runs[key[0]].order.grows:
            self.orders.reopen(key).mark_begun()

    def ask(self, key: Key, positions: NDArray[np.int64], now_s: float) -> None:
        """Note that a client asks for positions of an epoch. Raises `UsageError`."""
        if self._runs[key[0]].order.grows:
            self.orders[key].add_request(int(positions.max()) + 1, len(positions), now_s)

    def answer(self, key: Key) -> int:
        """Note that samples are sent to a client. Return the number of decided positions, 0 if the order is not
        online.
        """
        if self._runs[key[0]].order.grows:
            self.orders[key].mark_told()
        return self.orders.decided(key)

    def make(
        self, key: Key, ready: PlanReady, division: Division, number: int, setting: EpochSetting
    ) -> OnlineEpoch | None:
        """Return the epoch whose plan is made; None if its order is decided already."""
        plan = ready.plan
        if not plan.grows:
            return None
        order = self.orders.reopen(key)
        growing = order.growing or order.set_growing(Growing(plan.sample_of, plan.mapping.samples, ready.read_of))
        if ready.begin.times and division.start > growing.decided:  # no rank draws before the start
            self._rounds.leave(key)
            growing.skip_to(division.start)
        return OnlineEpoch(plan, division, number, setting, growing)

    def is_over(self, key: Key) -> bool:
        """Return whether the order of an epoch is forgotten, although samples were sent to clients."""
        return self.orders.is_over(key)

    def forget_runs(self) -> None:
        """Forget runs that have ended."""
        for key in self.orders.forget_old():
            self._rounds.leave(key)

    def learn(self, key: Key, first: int, places: NDArray[Any], sure: int, now_s: float) -> None:
        """Take the samples that a client knows at positions from `first` on.

        The client may have been answered positions before `sure`. Raises `UsageError`.
        """
        mine = self._runs[key[0]].order
        if not mine.grows:
            raise UsageError(NOT_ONLINE)
        if (
            first + len(places) > mine.draws
            or sure > mine.draws
            or (places < 0).any()
            or (places >= mine.samples).any()
        ):
            raise UsageError(
                f"samples or positions beyond the {mine.draws:,} positions of an epoch of {mine.samples:,} samples"
            )
        order = self.orders.reopen(key)
        growing = order.growing or order.set_growing(Growing.of(mine.mapping, mine.subset))
        if first > growing.decided:
            raise UsageError(f"samples from position {first:,} on, but only {growing.decided:,} positions are decided")
        order.add_request(0, 0, now_s)
        before, end = growing.decided, min(first + len(places), sure)
        agreed = growing.agree(first, places)
        anew = agreed < end and first == 0 and not order.told
        if anew:  # this server has decided ahead, and no client has received these decisions
            growing.restart()
            agreed = growing.agree(first, places)
        if anew or growing.decided != before:
            self._rounds.leave(key)
            self._grow(key, anew=anew)
        if agreed < end:
            raise UsageError(
                f"epoch {key[1]} is under way with another order than this process has: load the last state in a job "
                "of another name"
            )

    def want(self, key: Key, position: int, now_s: float) -> None:
        """Note that a client wants the order before a position. Raises `UsageError`."""
        order = self.orders[key]
        if order.begun:  # if not, another server has decided the order, and other processes know it
            order.add_request(min(position, self._runs[key[0]].order.draws), 0, now_s)

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, now_s: float, bridge: int) -> None:
        """Decide the positions that are needed, one piece at a time. `bridge`: about how many samples memory holds."""
        self.forget_runs()
        self._levels = {}
        for key, order in self.orders.items():
            levels = self._levels_of(key, order, now_s, bridge)
            if levels is None:
                self._rounds.leave(key)
                continue
            self._levels[key] = levels
            if key not in self._rounds:
                mine = self._runs[key[0]].order
                assert order.growing is not None
                self._rounds.enter(key, mine.seed, mine.policy.common, order.growing)
        for key in self._rounds.step(self._levels):
            self._grow(key, anew=False)

    def _levels_of(self, key: Key, order: OnlineOrder, now_s: float, bridge: int) -> Levels | None:
        """Return how far an order has to be decided, or None if there is nothing to do for it now."""
        growing, epoch = order.growing, self._epoch(key)
        if growing is None or growing.complete or _waits(order, now_s):
            return None
        draws, at, ahead = len(growing.sample_of), order.most, 0
        if epoch is not None and epoch.division.start < draws and self._is_next(key, order):
            at = max(at, epoch.progress.start)
            ahead = max(2 * order.largest, min(max(AHEAD, bridge), max(LEAST_AHEAD, draws // AHEAD_SHARE)))
        elif growing.decided >= at:
            return None
        return Levels(min(draws, at + ahead // 2), min(draws, at + ahead))

    def _is_next(self, key: Key, order: OnlineOrder) -> bool:
        """Return whether a rank has begun the epoch, or the epoch before is decided completely."""
        before = (key[0], key[1] - 1)
        known = self.orders.get(before)
        whole = known is None or known.growing is None or known.growing.complete
        return order.begun or whole or self._epoch(before) is None

    def _grow(self, key: Key, *, anew: bool) -> None:
        epoch = self._epoch(key)
        if epoch is not None:
            epoch.on_growth(anew=anew)

    def _epoch(self, key: Key) -> OnlineEpoch | None:
        """Return the active epoch of a key."""
        life = self._lives.get(key)
        live = None if life is None else life.live
        return live.epoch if live is not None and isinstance(live.epoch, OnlineEpoch) else None


def _waits(order: OnlineOrder, now_s: float) -> bool:
    """Return whether nothing is decided yet because client processes may know another server's decisions."""
    return not order.begun and order.since_s is not None and now_s - order.since_s < RECOVERY_S
