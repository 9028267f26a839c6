"""Which online orders does a server know, how far is each decided, and what does a new server learn from clients?

Positions are decided up to the last one that a client has asked for, and somewhat ahead, so that reads have time and
jobs draw together. An order belongs to an epoch of a run and outlasts its entries: an answer to a client is final. The
server remembers the orders of a run's epochs that have an entry, and the last few others. If it has forgotten an order,
it makes no new one before a rank begins the epoch again.

**A server that replaces another one** knows no order. Each client process knows the orders of its epochs as far as they
were decided at its last draw. Before its next draw it sends them, with the number of first positions that may have been
answered (`learn`). For `RECOVERY_S` the server decides nothing beyond these, because other processes may know more.
Then it decides. If a late process was answered other samples than clients of this server have received meanwhile, the
process is refused, because no sample may be drawn twice unnoticed.

**On several nodes**, the first node decides, and the others follow (`order_messages`). Each node reads its own samples
at the decided positions, and sends them to the nodes whose ranks draw these positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ServerError, UsageError
from brand.node.decide.draws.draws import LONGEST_WAIT_S
from brand.node.decide.online.online_epoch import OnlineEpoch
from brand.node.decide.online.order_table import OnlineOrder, OnlineOrderTable
from brand.node.decide.online.rounds import Levels, Rounds
from brand.node.decide.state.epoch import Division, EpochSetting
from brand.node.decide.state.epoch_table import EpochTable, Key, PlanReady
from brand.node.decide.state.features import NOT_ONLINE, Feature
from brand.node.decide.state.instructions import Refuse
from brand.node.decide.state.members import Members
from brand.node.decide.state.runs import Runs
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import FIRST_NODE
from brand.orders.base.plan import EpochPlan
from brand.orders.joader.growing import Growing
from brand.reprs import Reprs

AHEAD_SHARE: Final = 32
"""Upper limit on the share of an epoch that is decided ahead: one job's own decisions are shared with no other job."""
LEAST_AHEAD: Final = 16
RECOVERY_S: Final = 5.0
"""Time that an epoch begun by another server waits for the knowledge of client processes."""
_NOT_DECIDED: Final = (
    "the order of epoch {} was not decided within {:.0f} s: node 0 decides it, after it has heard of all nodes; start "
    "the missing servers, and continue from the last state"
)


class OnlineOrders(Feature, Reprs, shows="orders _rounds"):
    """The online orders of all runs of a node. The first of several nodes decides them, the others follow it."""

    def __init__(self, runs: Runs, lives: EpochTable, residents: Residents, members: Members) -> None:
        self._runs, self._lives, self._residents = runs, lives, residents
        self.orders = OnlineOrderTable(runs, lives)
        self._alone, self._decides = members.nodes == 1, members.node == FIRST_NODE
        self._has_heard_all: Callable[[Key, float], bool] | None = None
        """Whether no other node may know more of an order. None if this node decides for no other node."""
        self._rounds = Rounds(len(residents.pages_of))
        self._levels: dict[Key, Levels] = {}

    def wait_for(self, has_heard_all: Callable[[Key, float], bool]) -> None:
        """Decide nothing of an order until all other nodes have told what they know of it."""
        self._has_heard_all = has_heard_all

    @property
    def hurries(self) -> bool:
        return self._rounds.is_due(self._levels)

    # -- events ------------------------------------------------------------------------------------------------------

    def begin(self, key: Key) -> None:
        if self._runs[key[0]].order.grows:
            self.orders.reopen(key).mark_begun()

    def ask(self, key: Key, positions: NDArray[np.int64], now_s: float) -> None:
        if self._runs[key[0]].order.grows:
            self.orders[key].add_request(int(positions.max()) + 1, len(positions), now_s)

    def answer(self, key: Key) -> int:
        """Note that samples are sent to a client. Return the number of decided positions, 0 for other orders."""
        if self._runs[key[0]].order.grows:
            self.orders[key].mark_told()
        return self.orders.final(key)

    def make(
        self, key: Key, ready: PlanReady, division: Division, number: int, setting: EpochSetting
    ) -> OnlineEpoch | None:
        plan = ready.plan
        if not isinstance(plan, EpochPlan) or not plan.grows:
            return None
        order = self.orders.reopen(key)
        growing = order.growing or order.set_growing(Growing(plan.sample_of, plan.mapping.samples, ready.read_of))
        if ready.begin.times and division.start > growing.decided and self._alone:  # no rank draws before the start
            self._skip(key, growing, division.start)
        return OnlineEpoch(plan, division, number, setting, order)

    def _skip(self, key: Key, growing: Growing, position: int) -> None:
        """Decide that no rank draws before a position."""
        self._rounds.leave(key)
        growing.skip_to(position)

    def is_over(self, key: Key) -> bool:
        return self.orders.is_over(key)

    def forget_runs(self) -> None:
        for key in self.orders.forget_old():
            self._rounds.leave(key)

    def learn(self, key: Key, first: int, places: NDArray[Any], sure: int, now_s: float) -> None:
        """Take the samples that a client knows at positions from `first` on.

        The client may have been answered positions before `sure`. Raises `UsageError`.
        """
        mine = self._runs[key[0]].order
        if not mine.grows:
            raise UsageError(NOT_ONLINE)
        reach = max(first + len(places), sure)
        if reach > mine.draws or (places < 0).any() or (places >= mine.samples).any():
            raise UsageError(
                f"samples or positions beyond the {mine.draws:,} positions of an epoch of {mine.samples:,} samples"
            )
        order = self.orders.reopen(key)
        growing = order.growing or order.set_growing(Growing.of(mine.mapping, mine.ever))
        if first > growing.decided:
            raise UsageError(f"samples from position {first:,} on, but only {growing.decided:,} positions are decided")
        order.add_request(0, 0, now_s)
        before, end = growing.decided, min(first + len(places), sure)
        agreed = growing.agree(first, places)
        again = agreed < end and first == 0 and not order.told and self._alone
        if again:  # this server has decided ahead, and no client has received these decisions
            growing.restart()
            agreed = growing.agree(first, places)
        if again or growing.decided != before:
            self._rounds.leave(key)
            self._grow(key, again=again)
        if agreed < end:
            raise UsageError(
                f"epoch {key[1]} is under way with another order than this process has: load the last state in a job "
                "of another name"
            )

    def want(self, key: Key, position: int, now_s: float) -> None:
        """Note that a client needs the order before a position. Raises `UsageError`."""
        order = self.orders[key]
        if order.begun:  # if not, another server has decided the order, and other processes know it
            order.add_request(min(position, self._runs[key[0]].order.draws), 0, now_s)

    def refusals(self, now_s: float) -> Iterator[Refuse]:
        """Yield the clients whose draws have waited too long for the node that decides."""
        for key in self.orders:
            entry = self._lives.get(key)
            for draw in () if entry is None or self._alone else entry.draws:
                late = now_s - draw.since_s > LONGEST_WAIT_S
                if late and int(draw.positions.max()) >= self.orders.final(key):
                    yield Refuse(draw.client, ServerError(_NOT_DECIDED.format(key[1], LONGEST_WAIT_S)))

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, now_s: float, bridge: int) -> None:
        """Decide the positions that are needed, one piece at a time. `bridge`: about how many samples memory holds."""
        self.forget_runs()
        self._levels = {}
        # Memory holds the samples at decided positions until the slowest job has drawn them. If they are more than
        # memory holds, some are dropped before, and are read again for each job.
        drawing = sum(self._draws(key, order) for key, order in self.orders.items())
        share = bridge // max(1, drawing)
        for key, order in self.orders.items():
            levels = self._levels_of(key, order, now_s, share) if self._decides else None
            if levels is None:
                self._rounds.leave(key)
                continue
            self._levels[key] = levels
            if key not in self._rounds:
                mine = self._runs[key[0]].order
                assert order.growing is not None
                self._rounds.enter(key, mine.seed, mine.policy.common, order.growing)
        for key in self._rounds.step(self._levels):
            self._grow(key, again=False)

    def _levels_of(self, key: Key, order: OnlineOrder, now_s: float, share: int) -> Levels | None:
        """Return how far an order has to be decided, or None if there is nothing to do for it now.

        `share`: how many samples memory may hold for it.
        """
        growing, epoch = order.growing, self._epoch(key)
        if growing is None or growing.complete or self._waits(key, order, now_s):
            return None
        if epoch is not None and growing.decided < epoch.division.start < len(growing.sample_of):
            if now_s - self._since(order, now_s) < RECOVERY_S:  # the positions before are still to be told
                return None
            self._skip(key, growing, epoch.division.start)
        draws, at, ahead = len(growing.sample_of), order.most, 0
        if epoch is not None and epoch.division.start < draws and self._is_next(key, order):
            at = max(at, epoch.progress.start)
            ahead = max(2 * order.largest, min(share, max(LEAST_AHEAD, draws // AHEAD_SHARE)))
        elif growing.decided >= at:
            return None
        return Levels(min(draws, at + ahead // 2), min(draws, at + ahead))

    def _draws(self, key: Key, order: OnlineOrder) -> bool:
        """Return whether ranks draw from an epoch that is not decided completely."""
        return order.begun and not order.complete and self._epoch(key) is not None

    def _is_next(self, key: Key, order: OnlineOrder) -> bool:
        """Return whether a rank has begun the epoch, or the epoch before is decided completely."""
        before = (key[0], key[1] - 1)
        known = self.orders.get(before)
        whole = known is None or known.growing is None or known.complete
        return order.begun or whole or self._epoch(before) is None

    def _grow(self, key: Key, *, again: bool) -> None:
        epoch = self._epoch(key)
        if epoch is not None:
            self._residents.let_go(epoch.on_growth(again=again))

    def _epoch(self, key: Key) -> OnlineEpoch | None:
        life = self._lives.get(key)
        live = None if life is None else life.live
        return live.epoch if live is not None and isinstance(live.epoch, OnlineEpoch) else None

    def _waits(self, key: Key, order: OnlineOrder, now_s: float) -> bool:
        """Return whether nothing is decided yet, because processes or nodes may know another server's decisions."""
        if self._has_heard_all is not None and not self._has_heard_all(key, now_s):
            return True
        return not order.begun and order.since_s is not None and now_s - order.since_s < RECOVERY_S

    def _since(self, order: OnlineOrder, now_s: float) -> float:
        """Return the time at which this server has first heard of an order."""
        order.add_request(0, 0, now_s)
        assert order.since_s is not None
        return order.since_s
