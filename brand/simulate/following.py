"""When does each of several jobs draw which sample, if they follow each other, and how much is read for each draw?

A run of the simulation steps from event to event: a job begins an epoch, or ends its last one. At each event the
pacemaker is elected: the fastest job, until it ends or another is a tenth faster. A job with a part of the samples
counts as that much slower. A job that begins an epoch joins the front. If another job becomes the pacemaker, all others
join again, in the middle of their epochs. The draws of a job follow from its joins
(`brand.orders.policies.shared_policy`). Time is counted in draws of a job whose speed is 1.

A sample that one job has drawn serves the next job that draws it, if memory holds it until then. A server holds a
sample as long as a job will still draw it in an epoch that has begun. If memory is short, it first releases the samples
that are drawn last. So a draw is *served* unless, at some moment between it and the previous draw, the samples that
were wanted sooner filled the memory. Draws are counted by the moments, of which there are `MOMENTS`, of the previous
draw and of the draw itself; memory is checked moment by moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.joins import LEAST_PACE, MOST_PACE, Join
from brand.orders.base.mapping import Mapping
from brand.orders.base.placement import unit_at, unit_count
from brand.orders.policies.shared_policy import UNIT, JobDraws, Lap, follow, lap_of
from brand.orders.policies.stripe_policy import plan_stripes

FASTER: Final = 1.1
"""A job that is this many times as fast as the pacemaker replaces it."""
LAST: Final = 0.98
"""A pacemaker that begins an epoch after this fraction of a lap begins with a new lap."""
MOMENTS: Final = 4096
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

    def draw(self, end: float) -> slice:
        """Draw until a time. Return the numbers of the draws."""
        first, self.done = self.done, int(np.searchsorted(self.times, end))
        return slice(first, self.done)

    def join(self, join: Join, draws_of: Callable[[list[Join]], JobDraws]) -> None:
        self.joins = [*(each for each in self.joins if each.position < self.done), join]
        self.drawn = draws_of(self.joins)


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
        some = epoch.draw(end)
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
        """Return the fastest job, of those equally fast the earlier one. One with a part counts as that much slower."""
        runners, now = self._runners, self._pacemaker
        rates = {at: runners[at].speed * runners[at].draws for at in self._epochs}
        best = max(rates, key=lambda at: (rates[at], runners[at].draws, -runners[at].start, -at))
        return now if now in rates and now is not None and rates[best] < FASTER * rates[now] else best

    def _join(self, at: int, epoch: _Epoch) -> None:
        """Let a job join the front from its next draw on."""
        runner, samples = self._runners[at], self._mapping.samples
        if epoch.done == len(epoch.times):
            return
        pace, leader = 0, self._runners[at if self._pacemaker is None else self._pacemaker]
        if at != self._pacemaker:
            pace = round(UNIT * leader.speed * samples / leader.draws / runner.speed)
            pace = min(max(pace, LEAST_PACE), MOST_PACE)
        join = Join(epoch.done, *divmod(self._front, samples), pace)
        epoch.join(join, lambda joins: follow(self._mapping, self._stripe, self._seed, runner.part, joins, self._laps))


@dataclass(frozen=True, eq=False)
class ReadTally:
    """The draws of several jobs in an interval. Arrays without a shape are by draw: by sample, then by time."""

    came: NDArray[np.int16]
    """The moment of the previous draw, by which the sample was read; -1 if no memory can have it."""
    drawn: NDArray[np.int16]
    """The moment of the draw."""
    read: NDArray[np.int32]
    """The read that would deliver it: a number for each job, epoch and stripe."""
    counted: NDArray[np.bool_]
    """Whether the draw counts."""
    job_of: NDArray[np.int32]
    """The job of each read, shape (reads,)."""
    members: NDArray[np.int32]
    """Draws of each read, shape (reads,); 0: no read is needed, because the subset has no sample of the stripe."""
    jobs: int

    @cached_property
    def draws(self) -> NDArray[np.int64]:
        return np.bincount(self.job_of[self.read[self.counted]], minlength=self.jobs)

    @cached_property
    def _waiting(self) -> NDArray[np.int32]:
        """Draws by the moments `came` and `drawn`, shape (moments, moments)."""
        able = self.came >= 0
        cell = self.came[able].astype(np.int64) * MOMENTS + self.drawn[able]
        return np.bincount(cell, minlength=MOMENTS * MOMENTS).astype(np.int32).reshape(MOMENTS, MOMENTS)

    @cached_property
    def most_held(self) -> int:
        """The most samples in memory at a time, if it holds all that a job will still draw."""
        ends = np.cumsum(self._waiting.sum(axis=0, dtype=np.int64))
        return int((np.cumsum(self._waiting.sum(axis=1, dtype=np.int64)) - ends).max())

    def missed(self, room: float) -> NDArray[np.bool_]:
        """Return a mask of the draws that a memory of `room` samples does not serve."""
        served = np.zeros((MOMENTS, MOMENTS), np.bool_)
        last, held, moments = np.empty(MOMENTS, np.int64), np.zeros(MOMENTS, np.int64), np.arange(MOMENTS)
        for now in range(MOMENTS):
            held += self._waiting[now]
            held[now] = 0
            last[now] = now + np.searchsorted(np.cumsum(held[now:]), room, side="right") - 1
            held[last[now] + 1 :] = 0
        for first in range(MOMENTS):
            within = np.minimum.accumulate(last[first:])
            served[first, first:] = np.concatenate([[MOMENTS], within[:-1]]) >= moments[first:]
        return ~((self.came >= 0) & served[self.came, self.drawn])

    def reads(self, missed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the samples that each job reads, shape (jobs,). A read that serves several draws is divided evenly."""
        read = np.cumsum(missed) - 1  # the first draw of each sample is missed
        part = 1 / np.bincount(read)[read]
        return _sums(self.job_of[self.read[self.counted]], part[self.counted], self.jobs)

    def operations(self, missed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the stripes of which each job reads something, shape (jobs,).

        A stripe that serves draws of which only some count is a fraction of one.
        """
        counted = np.bincount(self.read[self.counted], minlength=len(self.job_of))
        counted[np.bincount(self.read[missed], minlength=len(self.job_of)) == 0] = 0
        return _sums(self.job_of, counted / np.maximum(self.members, 1), self.jobs)


def tally(
    mapping: Mapping,
    stripe: int,
    runners: Sequence[Runner],
    whiles: Iterable[Sequence[DrawRun]],
    *,
    after: float,
    until: float,
) -> ReadTally:
    """Count the draws of `draws_together`, which are all before `until`; draws from `after` on count."""
    epochs, columns = dict[tuple[int, float], int](), list[tuple[NDArray[Any], ...]]()
    for some in whiles:
        order = np.argsort(np.concatenate([each.times for each in some]), kind="stable")
        numbers = [epochs.setdefault((each.runner, each.began), len(epochs)) for each in some]
        number = np.repeat(np.array(numbers, np.int32), [len(each.times) for each in some])
        times, places = (np.concatenate([getattr(each, name) for each in some]) for name in ("times", "places"))
        columns.append((places[order], times[order], number[order]))
    places, times, number = (np.concatenate(column) for column in zip(*columns, strict=True))
    columns.clear()
    begin, order = float(times[0]), np.argsort(places, kind="stable")
    places, times, number = places[order], times[order], number[order]
    moment = (until - begin) / MOMENTS
    before = _before(places, times, np.array([began for _, began in epochs])[number])
    jobs, stripes = np.array([job for job, _ in epochs], np.int32), unit_count(mapping, stripe)
    stripe_of = unit_at(mapping, stripe, np.arange(mapping.samples)).astype(np.int32)
    members = [np.bincount(stripe_of[runner.part], minlength=stripes).astype(np.int32) for runner in runners]
    return ReadTally(
        np.where(before < begin, -1, (before - begin) / moment).astype(np.int16),
        np.minimum((times - begin) / moment, MOMENTS - 1).astype(np.int16),
        number * np.int32(stripes) + stripe_of[places],
        times >= after,
        np.repeat(jobs, stripes),
        np.concatenate([members[job] for job in jobs]),
        len(runners),
    )


def _before(places: NDArray[np.int32], times: NDArray[np.float64], began: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the time at which each sample was drawn before, if it was wanted since; -1 if it is new.

    The draws are by sample, then by time. `began`: the times at which the epochs of the draws began. A sample is wanted
    if this or a later draw is one of an epoch that had begun at the previous draw. All have the same shape.
    """
    begins, rank = np.unique(began, return_inverse=True)
    behind = places * np.int64(len(begins)) + rank  # samples behind have larger numbers, so they do not lower these
    first = np.minimum.accumulate(behind[::-1])[::-1] % len(begins)
    again = np.flatnonzero(places[1:] == places[:-1]) + 1
    again = again[begins[first[again]] <= times[again - 1]]
    found = np.full(len(times), -1.0)
    found[again] = times[again - 1]
    return found


def _sums(group: NDArray[np.int32], values: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    return np.asarray(np.bincount(group, values, groups), np.float64)
