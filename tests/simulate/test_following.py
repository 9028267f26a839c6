"""Reads of jobs that follow each other: closed forms, a slow obvious model, and the figures that decided for this
protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.mapping import Mapping
from brand.simulate.following import MOMENTS, DrawRun, ReadTally, Runner, draws_together, tally
from tests.rounds import examples

N = 131_072
MAPPING = Mapping(N, 64, 16)


def tallied(*jobs: tuple[float, float] | tuple[float, float, float]) -> ReadTally:
    """Of jobs (start in laps, speed, part), after two laps and until eight."""
    runners = []
    for number, (start, speed, *part) in enumerate(jobs):
        share = part[0] if part else 1.0
        runners.append(Runner(round(start * N), speed, np.random.default_rng(number).random(N) < share))
    return tally(MAPPING, 8, runners, draws_together(MAPPING, 8, 5, runners, 8 * N), after=2 * N, until=8 * N)


def reads(*jobs: tuple[float, float] | tuple[float, float, float], memory: float = 0.005) -> float:
    """Reads a draw; memory as a share of the samples."""
    found = tallied(*jobs)
    return float(found.reads(found.missed(memory * N)).sum() / found.draws.sum())


@pytest.mark.slow
def test_a_job_alone_reads_what_it_draws() -> None:
    """Each sample once an epoch, and each stripe once."""
    found = tallied((0, 1))
    missed = found.missed(N)
    assert found.draws.tolist() == [6 * N]
    assert found.reads(missed).tolist() == [6 * N]
    assert found.operations(missed).tolist() == [6 * N / 8]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [2, *(pytest.param(jobs, marks=pytest.mark.tables) for jobs in (4, 8))])
def test_jobs_of_one_speed_that_start_together_read_once(jobs: int) -> None:
    """For all of them."""
    assert reads(*[(0, 1)] * jobs) == pytest.approx(1 / jobs, abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("late", [pytest.param(0.25, marks=pytest.mark.tables), 0.5])
def test_two_jobs_of_which_one_is_late_are_near_the_bound(late: float) -> None:
    """(1 + f (1 - f)) / 2 reads a draw without memory; dependent sampling needs (1 + H(f)) / 2: 0.78 and 0.85."""
    assert reads((0, 1), (late, 1)) == pytest.approx((1 + late * (1 - late)) / 2, abs=0.012)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "little", "much"),
    [
        ([(0, 1), (0.25, 1)], 0.591, 0.562),
        pytest.param([(0, 1), (0.5, 1)], 0.622, 0.593, marks=pytest.mark.tables),
        pytest.param([(0, 1), (0.25, 1), (0.5, 1), (0.75, 1)], 0.390, 0.331, marks=pytest.mark.tables),
        pytest.param([(0, 1), (0, 0.7)], 0.629, 0.578, marks=pytest.mark.tables),
        pytest.param([(0, 1), (0, 0.5)], 0.669, 0.653, marks=pytest.mark.tables),
        pytest.param([(0, 1), (0, 0.6), (0, 0.45), (0, 0.27), (0, 0.19)], 0.436, 0.396, marks=pytest.mark.tables),
    ],
)
def test_other_starts_and_speeds(jobs: list[tuple[float, float]], little: float, much: float) -> None:
    """With memory for 0.5 % and 6.25 % of the samples. Jobs that read for themselves need one read a draw."""
    found = tallied(*jobs)
    for memory, expected in (0.005, little), (0.0625, much):
        per_draw = found.reads(found.missed(memory * N)).sum() / found.draws.sum()
        assert per_draw == pytest.approx(expected, abs=0.012)


@pytest.mark.slow
def test_a_random_tenth_beside_all_samples_shares_almost_nothing() -> None:
    """With little memory. Two parts of two thirds share all that they have in common, which is two thirds of each."""
    assert reads((0, 1), (0, 1, 0.1), memory=0.001) == pytest.approx(0.95, abs=0.01)
    assert reads((0, 1, 2 / 3), (0, 1, 2 / 3)) == pytest.approx(2 / 3, abs=0.015)


# -- against a slow, obvious model -------------------------------------------------------------------------------------


def slow(whiles: Sequence[Sequence[DrawRun]], room: int, until: float) -> int:
    """Reads, with a memory that is told each draw. It holds what an epoch that has begun still draws. After each moment
    it gives back what is drawn last, until the rest fits.
    """
    events = [
        (time, draws.runner, draws.began, place)
        for some in whiles
        for draws in some
        for time, place in zip(draws.times.tolist(), draws.places.tolist(), strict=True)
    ]
    events.sort(key=lambda event: event[:2])
    moment = (until - events[0][0]) / MOMENTS
    moments = [int((time - events[0][0]) / moment) for time, *_ in events]
    held, read = dict[int, int](), 0
    for at, (time, _, _, place) in enumerate(events):
        read += held.pop(place, None) is None
        later = [other for other in range(at + 1, len(events)) if events[other][3] == place]
        if any(events[other][2] <= time for other in later):
            held[place] = moments[later[0]]
        while moments[at : at + 2] != [moments[at]] * 2 and len(held) > room:
            last = max(held.values())
            held = {place: drawn for place, drawn in held.items() if drawn < last}
    return read


@pytest.mark.slow
@examples(10)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 300), st.sampled_from([1.0, 0.7, 0.5]), st.sampled_from([1.0, 0.5]), st.integers(1, 2)
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([0, 3, 10, 64]),
)
def test_reads_are_those_of_a_memory_that_is_told_each_draw(
    jobs: list[tuple[int, float, float, int]], room: int
) -> None:
    """Sample by sample."""
    mapping = Mapping(64, 16, 2)
    runners = []
    for number, (start, speed, share, epochs) in enumerate(jobs):
        part = np.random.default_rng(number).random(64) < share
        runners.append(Runner(start, speed, part, epochs))
    until = max(runner.start + runner.epochs * runner.draws / runner.speed for runner in runners) + 1
    whiles = list(draws_together(mapping, 4, 0, runners))
    found = tally(mapping, 4, runners, whiles, after=0, until=until)
    missed = found.missed(room)
    assert found.draws.tolist() == [runner.epochs * runner.draws for runner in runners]
    assert found.reads(missed).sum() == pytest.approx(np.count_nonzero(missed))
    assert np.count_nonzero(missed) == slow(whiles, room, until)
    stripes = sum(len(np.unique(np.flatnonzero(runner.part) // 4)) * runner.epochs for runner in runners)
    assert found.operations(missed).sum() <= stripes + 1e-6


def test_each_job_draws_its_part_once_an_epoch() -> None:
    """At its own speed, whoever sets the pace, also where the pacemaker ends."""
    mapping = Mapping(1000, 64, 2)
    part = np.arange(1000) % 3 == 0
    every = np.ones(1000, np.bool_)
    runners = [
        Runner(0, 1, every, 2),
        Runner(300.5, 0.6, part, 3),
        Runner(1200, 0.95, every, 2),
        Runner(9000, 0.1, part, 1),
    ]
    drawn: dict[tuple[int, float], list[int]] = {}
    times: dict[tuple[int, float], list[float]] = {}
    for some in draws_together(mapping, 8, 1, runners):
        for draws in some:
            drawn.setdefault((draws.runner, draws.began), []).extend(draws.places.tolist())
            times.setdefault((draws.runner, draws.began), []).extend(draws.times.tolist())
    assert len(drawn) == 8
    for (at, began), places in drawn.items():
        runner = runners[at]
        assert sorted(places) == np.flatnonzero(runner.part).tolist()
        assert times[at, began] == pytest.approx(began + np.arange(runner.draws) / runner.speed)
    assert math.isclose(min(began for at, began in drawn if at == 1), 300.5)
