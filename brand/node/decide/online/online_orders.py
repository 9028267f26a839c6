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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ServerError, UsageError
from brand.node.decide.draws.draws import LONGEST_WAIT_S
from brand.node.decide.online.rounds import Levels, Rounds
from brand.node.decide.state.epoch import Division, Epoch, EpochSetting, readable
from brand.node.decide.state.epoch_table import EpochTable, Key, PlanReady
from brand.node.decide.state.features import NOT_ONLINE, Feature
from brand.node.decide.state.instructions import Refuse
from brand.node.decide.state.members import Members
from brand.node.decide.state.runs import Runs
from brand.node.decide.state.states import EARLY, ReadQueue, SampleStates
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import FIRST_NODE, NodeNumber, RunNumber
from brand.orders.base.plan import EpochPlan
from brand.orders.joader.growing import Growing
from brand.reprs import Reprs

MOST_KEPT: Final = 4
"""Orders of epochs without an entry that are remembered per run, because a slow process may still draw from them."""
AHEAD_SHARE: Final = 32
"""Upper limit on the share of an epoch that is decided ahead: one job's own decisions are shared with no other job."""
LEAST_AHEAD: Final = 16
RECOVERY_S: Final = 5.0
"""Time that an epoch begun by another server waits for the knowledge of client processes."""
_NOT_DECIDED: Final = (
    "the order of epoch {} was not decided within {:.0f} s: node 0 decides it, after it has heard of all nodes; start "
    "the missing servers, and continue from the last state"
)


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

        What is final remains so, although a node comes that knows nothing.
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


class OnlineReadQueue(ReadQueue):
    """Numbers of the reads of a plan with an online order: one read of one sample for each decided position.

    A read's number is its position. The queue never reads an undecided position, because another job may have read it.
    `mine`: whether this node reads each place. None if it reads all.
    """

    def __init__(self, plan: EpochPlan, growing: Growing, mine: NDArray[np.bool_] | None) -> None:
        super().__init__(plan)
        self._growing, self._mine = growing, mine
        self._known = 0
        """Positions before this one have been visited."""

    def look(self, states: SampleStates, *, again: bool = False) -> None:
        """Queue the reads of due samples at positions that were decided since the last call, or at all of them."""
        rest, first = (np.arange(0), 0) if again else (self.rest(), self._known)
        places = self._growing.sample_of[first : self._growing.decided]
        due = states.due(places) | states.are(EARLY, places)
        wanted = first + np.flatnonzero(due if self._mine is None else due & self._mine[places])
        self._soon, self._at = np.concatenate((rest, wanted), dtype=np.int32), 0
        self._known = self._growing.decided

    def deadlines(self, places: NDArray[Any]) -> NDArray[Any]:
        """Return the position of each place, infinity if it is not decided."""
        return self._growing.positions(places)

    def put_back(self, places: NDArray[Any]) -> None:
        """Queue the reads of these places again at their deadlines, as far as these are decided."""
        positions = self._growing.position_of[places]
        self._soon, self._at = np.union1d(self.rest(), positions[positions < self._known]).astype(np.int32), 0


class OnlineEpoch(Epoch):
    """The progress of one epoch with an online order. Each node has such an epoch for itself.

    The epoch needs all samples that ranks will draw and waits for each of them, although most have no position yet. It
    holds the samples of these that another job reads, and reads only samples with a decided position.

    On several nodes it waits for all samples that this node reads, and if ranks of this node draw, for those of other
    nodes, too, until it is decided whose rank draws each: a home node may know and send earlier than this node knows.
    """

    def __init__(
        self, plan: EpochPlan, division: Division, number: int, setting: EpochSetting, order: OnlineOrder
    ) -> None:
        assert order.growing is not None
        super().__init__(replace(plan, sample_of=order.growing.sample_of), division, number, setting)
        self._order, self.growing = order, order.growing
        self._dealt = division.start
        """Before this position, it is known which node needs each sample."""
        self.reads: OnlineReadQueue = OnlineReadQueue(self.plan, self.growing, self.mine)

    def decides(self, positions: NDArray[np.int64]) -> bool:
        return int(positions.max()) < self._order.final

    def positions_of(self, rank: int, front: int = 0) -> NDArray[np.int64]:
        positions = super().positions_of(rank, front)
        return positions[: np.searchsorted(positions, self.growing.decided)]

    def waits_for_reads(self, positions: NDArray[np.int64]) -> bool:
        return self.decides(positions) and super().waits_for_reads(positions)

    def expecting(
        self, ranks: Mapping[int, NodeNumber], fronts: Mapping[int, int], read_of: NDArray[Any] | None = None
    ) -> Iterator[int]:
        """Add ranks that draw. The rank of each sample is open, so the first rank makes the epoch need all samples."""
        del read_of
        first, drew, new = not self.ranks, bool(self.here), ranks.keys() - self.ranks.keys()
        self.ranks |= ranks
        start = self.division.start
        if start >= self.division.samples or not new:  # nothing is read ahead
            return
        if first:
            places = readable(self, self.plan.sample_of[min(start, self.growing.decided) :])
            self.states.expect(places[~self._setting.limits.never_held(places)])
            self.progress.expect(len(places))
            yield len(places)
        if self.mine is not None:
            if self.here and not drew:
                self.states.expect(self._to_come(~self.mine))
            for rank in new:
                positions = self.positions_of(rank, max(fronts.get(rank, 0), start))
                self._need(positions[: np.searchsorted(positions, self._dealt)], send=False)
            self._deal()
        self.reads.look(self.states, again=True)

    def on_growth(self, *, again: bool) -> NDArray[Any]:
        """Note that more of the order is decided; `again`: earlier positions have changed, too.

        Returns the places that were held, and that no rank draws that is known.
        """
        held = np.arange(0) if self.mine is None else self._deal()
        self.reads.look(self.states, again=again)
        return held

    def _deal(self) -> NDArray[Any]:
        """Need the samples at newly decided positions. Return the places that were held for no rank that is known."""
        if not self.ranks or self._dealt >= self.growing.decided:
            return np.arange(0)
        positions = np.arange(self._dealt, self.growing.decided, dtype=np.int64)
        self._dealt = self.growing.decided
        idle: NDArray[Any] = self.plan.sample_of[positions[~self._need(positions, send=True)]]
        return idle[self.states.release(idle)]

    def _to_come(self, of: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the places without a position in a mask, shape (samples,), that other nodes can send now."""
        places = self.plan.sample_of[max(self.division.start, self._dealt) :]
        found: NDArray[Any] = places[of[places] & self._can_come(places)]
        return found

    def _can_come(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the places whose samples other nodes can send now, if they own them."""
        limits, lost = self._setting.limits, list(self._setting.unreachable())
        return ~limits.too_large(self._setting.owners.node, places) & ~np.isin(self.owner_of(places), lost)

    def expect_again(self, node: NodeNumber, present: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> None:
        super().expect_again(node, present)
        if self.here:
            places = self._to_come(self.owner_of(np.arange(self.plan.mapping.samples)) == node)
            self.states.expect(places[~present(places)])

    def _need(self, positions: NDArray[np.int64], *, send: bool) -> NDArray[np.bool_]:
        """Wait for the samples at decided positions that ranks of this node draw, or that this node sends.

        Returns a mask of these. `send`: queue those of other nodes' ranks, too.
        """
        assert self.mine is not None
        places, ranks = self.plan.sample_of[positions], self.division.ranks_of(positions)
        nodes = np.full(len(positions), -1)
        for rank, node in self.ranks.items():
            nodes[ranks == rank] = node
        own, mine, limits = self._setting.owners.node, self.mine[places], self._setting.limits
        needed = (nodes == own) & (mine | self._can_come(places))
        for node in set(self.ranks.values()) - {own}:
            theirs = (nodes == node) & mine & ~limits.too_large(node, places)
            needed |= theirs
            if send and node in self.outgoing:
                self.outgoing[node].add(positions[theirs])
        self.states.expect(places[needed & ~limits.never_held(places)])
        found: NDArray[np.bool_] = needed
        return found

    def give_up_before(self, position: int) -> NDArray[Any]:
        return super().give_up_before(min(position, self.growing.decided))


class OnlineOrders(Feature, Reprs, shows="orders _rounds"):
    """The online orders of all runs of a node. The first of several nodes decides them, the others follow it."""

    def __init__(self, runs: Runs, lives: EpochTable, residents: Residents, members: Members) -> None:
        self._runs, self._lives, self._residents = runs, lives, residents
        self.orders = OnlineOrderTable(runs, lives)
        self._alone, self._decides = members.nodes == 1, members.node == FIRST_NODE
        self._all_told: Callable[[Key, float], bool] = lambda key, now_s: True  # noqa: ARG005 - there are no others
        self._rounds = Rounds(len(residents.pages_of))
        self._levels: dict[Key, Levels] = {}

    def wait_for(self, all_told: Callable[[Key, float], bool]) -> None:
        """Decide nothing of an order until all other nodes have told what they know of it."""
        self._all_told = all_told

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
        if not plan.grows:
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
        growing = order.growing or order.set_growing(Growing.of(mine.mapping, mine.subset))
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
        if not self._all_told(key, now_s):
            return True
        return not order.begun and order.since_s is not None and now_s - order.since_s < RECOVERY_S

    def _since(self, order: OnlineOrder, now_s: float) -> float:
        """Return the time at which this server has first heard of an order."""
        if order.since_s is None:
            order.add_request(0, 0, now_s)
        return now_s if order.since_s is None else order.since_s
