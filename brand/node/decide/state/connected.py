"""How far is an epoch whose plan is made in windows, on a node that exchanges samples with other nodes?

Each node makes the same windows. When one is made, a node queues those of its samples that ranks of other nodes draw
there, and drops what no rank gets from it. A sample of another node is awaited from the beginning, so it may arrive
before this node knows its position.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import readable
from brand.node.decide.state.single_reads import WindowedSingleReads
from brand.node.decide.state.states import COMING, DUE, UNWANTED
from brand.node.decide.state.windowed import WindowedEpoch
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.plan import OpenReads, PlanWindow

MAX_ASKED: Final = 1 << 20
"""Limit on the positions that another node asked for and that are kept until their samples are known."""


class ConnectedEpoch(WindowedEpoch):
    """The progress of one epoch with a plan in windows, on one of several nodes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        owners = self._setting.owners
        assert owners.of_chunk is not None
        self._share = float(np.mean(owners.of_chunk == owners.node))
        """The part of the samples that this node reads."""
        self._sends_from: dict[NodeNumber, int] = {}
        """Position from which on samples for each node are queued."""
        self._wanted: dict[NodeNumber, NDArray[np.int64]] = {}
        """Positions that each node asked for and that are not known."""

    # -- ranks and nodes -----------------------------------------------------------------------------------------------

    def _work(self, seat: int, node: NodeNumber) -> int:
        work = super()._work(seat, node)
        return work if node == self._setting.owners.node else round(work * self._share)

    def _to_read_for(self, node: NodeNumber, places: NDArray[Any]) -> NDArray[Any]:
        places = places[self._gets(node, places)]
        self._expect_for(node, places)
        self._spare(places)
        return places[self._to_read(places)]

    def _gets(self, node: NodeNumber, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the samples that ranks of a node get from this node, or at this node from any."""
        assert self.mine is not None
        limits, mine = self._setting.limits, self.mine(places)
        if node != self._setting.owners.node:
            return mine & ~limits.too_large(node, places)
        away = np.isin(self.owner_of(places), list(self._setting.unreachable()))
        return mine | ~(away | limits.too_large(node, places))

    def _spare(self, places: NDArray[Any]) -> None:
        """Wait for no sample of another node that needs no read here."""
        assert self.mine is not None
        theirs = places[~self.mine(places) & self.states.due(places)]
        self.states.need_no_read(theirs[self._setting.limits.need_no_read(theirs)])

    def to_send(self, node: NodeNumber) -> NDArray[np.int64]:
        self._sends_from[node] = self._known.first
        return super().to_send(node)

    def forget(self, node: NodeNumber) -> NDArray[Any]:
        for known in (self._sends_from, self._wanted):
            known.pop(node, None)
        held = super().forget(node)
        self._fronts = {seat: front for seat, front in self._fronts.items() if seat in self.seats}
        return held

    def lose(self, node: NodeNumber) -> None:
        """Stop expecting samples of a node that is lost; those at unknown positions once these are known."""
        self.lost.add(node)
        for _, places in self._known.parts():
            theirs = places[self.owner_of(places) == node]
            waits = [self.states.are(state, theirs) for state in (UNWANTED, DUE, COMING)]
            self.states.forget(theirs[np.logical_or.reduce(waits)])

    # -- windows -------------------------------------------------------------------------------------------------------

    @property
    def asked_behind(self) -> list[NDArray[np.int64]]:
        behind = [positions[positions < self._known.end] for positions in self._wanted.values()]
        return [positions for positions in behind if len(positions)]

    def _needs_more(self) -> bool:
        asked = max((int(positions.max()) for positions in self._wanted.values()), default=0)
        return asked >= self._known.end or super()._needs_more()

    def ask(self, node: NodeNumber, positions: NDArray[np.int64]) -> None:
        """Queue positions that a node asks for; those that are not known as soon as they are."""
        there = (positions >= self._sends_from[node]) & (positions < self._known.end)
        super().ask(node, positions[there])
        wanted = np.union1d(self._wanted.get(node, positions[:0]), positions[~there])
        if 0 < len(wanted) <= MAX_ASKED:
            self._wanted[node] = wanted
            self._answer(node)

    def add_window(self, window: PlanWindow, open_reads: OpenReads | None) -> NDArray[Any]:
        held = super().add_window(window, open_reads)
        for node in list(self._wanted):
            self._answer(node)
        return held

    def _answer(self, node: NodeNumber) -> None:
        """Queue those of the positions that a node waits for that are known now."""
        positions = self._wanted.pop(node)
        ahead, missing = positions >= self._known.end, self._known.missing(positions)
        queued = ~ahead & (positions >= self._sends_from[node])
        behind = ~(ahead | queued | np.isin(positions, missing))
        super().ask(node, positions[queued])
        # Samples behind all positions of the node's queue were released, or are of a node that begins late.
        self.outgoing[node].miss(self._known[positions[behind]])
        if not (queued | behind).all():
            self._wanted[node] = positions[~(queued | behind)]

    @property
    def _passed(self) -> int:
        """Position before which no rank draws, and nothing is sent any more."""
        elsewhere = set(self.seats.values()) - {self._setting.owners.node}
        first, end = self._known.first, self._known.end
        fronts = [self.outgoing[node].front(end) if node in self.outgoing else first for node in elsewhere]
        return min([self.front()] * bool(self.here) + fronts, default=first)

    def _leave_out(self, window: PlanWindow) -> NDArray[Any]:
        """Release the samples of a window that no known rank gets from this node, or here. Queue those to send.

        Returns the places that were held.
        """
        places, ranks_of, drawn = self._drawn(window)
        spans = self.division.spans
        known = np.bincount(np.array(list(self.seats), np.int64) // spans, minlength=self.division.replicas)
        unknown, gets = ~drawn & (known[ranks_of] < spans), np.zeros(len(places), np.bool_)
        for node in set(self.seats.values()):
            draws = np.zeros(self.division.replicas, np.bool_)
            draws[self._ranks_at(node)] = True
            here = np.flatnonzero(~drawn & draws[ranks_of])
            here = here[self._gets(node, places[here])]
            gets[here] = True
            if node == self._setting.owners.node:
                self._spare(places[here])
            elif node in self.outgoing:
                self.outgoing[node].add(window.first + here)
        unasked, out = places[unknown & ~gets], places[~(unknown | gets)]
        return np.concatenate((unasked[self.states.do_not_ask(unasked)], out[self.states.release(out)]))

    # -- samples that are to be read after all ------------------------------------------------------------------------

    def read_again(self, places: NDArray[np.intp]) -> None:
        super().read_again(readable(self, places))


class ConnectedSingleReads(ConnectedEpoch, WindowedSingleReads):
    """The same, if each sample is a read of its own."""
