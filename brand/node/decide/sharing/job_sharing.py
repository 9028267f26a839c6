"""How do jobs that share reads take part in the steps of a node? They join each other, wait, and hold samples.

`JobSharing` is the feature's part in these steps. `EarlyHolds` holds samples that one job has read for the jobs that
will draw them. `Lockstep` has the jobs wait that are ahead of the slowest (order `coordl`). This module has no clock:
times are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.epochs.epochs import Epochs, draws_before
from brand.node.decide.epochs.pacing import Pacing
from brand.node.decide.sharing.consensus import JoinConsensus
from brand.node.decide.sharing.joins import JobJoins, Pacemakers
from brand.node.decide.state.epoch import Epoch, reached, readable, to_read
from brand.node.decide.state.epoch_table import ActiveEpoch, Draw, EpochTable, Key
from brand.node.decide.state.features import Feature
from brand.node.decide.state.instructions import Read, Refuse
from brand.node.decide.state.members import Members
from brand.node.decide.state.runs import Runs
from brand.node.decide.state.states import HELD
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import RunNumber
from brand.orders.base.joins import Joins
from brand.orders.base.policy import LockStep
from brand.reprs import Reprs

GATHER_S: Final = 60.0
"""Time that the first jobs wait for the others."""
AWAY_S: Final = 30.0
"""A job that has drawn nothing for this long is not waited for any more."""
STALLED_S: Final = 60.0
"""A job that has drawn nothing for this long is not waited for, even if it asks: jobs may wait for each other."""
LOOK_SHARE: Final = 8
"""If nothing could be given back, the next search waits until jobs have released this share of the memory."""


class EarlyHolds(Reprs, shows="_epochs"):
    """Samples that jobs hold before their own reads begin. The epochs own the holds.

    A sample that one job reads serves all jobs that will draw it. Each of them waits for it and holds it until its own
    draw, although its own read has not begun, so one read serves them all. A job may give back a held sample at any
    time; its own read then starts when it is due.

    If memory has no space for a read, the samples that are drawn last are evicted (Belady's rule). A plan says when
    each sample is drawn. In an online order most samples have no position yet: these are evicted first, starting with
    those that the fewest jobs still need, then the oldest (JOADER's count of references).
    """

    def __init__(self, residents: Residents, epochs: Epochs, pacemakers: Pacemakers) -> None:
        self._residents, self._epochs, self._pacemakers = residents, epochs, pacemakers
        self._came = np.zeros(len(residents.pages_of), np.int32)
        """The last read that brought each sample for a job with an online order."""
        self._look_at = 0
        """The value of `residents.released` from which a search for samples to give back is worthwhile."""

    def awaited(self, places: NDArray[Any], besides: Epoch, now_s: float) -> NDArray[np.bool_]:
        """Return a mask of the places that other epochs will draw, of jobs that share, and no read brings yet."""
        found = np.zeros(len(places), np.bool_)
        for key, live in self._epochs.lives.live():
            if live.epoch.plan.shares and live.epoch is not besides and not self._pacemakers.is_resting(key[0], now_s):
                found |= to_read(live.epoch, places)
        return found

    def start(self, places: NDArray[Any], read_for: Epoch) -> list[tuple[Epoch, NDArray[Any]]]:
        """Have other epochs that will draw the samples wait for this read, so that they start no read of their own."""
        others = []
        for _, live in self._epochs.lives.live():
            if live.epoch.plan.shares and live.epoch is not read_for:
                waited = places[live.epoch.states.due(places)]
                if len(waited):
                    live.epoch.states.start(waited)
                    others.append((live.epoch, waited))
        return others

    def on_read(self, read: Read, others: Sequence[tuple[Epoch, NDArray[Any]]], lost: NDArray[Any]) -> None:
        if read.plan.grows:
            self._came[read.places] = read.number
        for epoch, places in others:
            failed = np.isin(places, lost)
            epoch.states.mark_failed(places[failed])
            came = places[~failed]
            self._residents.refer(came[epoch.states.mark_arrived(came)])

    def lead(self, key: Key, live: ActiveEpoch, deadline: NDArray[Any] | int, now_s: float) -> Any:
        """Return how soon an epoch reaches a deadline; infinity if its job draws nothing now."""
        if live.epoch.plan.shares and self._pacemakers.is_away(key[0], now_s):
            return math.inf
        before, draws = draws_before(self._epochs, key, live), self._epochs.lives[key].draws
        leads = (before + deadline - reached(live.epoch)) * self._pacemakers.slowness(key[0], now_s)
        # A draw that waits needs its samples now, however slow its job is.
        asked = max((int(draw.positions.max()) for draw in draws), default=-1)
        return np.where(np.less_equal(deadline, asked), np.minimum(leads, 0.0), leads)

    @property
    def may_give_back(self) -> bool:
        """Return whether a search is worthwhile. A search visits all samples that jobs hold."""
        return self._residents.released >= self._look_at

    def give_back(self, pages: int, now_s: float, beyond: float = -math.inf) -> bool:
        """Free at least `pages` of samples that are drawn last, later than in `beyond` draws. Return whether any were.

        Samples without a position yet are freed first, starting with those that the fewest jobs hold.
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


class Lockstep(Feature, Reprs, shows="_in_step"):
    """The jobs in step, as one node knows them.

    Order `coordl` (CoorDL, coordinated prep): the first jobs wait until as many jobs as their policy names have begun.
    From then on they are in step: none draws a sample more than a window ahead of the slowest. A job that has ended, or
    has drawn nothing for a while, is not waited for. A job that is farther behind, because it started later or paused,
    proceeds alone: it waits for no job, no job waits for it, and it is in step again when it is within the window. So
    every wait has an end.

    A server that replaces another one does not know which jobs were present, and some may have ended. A job in the
    middle of an epoch continues at once. Jobs that begin a later epoch, or continue from a state, wait for the others
    as the first jobs do, but then continue without them.

    On several nodes, each node holds back its own ranks. It knows the jobs of the other nodes from their announcements
    (`brand.node.decide.peers.announcements`), and how far they are from their reports (`join_messages`). A report that
    is late makes a rank wait longer than it had to. The ranks of a node that is lost, or that has not reported yet, are
    not waited for. A report of a job that has drawn proves that all jobs were present, so all nodes agree on that.
    """

    def __init__(self, runs: Runs, lives: EpochTable, pacing: Pacing, pacemakers: Pacemakers) -> None:
        self._runs, self._lives, self._pacing, self._pacemakers = runs, lives, pacing, pacemakers
        self._in_step: dict[RunNumber, float] = {}
        """The time since when each run is in step."""
        self._left_at: dict[RunNumber, int | None] = {}
        """The front at which each run was away last. It is in step again once it has moved: a wait must not repeat."""
        self._together: set[Hashable] = set()
        """The common key of the groups whose jobs were all present at some time."""

    def is_held_back(self, draw: Draw, now_s: float) -> bool:
        number = draw.key[0]
        step = self._runs[number].order.policy.lock_step
        if step is None:
            return False
        live = self._lives[draw.key].live
        if live is not None and not live.begun:  # it has begun on another server
            return False
        group = sorted({number, *self._pacemakers.others(number)})
        if not self._gather(group, step, now_s):
            return True
        at = self._front(number) if number in self._in_step else None
        if at is None or live is None or live.epoch.plan.track is None:
            return False
        first = live.epoch.plan.track.at(int(draw.positions.min()))
        others = [other for other in group if other != number and other in self._in_step]
        fronts = [self._front(other) for other in others if now_s - self._moved_s(other) <= STALLED_S]
        return any(front < first - step.window for front in fronts if front is not None)

    def on_drawn_elsewhere(self, key: Key) -> None:
        """Note that ranks of another node have drawn: the node has seen all jobs that begin together."""
        if self._runs[key[0]].order.policy.lock_step:
            self._together.add(self._pacemakers.common(key[0]))

    def on_drawn(self, key: Key) -> None:
        life = self._lives.get(key)
        if self._runs[key[0]].order.policy.lock_step and life is not None and life.live and not life.live.begun:
            self._together.add(self._pacemakers.common(key[0]))  # on another server

    def refusals(self, now_s: float) -> Iterator[Refuse]:
        """Yield clients that have waited too long for the jobs that should begin together with theirs."""
        for draw in self._lives.draws():
            number = draw.key[0]
            step, common = self._runs[number].order.policy.lock_step, self._pacemakers.common(number)
            if step is not None and common not in self._together and now_s - draw.since_s > GATHER_S:
                there = sorted({number, *self._pacemakers.others(number)})
                if any(map(self._has_drawn, there)):
                    continue
                names = ", ".join(sorted(self._runs[n].name for n in there))
                reason = (
                    f"{len(there)} of {step.jobs} jobs in lock step ({names}) have begun within "
                    f"{GATHER_S:.0f} s: start all of them with the same seed=, order= and server=, each with its "
                    f"own job="
                )
                yield Refuse(draw.client, UsageError(reason))

    def forget_runs(self) -> None:
        self._in_step = {run: since_s for run, since_s in self._in_step.items() if run in self._runs}
        self._left_at = {run: front for run, front in self._left_at.items() if run in self._runs}
        self._together &= {self._pacemakers.common(run) for run in self._runs}

    def _gather(self, group: list[RunNumber], step: LockStep, now_s: float) -> bool:
        """Update the jobs of a group that are in step. Return whether all were present at some time."""
        common = self._pacemakers.common(group[0])
        if common not in self._together:
            if len(group) < step.jobs and not (any(map(self._has_drawn, group)) and self._has_waited(group, now_s)):
                return False
            self._together.add(common)
        for run in group:
            if run in self._in_step and self._away(run, now_s):
                del self._in_step[run]
                self._left_at[run] = self._front(run)
        fronts = {run: front for run in group if (front := self._front(run)) is not None}
        if not fronts:
            return True
        within = [front for run, front in fronts.items() if run in self._in_step] or [max(fronts.values())]
        least, most = min(within) - step.window, max(within) + step.window
        for run, front in fronts.items():
            if run not in self._in_step and least <= front <= most and front != self._left_at.get(run):
                self._in_step[run] = now_s
        return True

    def _has_waited(self, group: Sequence[RunNumber], now_s: float) -> bool:
        return any(draw.key[0] in group and now_s - draw.since_s > GATHER_S for draw in self._lives.draws())

    def _has_drawn(self, run: RunNumber) -> bool:
        """Return whether a run drew elsewhere: it is past the beginning of its first epoch."""
        key = self._pacing.now(run)
        live = None if key is None else self._lives[key].live
        return key is not None and live is not None and (key[1] > 0 or live.epoch.division.start > 0)

    def _away(self, run: RunNumber, now_s: float) -> bool:
        waits = any(draw.key[0] == run for draw in self._lives.draws())
        return not waits and now_s - self._moved_s(run) > AWAY_S

    def _moved_s(self, run: RunNumber) -> float:
        """Return the time since which a run in step has not drawn."""
        return max(self._in_step[run], self._pacing.pulse(run).last_s)

    def _front(self, run: RunNumber) -> int | None:
        return self._pacemakers.front(self._pacing.now(run))


class JobSharing(Reprs, shows="joins lockstep consensus"):
    """The parts of a node for jobs that share its reads. They take part in its steps from now on."""

    def __init__(self, residents: Residents, epochs: Epochs, members: Members) -> None:
        runs, lives, pacing = epochs.runs, epochs.lives, epochs.pacing
        self._epochs = epochs
        self.pacemakers = Pacemakers(runs, lives, pacing)
        self.joins = JobJoins(epochs, self.pacemakers, len(residents.pages_of), alone=members.nodes == 1)
        self.lockstep = Lockstep(runs, lives, pacing, self.pacemakers)
        self.early = EarlyHolds(residents, epochs, self.pacemakers)
        self.consensus = JoinConsensus(runs, lives, self.joins, members)
        for each in (self.joins, self.lockstep, self.consensus):
            epochs.features.turn_on(each)

    def learn(self, key: Key, said: Joins) -> Joins:
        """Take the joins that a client knows of an epoch. Return those that this node knows. Raises `UsageError`."""
        if self.consensus.learn(key, said):
            self._epochs.remake_plan(key)
        return self.consensus.known(key)
