"""The progress of an epoch with an online order: its samples are needed before it is decided which rank draws each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.online.order_table import OnlineOrder
from brand.node.decide.state.epoch import Division, Epoch, EpochSetting, readable
from brand.node.decide.state.states import EARLY, ReadQueue, SampleStates
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.plan import EpochPlan
from brand.orders.joader.growing import Growing


class OnlineReadQueue(ReadQueue):
    """Numbers of the reads of a plan with an online order: one read of one sample for each decided position.

    A read's number is its position. The queue never reads an undecided position, because another job may have read it.
    `mine` returns a mask of the places that this node reads. None if it reads all.
    """

    def __init__(
        self, plan: EpochPlan, growing: Growing, mine: Callable[[NDArray[Any]], NDArray[np.bool_]] | None
    ) -> None:
        super().__init__(plan)
        self._growing, self._mine = growing, mine
        self._known = 0
        """Positions before this one have been visited."""

    def look(self, states: SampleStates, *, again: bool = False) -> None:
        """Queue the reads of due samples at positions that were decided since the last call, or at all of them."""
        rest, first = (np.arange(0), 0) if again else (self.rest(), self._known)
        places = self._growing.sample_of[first : self._growing.decided]
        due = states.due(places) | states.are(EARLY, places)
        wanted = first + np.flatnonzero(due if self._mine is None else due & self._mine(places))
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
        self, seats: Mapping[int, NodeNumber], fronts: Mapping[int, int], read_of: NDArray[Any] | None = None
    ) -> Iterator[int]:
        """Add ranks that draw. The rank of each sample is open, so the first rank makes the epoch need all samples."""
        del read_of
        first, drew, new = not self.seats, bool(self.here), seats.keys() - self.seats.keys()
        self.seats |= seats
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
                self.states.expect(self._to_come())
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
        if not self.seats or self._dealt >= self.growing.decided:
            return np.arange(0)
        positions = np.arange(self._dealt, self.growing.decided, dtype=np.int64)
        self._dealt = self.growing.decided
        idle: NDArray[Any] = self.plan.sample_of[positions[~self._need(positions, send=True)]]
        return idle[self.states.release(idle)]

    def _to_come(self, owner: NodeNumber | None = None) -> NDArray[Any]:
        """Return the places without a position that other nodes, or one `owner`, can send now."""
        places = self.plan.sample_of[max(self.division.start, self._dealt) :]
        owners, own = self.owner_of(places), self._setting.owners.node
        of = owners != own if owner is None else owners == owner
        found: NDArray[Any] = places[of & self._can_come(places)]
        return found

    def _can_come(self, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the places whose samples other nodes can send now, if they own them."""
        limits, lost = self._setting.limits, list(self._setting.unreachable())
        return ~limits.too_large(self._setting.owners.node, places) & ~np.isin(self.owner_of(places), lost)

    def expect_again(self, node: NodeNumber, present: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> None:
        super().expect_again(node, present)
        if self.here:
            places = self._to_come(node)
            self.states.expect(places[~present(places)])

    def _need(self, positions: NDArray[np.int64], *, send: bool) -> NDArray[np.bool_]:
        """Wait for the samples at decided positions that ranks of this node draw, or that this node sends.

        Returns a mask of these. `send`: queue those of other nodes' ranks, too.
        """
        assert self.mine is not None
        places, ranks = self.plan.sample_of[positions], self.division.ranks_of(positions)
        nodes = np.full(len(positions), -1)
        for rank, node in self.seats.items():  # such a job has no groups
            nodes[ranks == rank] = node
        own, mine, limits = self._setting.owners.node, self.mine(places), self._setting.limits
        needed = (nodes == own) & (mine | self._can_come(places))
        for node in set(self.seats.values()) - {own}:
            theirs = (nodes == node) & mine & ~limits.too_large(node, places)
            needed |= theirs
            if send and node in self.outgoing:
                self.outgoing[node].add(positions[theirs])
        self.states.expect(places[needed & ~limits.never_held(places)])
        found: NDArray[np.bool_] = needed
        return found

    def give_up_before(self, position: int) -> NDArray[Any]:
        return super().give_up_before(min(position, self.growing.decided))
