"""How much is read for each draw, where jobs follow each other?

Jobs draw from one storage, each at its own constant speed, epoch after epoch. The fastest one makes the pace; the
others join it where it is when their epochs begin (`brand.protocol.following`). A sample that one job has drawn serves
another one for `bridge` coordinates, which is what memory holds for sharing. Time is counted in draws of the fastest
job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from brand.protocol.following import UNIT, Join, Lap, follow, lap_of
from brand.protocol.mapping import Mapping
from brand.protocol.stripes import plan_stripes


@dataclass(frozen=True, slots=True)
class Runner:
    """A job of the simulation."""

    start: int
    """When it begins."""
    speed: float
    """Draws in the time of one draw of the fastest job, above 0 and at most 1."""


def reads_per_draw(
    mapping: Mapping, stripe: int, seed: int, runners: Sequence[Runner], bridge: int, *, after: int, until: int
) -> float:
    """Samples that are read over samples that are drawn, between two times. The first runner is the fastest one."""

    @cache
    def laps(number: int) -> Lap:
        plan = plan_stripes(mapping, stripe, seed, number)
        assert plan.reads is not None
        return lap_of(plan.sample_of, plan.reads, mapping.chunk_size)

    draws = [_draws(mapping, stripe, seed, laps, runner, until, leads=at == 0) for at, runner in enumerate(runners)]
    times, places = (np.concatenate(each) for each in zip(*draws, strict=True))
    order = np.lexsort((times, places))
    times, places = times[order], places[order]
    read = np.ones(len(times), np.bool_)
    read[1:] = (places[1:] != places[:-1]) | (times[1:] - times[:-1] > bridge)
    counted = (times >= after) & (times < until)
    return float(read[counted].sum() / counted.sum())


def _draws(
    mapping: Mapping, stripe: int, seed: int, laps: Callable[[int], Lap], runner: Runner, until: int, *, leads: bool
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """When the job draws which places."""
    every, now, times, places = np.ones(mapping.samples, np.bool_), float(runner.start), [], []
    while now < until:
        lap, front = divmod(int(now), mapping.samples)
        join = Join(0, lap, front, 0 if leads else round(UNIT / runner.speed))
        times.append(now + np.arange(mapping.samples) / runner.speed)
        places.append(follow(mapping, stripe, seed, every, [join], laps).places)
        now += mapping.samples / runner.speed
    return np.concatenate(times), np.concatenate(places)
