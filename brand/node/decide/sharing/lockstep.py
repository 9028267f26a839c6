"""Which draws wait for slower jobs? Those of jobs in lock step (order `coordl`; CoorDL, coordinated prep).

The first jobs wait until as many jobs as their policy names have begun. From then on they are in step: none draws a
sample more than a window ahead of the slowest. A job that has ended, or has drawn nothing for a while, is not waited
for. A job that is farther behind, because it started later or paused, proceeds alone: it waits for no job, no job waits
for it, and it is in step again when it is within the window. So every wait has an end. This module has no clock: times
are arguments. `Lockstep` owns the set of jobs that are in step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from brand.errors import UsageError
from brand.node.decide.epochs.pacing import Pacing
from brand.node.decide.sharing.pacemakers import Pacemakers
from brand.node.decide.state.epoch_table import Draw, EpochTable
from brand.node.decide.state.instructions import Refuse
from brand.node.decide.state.runs import Runs
from brand.node.wire.numbers import RunNumber
from brand.orders.base.policy import LockStep

GATHER_S: Final = 60.0
"""Time that the first jobs wait for the others."""
AWAY_S: Final = 30.0
"""A job that has drawn nothing for this long is not waited for any more."""


class Lockstep:
    """The jobs of a node that are in step."""

    def __init__(self, runs: Runs, lives: EpochTable, pacing: Pacing, pacemakers: Pacemakers) -> None:
        self._runs, self._lives, self._pacing, self._pacemakers = runs, lives, pacing, pacemakers
        self._in_step: dict[RunNumber, float] = {}
        """The time since when each run is in step."""
        self._together: set[Hashable] = set()
        """The common key of the groups whose jobs were all present at some time."""

    def __repr__(self) -> str:
        return f"Lockstep({sorted(self._in_step)})"

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
        """Forget runs that have ended."""
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
