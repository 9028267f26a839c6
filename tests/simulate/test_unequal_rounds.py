"""Reads of jobs that draw by JOADER's rule at speeds of their own: the closed form, and the figures that are known."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from brand.simulate.following import Runner
from brand.simulate.rounds import drawn_and_read

N = 1024


def reads(*jobs: tuple[float, float], memory: float = 0.005, elements: int = N) -> float:
    """Reads a draw of jobs (start in epochs, speed), after an epoch and until five; memory as a share."""
    runners = [Runner(start * elements, speed, np.ones(elements, np.bool_)) for start, speed in jobs]
    drawn, read = drawn_and_read(runners, int(memory * elements), 0, elements, 5 * elements)
    return float(read.sum() / drawn.sum())


@pytest.mark.parametrize("memory", [0.1, 0.5])
def test_a_job_alone_reads_what_memory_does_not_hold(memory: float) -> None:
    """The cache evicts first what the epoch has drawn. So it is full of elements that the epoch still needs."""
    assert reads((0, 1), memory=memory) == pytest.approx(1 - memory, abs=0.002)


def test_jobs_that_start_together_read_once() -> None:
    """They draw the same in each round. Memory has five elements of the epoch before."""
    assert reads((0, 1), (0, 1)) == pytest.approx(0.5, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.25, 0.5])
def test_a_late_job_reads_by_the_closed_form(late: float) -> None:
    """(1 + H(f)) / 2 reads a draw without memory, H the natural entropy."""
    entropy = -late * log(late) - (1 - late) * log(1 - late)
    assert reads((0, 1), (late, 1), elements=4096) == pytest.approx((1 + entropy) / 2, abs=0.012)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "memory", "found"),
    [
        ([(0, 1), (0.25, 1), (0.5, 1), (0.75, 1)], 0.005, 0.646),
        pytest.param([(0, 1), (0, 0.6), (0, 0.45), (0, 0.27), (0, 0.19)], 0.01, 0.740, marks=pytest.mark.tables),
        ([(0, 1), (0, 0.7)], 0.0625, 0.740),
        pytest.param([(0, 1), (0, 0.5)], 0.0625, 0.765, marks=pytest.mark.tables),
    ],
)
def test_other_starts_and_speeds(jobs: list[tuple[float, float]], memory: float, found: float) -> None:
    """One run each; another one differs by about a hundredth."""
    assert reads(*jobs, memory=memory, elements=2048) == pytest.approx(found, abs=0.025)


def test_draws_follow_start_speed_part_and_epochs() -> None:
    """A job that ends makes room for the others' rounds, and reads are never more than draws."""
    part = np.arange(N) % 4 == 0
    runners = [Runner(0, 1, np.ones(N, np.bool_), 2), Runner(100, 0.5, part, 3)]
    drawn, read = drawn_and_read(runners, 10, 0, 0, 3 * N)
    assert drawn.tolist() == [2 * N, 3 * N // 4]
    assert 0 < read[1] < drawn[1]
    assert read[0] < drawn[0]
