"""How much is read for each draw, if jobs follow each other?

A sample that one job has drawn serves the next job that draws it, if memory holds it until then. A server holds a
sample as long as a job will still draw it in an epoch that has begun. If memory is short, it first releases the samples
that are drawn last. So a draw is *served* unless, at some moment between it and the previous draw, the samples that
were wanted sooner filled the memory. Draws are counted by the moments, of which there are `MOMENTS`, of the previous
draw and of the draw itself; memory is checked moment by moment.

Time is counted in draws of a job whose speed is 1, as in `joining`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.mapping import Mapping
from brand.orders.base.placement import unit_at, unit_count
from brand.simulate.joining import DrawRun, Runner

MOMENTS: Final = 4096


@dataclass(frozen=True, eq=False)
class ReadTally:
    """The draws of several jobs in a time interval.

    Arrays without a shape have that of all draws, by sample, then by time.
    """

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
