"""Which samples does a job hold that another job has read, and which does it give back if memory is full?

A sample that one job reads serves all jobs that will draw it. Each of them waits for it and holds it until its own
draw, although its own read has not begun, so one read serves them all. A job may give back a held sample at any time;
its own read then starts when it is due. If memory has no space for a read, the samples that are drawn last are evicted
(Belady's rule). A plan says when each sample is drawn. In an online order most samples have no position yet: these are
evicted first, starting with those that the fewest jobs still need, then the oldest (JOADER's count of references).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.epochs.epochs import Epochs, draws_before
from brand.node.decide.sharing.pacemakers import Pacemakers
from brand.node.decide.state.epoch import Epoch, reached, readable
from brand.node.decide.state.epoch_table import ActiveEpoch, Key
from brand.node.decide.state.instructions import Read
from brand.node.decide.state.states import HELD
from brand.node.memory.residents import Residents

LOOK_SHARE: Final = 8
"""If nothing could be given back, the next search waits until jobs have released this share of the memory."""


class EarlyHolds:
    """Samples that jobs hold before their own reads begin. The epochs own the holds."""

    def __init__(self, residents: Residents, epochs: Epochs, pacemakers: Pacemakers) -> None:
        self._residents, self._epochs, self._pacemakers = residents, epochs, pacemakers
        self._came = np.zeros(len(residents.pages_of), np.int32)
        """The last read that brought each sample for a job with an online order."""
        self._look_at = 0
        """The value of `residents.released` from which a search for samples to give back is worthwhile."""

    def __repr__(self) -> str:
        return f"EarlyHolds({self._epochs!r})"

    def start(self, places: NDArray[Any], read_for: Epoch) -> list[tuple[Epoch, NDArray[Any]]]:
        """Let the other epochs that will draw the samples of a read wait for it, so that they start no read of their
        own.

        Returns these epochs, each with the places that it waits for.
        """
        others = []
        for _, live in self._epochs.lives.live():
            if live.epoch.plan.shares and live.epoch is not read_for:
                waited = places[live.epoch.states.due(places)]
                if len(waited):
                    live.epoch.states.start(waited)
                    others.append((live.epoch, waited))
        return others

    def on_read(self, read: Read, others: Sequence[tuple[Epoch, NDArray[Any]]], lost: NDArray[Any]) -> None:
        """Give the other epochs the samples of a read, except those at the places `lost`."""
        if read.plan.grows:
            self._came[read.places] = read.number
        for epoch, places in others:
            failed = np.isin(places, lost)
            epoch.states.mark_failed(places[failed])
            came = places[~failed]
            self._residents.refer(came[epoch.states.mark_arrived(came)])

    def lead(self, key: Key, live: ActiveEpoch, deadline: NDArray[Any] | int, now_s: float) -> Any:
        """Return how soon an epoch reaches a deadline, in draws of the fastest job that shares with it.

        Infinity if its job draws nothing at present and other jobs do.
        """
        if live.epoch.plan.shares and self._epochs.pacing.idle(key[0], now_s):
            return math.inf
        before = draws_before(self._epochs, key, live)
        return (before + deadline - reached(live.epoch)) * self._pacemakers.slowness(key[0])

    @property
    def may_give_back(self) -> bool:
        """Return whether a search is worthwhile. A search visits all samples that jobs hold."""
        return self._residents.released >= self._look_at

    def give_back(self, pages: int, now_s: float, beyond: float = -math.inf) -> bool:
        """Free at least `pages` of samples that are drawn last, and later than in `beyond` draws.

        Samples without a position yet are freed first, starting with those that the fewest jobs hold.

        Returns whether any were freed.
        """
        self._look_at = self._residents.released + self._residents.pool.allocator.count // LOOK_SHARE
        found = []
        for key, live in self._epochs.lives.live():
            if live.epoch.plan.shares:
                places = readable(live.epoch, live.epoch.states.all(HELD))
                deadlines = live.epoch.reads.deadlines(places)
                leads = self.lead(key, live, deadlines, now_s) + np.zeros(len(places))
                found.append((live.epoch, places, leads))
        if not sum(len(places) for _, places, _ in found):
            return False
        samples = len(self._residents.pages_of)
        soonest, holds = np.full(samples, math.inf), np.zeros(samples, np.int32)
        for _, places, leads in found:
            soonest[places] = np.minimum(soonest[places], leads)
            holds[places] += 1
        free = np.flatnonzero(holds)
        free = free[(self._residents.references(free) == holds[free]) & (soonest[free] > beyond)]
        last = free[np.lexsort((self._came[free], holds[free], -soonest[free]))]
        enough = int(np.searchsorted(np.cumsum(self._residents.pages_of[last], dtype=np.int64), pages)) + 1
        going = np.zeros(samples, np.bool_)
        going[last[:enough]] = True
        for epoch, places, _ in found:
            theirs = places[going[places]]
            epoch.states.requeue(theirs)
            epoch.reads.put_back(theirs)
            self._residents.let_go(theirs)
        if len(last):
            self._look_at = 0
        return bool(len(last))
