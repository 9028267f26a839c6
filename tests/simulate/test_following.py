"""Reads of jobs that follow each other: closed forms, and the figures that decided for this protocol."""

from __future__ import annotations

import pytest

from brand.protocol.mapping import Mapping
from brand.simulate.following import Runner, reads_per_draw

N = 131_072
MAPPING = Mapping(N, 64, 16)


def reads(*jobs: tuple[float, float], bridge: float = 0.005) -> float:
    """Reads a draw of jobs (start, speed), after two laps and until eight; start and bridge as shares of a lap."""
    runners = [Runner(round(start * N), speed) for start, speed in jobs]
    return reads_per_draw(MAPPING, 8, 5, runners, round(bridge * N), after=2 * N, until=8 * N)


def test_a_job_alone_reads_what_it_draws() -> None:
    """Each sample once an epoch, but for a few that come twice in a short time at the turn of an epoch."""
    assert reads((0, 1)) == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("jobs", [2, 4, 8])
def test_jobs_of_one_speed_that_start_together_read_once(jobs: int) -> None:
    """For all of them."""
    assert reads(*[(0, 1)] * jobs) == pytest.approx(1 / jobs, abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.25, 0.5])
def test_two_jobs_of_which_one_is_late_are_near_the_bound(late: float) -> None:
    """(1 + f (1 - f)) / 2 reads a draw; dependent sampling needs (1 + H(f)) / 2, which is 0.78 and 0.85."""
    bound = (1 + late * (1 - late)) / 2
    assert bound <= reads((0, 1), (late, 1)) < bound + 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "found"),
    [
        ([(0, 1), (0.25, 1), (0.5, 1), (0.75, 1)], 0.412),
        ([(0, 1), (0, 0.7)], 0.636),
        ([(0, 1), (0, 0.5)], 0.673),
        ([(0, 1), (0, 0.6), (0, 0.45), (0, 0.27), (0, 0.19)], 0.449),
    ],
)
def test_other_starts_and_speeds(jobs: list[tuple[float, float]], found: float) -> None:
    """Jobs that read for themselves need one read a draw."""
    assert reads(*jobs) == pytest.approx(found, abs=0.01)
