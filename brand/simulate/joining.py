"""When does each of several jobs draw which sample, if they follow each other at constant speeds?

A run of the simulation steps from event to event: a job begins an epoch, or ends its last one. At each event the
pacemaker is elected: the fastest job, until it ends or another is a tenth faster. A job that begins an epoch joins the
front. If another job becomes the pacemaker, all others join again, in the middle of their epochs. The draws of a job
follow from its joins (`brand.orders.policies.shared_policy`). Time is counted in draws of a job whose speed is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.joins import LEAST_PACE, MOST_PACE, Join
from brand.orders.base.mapping import Mapping
from brand.orders.policies.shared_policy import UNIT, JobDraws, Lap, follow, lap_of
from brand.orders.policies.stripe_policy import plan_stripes

FASTER: Final = 1.1
"""A job that is this many times as fast as the pacemaker replaces it."""
LAST: Final = 0.98
"""A pacemaker that begins an epoch after this fraction of a lap begins with a new lap."""
_LAPS: Final = 4
"""Laps that are held at a time: a follower plans ahead, then the pacemaker reaches the same laps."""


@dataclass(frozen=True, slots=True, eq=False)
class Runner:
    """A job of the simulation."""

    start: float
    """Time at which it begins."""
    speed: float
    """Draws per unit of time, above 0."""
    part: NDArray[np.bool_]
    """Mask of the places that it draws in each epoch, shape (samples,). At least one."""
    epochs: float = math.inf
    """Number of epochs that it draws."""

    @property
    def draws(self) -> int:
        return int(np.count_nonzero(self.part))


@dataclass(frozen=True, slots=True, eq=False)
class DrawRun:
    """Consecutive draws of one job within one epoch. Arrays have the shape (draws,)."""

    runner: int
    began: float
    """Time at which the epoch began."""
    places: NDArray[np.int32]
    times: NDArray[np.float64]


@dataclass(slots=True, eq=False)
class _Epoch:
    """The draws of a job in its current epoch."""

    began: float
    times: NDArray[np.float64]
    number: int
    """Epochs that the job ended before this one."""
    joins: list[Join] = field(default_factory=list)
    drawn: JobDraws = field(default_factory=lambda: JobDraws(np.empty(0, np.int64), np.empty(0, np.int64)))
    done: int = 0
    """Draws of the epoch that are over."""


def draws_together(
    mapping: Mapping, stripe: int, seed: int, runners: Sequence[Runner], until: float = math.inf
) -> Iterator[list[DrawRun]]:
    """Yield the draws of all jobs before a time, from event to event."""
    yield from _Together(mapping, stripe, seed, runners).run(until)


class _Together:
    """Owns the positions of the jobs and of the front."""

    def __init__(self, mapping: Mapping, stripe: int, seed: int, runners: Sequence[Runner]) -> None:
        self._mapping, self._stripe, self._seed, self._runners = mapping, stripe, seed, runners
        self._epochs: dict[int, _Epoch] = {}
        """The epochs of the jobs that run."""
        self._pacemaker: int | None = None
        self._front = 0

        @lru_cache(maxsize=_LAPS)
        def laps(number: int) -> Lap:
            plan = plan_stripes(mapping, stripe, seed, number)
            assert plan.reads is not None
            return lap_of(plan.sample_of, plan.reads, mapping.chunk_size)

        self._laps = laps

    def run(self, until: float) -> Iterator[list[DrawRun]]:
        """Yield the draws before a time."""
        waiting = sorted(range(len(self._runners)), key=lambda at: self._runners[at].start)
        now = self._runners[waiting[0]].start
        while now < until and (waiting or self._epochs):
            begin = [at for at, epoch in self._epochs.items() if self._over(at, epoch) <= now]
            begin = [at for at in begin if not self._ends(at)]
            while waiting and self._runners[waiting[0]].start <= now:
                begin.append(waiting.pop(0))
            if begin or self._pacemaker not in self._epochs:
                self._elect(begin, now)
            after = [self._over(at, epoch) for at, epoch in self._epochs.items()]
            after += [self._runners[at].start for at in waiting[:1]]
            now = min(*after, until) if after else until
            if self._epochs:
                yield [self._draw(at, epoch, now) for at, epoch in self._epochs.items()]

    def _over(self, at: int, epoch: _Epoch) -> float:
        return epoch.began + len(epoch.times) / self._runners[at].speed

    def _ends(self, at: int) -> bool:
        """Remove a job whose last epoch is over; return whether it was."""
        if self._epochs[at].number + 1 < self._runners[at].epochs:
            return False
        self._move_front()
        del self._epochs[at]
        return True

    def _draw(self, at: int, epoch: _Epoch, end: float) -> DrawRun:
        """Return the draws of a job from its position to a time."""
        first = epoch.done
        epoch.done = int(np.searchsorted(epoch.times, end))
        some = slice(first, epoch.done)
        return DrawRun(at, epoch.began, epoch.drawn.places[some].astype(np.int32), epoch.times[some])

    def _move_front(self) -> None:
        """Move the front to the next draw of the pacemaker."""
        epoch = self._epochs.get(-1 if self._pacemaker is None else self._pacemaker)
        if epoch is not None and epoch.done < len(epoch.times):
            self._front = int(epoch.drawn.coordinates[epoch.done])
        elif epoch is not None:
            self._front = int(epoch.drawn.coordinates[-1]) + 1

    def _elect(self, begin: list[int], now: float) -> None:
        """Elect the pacemaker and let the jobs join, when some jobs begin an epoch or one has left."""
        self._move_front()
        before = self._pacemaker
        for at in begin:
            runner, old = self._runners[at], self._epochs.get(at)
            began = now if old is None else self._over(at, old)
            times = began + np.arange(runner.draws) / runner.speed
            self._epochs[at] = _Epoch(began, times, 0 if old is None else old.number + 1)
        if not self._epochs:
            return
        self._pacemaker = self._fastest()
        if self._pacemaker in begin or len(self._epochs) == 1:
            lap, front = divmod(self._front, self._mapping.samples)
            if front and (len(self._epochs) == 1 or front >= LAST * self._mapping.samples):
                self._front = (lap + 1) * self._mapping.samples
        joining = begin if self._pacemaker == before else list(self._epochs)
        for at in joining:
            self._join(at, self._epochs[at])

    def _fastest(self) -> int:
        """Return the fastest job; if several are equally fast, the job with the larger subset, then the earlier one."""
        runners, now = self._runners, self._pacemaker
        best = max(self._epochs, key=lambda at: (runners[at].speed, runners[at].draws, -runners[at].start, -at))
        if now in self._epochs and now is not None and runners[best].speed < FASTER * runners[now].speed:
            return now
        return best

    def _join(self, at: int, epoch: _Epoch) -> None:
        """Let a job join the front from its next draw on."""
        runner, samples = self._runners[at], self._mapping.samples
        if epoch.done == len(epoch.times):
            return
        pace, leader = 0, self._runners[at if self._pacemaker is None else self._pacemaker]
        if at != self._pacemaker:
            pace = round(UNIT * leader.speed * samples / leader.draws / runner.speed)
            pace = min(max(pace, LEAST_PACE), MOST_PACE)
        joins = [join for join in epoch.joins if join.position < epoch.done]
        epoch.joins = [*joins, Join(epoch.done, *divmod(self._front, samples), pace)]
        epoch.drawn = follow(self._mapping, self._stripe, self._seed, runner.part, epoch.joins, self._laps)
