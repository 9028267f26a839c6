"""The hooks through which jobs that share reads take part in the steps of a node: they join and wait for each other.

**Lock step** (order `coordl`; CoorDL, coordinated prep): the first jobs wait until as many jobs as their policy names
have begun. From then on they are in step: none draws a sample more than a window ahead of the slowest. A job that has
ended, or has drawn nothing for a while, is not waited for. A job that is farther behind, because it started later or
paused, proceeds alone: it waits for no job, no job waits for it, and it is in step again when it is within the window.
So every wait has an end. This module has no clock: times are arguments. `Lockstep` owns the set of jobs that are in
step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.epochs.pacing import Pacing
from brand.node.decide.sharing.consensus import JoinConsensus
from brand.node.decide.sharing.early_holds import EarlyHolds
from brand.node.decide.sharing.joins import LEAST_LOST, JobJoins, Pacemakers
from brand.node.decide.state.draw import Draw
from brand.node.decide.state.features import Feature
from brand.node.decide.state.lives import EpochTable, Key
from brand.node.decide.state.members import Members
from brand.node.decide.state.runs import Runs
from brand.node.decide.state.tasks import Refuse
from brand.node.memory.residents import Residents
from brand.node.wire.numbers import RunNumber
from brand.orders.base.joins import Join, Joins
from brand.orders.base.policy import LockStep
from brand.orders.order import Order
from brand.orders.policies.following import UNIT
from brand.reprs import Reprs

FOLLOWER_SHARE: Final = 0.045
"""Upper limit on the share of the data set that a following job holds for the samples that it missed.

Found by simulation: two jobs hold 0.095 of the data set together, one job 0.053.
"""
GATHER_S: Final = 60.0
"""Time that the first jobs wait for the others."""
AWAY_S: Final = 30.0
"""A job that has drawn nothing for this long is not waited for any more."""


class Lockstep(Reprs, shows="_in_step"):
    """The jobs of a node that are in step."""

    def __init__(self, runs: Runs, lives: EpochTable, pacing: Pacing, pacemakers: Pacemakers) -> None:
        self._runs, self._lives, self._pacing, self._pacemakers = runs, lives, pacing, pacemakers
        self._in_step: dict[RunNumber, float] = {}
        """The time since when each run is in step."""
        self._together: set[Hashable] = set()
        """The common key of the groups whose jobs were all present at some time."""

    def must_wait(self, draw: Draw, now_s: float) -> bool:
        """Return whether a draw waits for other jobs."""
        number = draw.key[0]
        step = self._runs[number].order.policy.lock_step
        if step is None:
            return False
        group = sorted([number, *self._pacemakers.others(number)])
        if not self._gather(group, step, now_s):
            return True
        at = self._front(number) if number in self._in_step else None
        live = self._lives[draw.key].live
        if at is None or live is None or live.epoch.plan.track is None:
            return False
        first = live.epoch.plan.track.at(int(draw.positions.min()))
        fronts = [self._front(other) for other in group if other != number and other in self._in_step]
        return any(front < first - step.window for front in fronts if front is not None)

    def refusals(self, now_s: float) -> Iterator[Refuse]:
        """Yield clients that have waited too long for the jobs that should begin together with theirs."""
        for draw in self._lives.draws():
            order = self._runs[draw.key[0]].order
            step, common = order.policy.lock_step, self._pacemakers.common(draw.key[0])
            if step is not None and common not in self._together and now_s - draw.since_s > GATHER_S:
                there = [n for n in self._runs if self._pacemakers.common(n) == common]
                names = ", ".join(sorted(self._runs[n].name for n in there))
                reason = (
                    f"{len(there)} of {step.jobs} jobs in lock step ({names}) have begun within "
                    f"{GATHER_S:.0f} s: start all of them with the same seed=, order= and server=, each with its "
                    f"own job="
                )
                yield Refuse(draw.client, UsageError(reason))

    def forget_runs(self) -> None:
        self._in_step = {run: since_s for run, since_s in self._in_step.items() if run in self._runs}
        self._together &= {self._pacemakers.common(run) for run in self._runs}

    def _gather(self, group: list[RunNumber], step: LockStep, now_s: float) -> bool:
        """Update the jobs of a group that are in step. Return whether all were present at some time."""
        common = self._pacemakers.common(group[0])
        if len(group) >= step.jobs:
            self._together.add(common)
        if common not in self._together:
            return False
        for run in group:
            if run in self._in_step and self._away(run, now_s):
                del self._in_step[run]
        fronts = {run: front for run in group if (front := self._front(run)) is not None}
        if not fronts:
            return True
        within = [front for run, front in fronts.items() if run in self._in_step] or [max(fronts.values())]
        least, most = min(within) - step.window, max(within) + step.window
        for run, front in fronts.items():
            if run not in self._in_step and least <= front <= most:
                self._in_step[run] = now_s
        return True

    def _away(self, run: RunNumber, now_s: float) -> bool:
        waits = any(draw.key[0] == run for draw in self._lives.draws())
        return not waits and now_s - max(self._in_step[run], self._pacing.pulse(run).last_s) > AWAY_S

    def _front(self, run: RunNumber) -> int | None:
        return self._pacemakers.front(self._pacing.now(run))


class JobSharing(Feature, Reprs, shows="sharing lockstep leading"):
    """Jobs that share the reads of one node."""

    def __init__(self, residents: Residents, epochs: Epochs, members: Members) -> None:
        runs, lives, pacing = epochs.runs, epochs.lives, epochs.pacing
        self._epochs = epochs
        self.pacemakers = Pacemakers(runs, lives, pacing)
        self.sharing = JobJoins(runs, lives, len(residents.pages_of), pacing, self.pacemakers)
        self.lockstep = Lockstep(runs, lives, pacing, self.pacemakers)
        self.early = EarlyHolds(residents, epochs, self.pacemakers)
        self.leading = JoinConsensus(runs, lives, self.sharing, members)
        self._alone = members.nodes == 1

    def learn(self, key: Key, said: Joins) -> Joins:
        """Take the joins that a client knows of an epoch. Return those that this node knows. Raises `UsageError`."""
        if self.leading.learn(key, said):
            self._epochs.plans.remake(key)
        return self.leading.known(key)

    def forget_runs(self) -> None:
        self.sharing.forget_runs()
        self.lockstep.forget_runs()
        self.leading.forget_runs()

    def joined(self, key: Key) -> tuple[Join, ...]:
        return self.sharing.joins(key)

    def joins(self, key: Key, now_s: float) -> tuple[Join, ...] | None:
        return self.leading.joins(key, now_s)

    def rejoins(self, now_s: float, bridge: int) -> Iterator[tuple[Key, tuple[Join, ...]]]:
        """Yield epochs whose runs have fallen off the leading offset, on one node, each with all its joins."""
        return self.sharing.rejoins(now_s, bridge) if self._alone else iter(())

    def wants(self, key: Key, joins: Sequence[Join]) -> bool:
        return self.sharing.is_wanted(key, joins)

    def take_plan(self, key: Key, joins: tuple[Join, ...], *, live: bool) -> bool:
        return self.sharing.take_plan(key, joins, live=live)

    def is_committed(self, key: Key) -> bool:
        return self.leading.is_committed(key)

    def held_for_followers(self, order: Order, runs: set[RunNumber]) -> float:
        follow = sum(bool(self.pacemakers.others(run)) for run in runs) - 1
        return FOLLOWER_SHARE * order.samples * follow + 2 * LEAST_LOST if order.joins and follow > 0 else 0.0

    def ask(self, key: Key, positions: NDArray[np.int64], now_s: float) -> None:
        del now_s
        self.sharing.on_ask(key, int(positions.max()))

    def is_held_back(self, draw: Draw, now_s: float) -> bool:
        return self.lockstep.must_wait(draw, now_s)

    def on_drawn(self, key: Key) -> None:
        self.sharing.on_drawn(key)

    def answer(self, key: Key) -> int:
        """Return how often the run has joined others in the epoch."""
        return len(self.sharing.joins(key))

    def facts(self, key: Key, now_s: float) -> dict[str, Any]:
        """Return the facts about how the job of an epoch keeps together with other jobs."""
        number, pacing, joins = key[0], self._epochs.pacing, self.sharing.joins(key)
        pacemaker = self.pacemakers.pacemaker(number, now_s)
        mine, front = self.pacemakers.front(key), self.pacemakers.front(pacing.now(pacemaker))
        order = self._epochs.runs[number].order
        return {
            "sets_the_pace": order.joins and pacemaker == number and bool(self.pacemakers.others(number)),
            "pace": joins[-1].pace / UNIT if joins and joins[-1].pace else None,
            "behind": None if front is None or mine is None else front - mine,
            "joins": [list(astuple(join)) for join in joins],
        }

    def refusals(self, now_s: float) -> Iterator[Refuse]:
        """Yield clients that have waited too long for the jobs that should begin together with theirs."""
        return self.lockstep.refusals(now_s)
