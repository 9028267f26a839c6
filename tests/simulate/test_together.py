"""What several jobs read together, by policy and memory."""

from __future__ import annotations

import pytest

from brand.errors import UsageError
from brand.node.setup.choose import Facts
from brand.simulate.together import MOST_JOBS, POLICIES, PlannedJob, Policy, SharedReads, Together

FACTS = Facts("0" * 32, 16_384, 64, 110e3, 512 << 10)


def sharing(policy: Policy, memory: float, *jobs: PlannedJob, prepared: float | None = None) -> SharedReads:
    """The answer for some jobs."""
    return Together(FACTS, jobs, 2).sharing(policy, memory, prepared)


@pytest.mark.parametrize("memory", [0.1, 0.5, 1.0])
def test_jobs_for_themselves_read_what_memory_does_not_keep(memory: float) -> None:
    """Of their own draws: 1 - memory."""
    found = sharing("alone", memory, PlannedJob(), PlannedJob(0.5))
    assert found.draws == [1, 0.5]
    assert found.reads == pytest.approx([1 - memory, 0.5 - memory / 2])
    assert found.operations == pytest.approx(1.5 * (1 - memory) * 16_384 / 5, rel=0.05)
    assert found.prepared_per_draw == 1


@pytest.mark.slow
def test_a_job_alone_that_follows_reads_what_memory_does_not_hold() -> None:
    """Its pool of a sixteenth is not for keeping."""
    assert sharing("follow", 0.25, PlannedJob()).per_draw == pytest.approx((1 - 0.25) / (1 - 1 / 16), abs=0.001)


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_for_all_samples_reads_nothing_again(policy: Policy) -> None:
    """Jobs that do not end have read all samples before the counted time."""
    assert sharing(policy, 1.0, PlannedJob()).per_draw == 0


def test_jobs_in_lock_step_read_once_at_the_speed_of_the_slowest() -> None:
    """Memory keeps what the window of 2,048 samples leaves."""
    found = sharing("coordl", 0.5, PlannedJob(1500), PlannedJob(750), PlannedJob(1500), prepared=0.01)
    assert found.epochs == [2, 2, 2]
    assert found.draws == [0.5, 0.5, 0.5]
    assert found.per_draw == pytest.approx((1 - (0.5 - 2048 / 16_384)) / 3)
    assert found.prepared_per_draw == pytest.approx(1 / 3)


@pytest.mark.slow
def test_jobs_that_follow_need_less_than_joader_and_much_less_than_alone() -> None:
    """Half an epoch apart."""
    follow, joader, alone = (
        sharing(each, 0.01, PlannedJob(), PlannedJob(start=0.5)).per_draw for each in POLICIES if each != "coordl"
    )
    assert follow == pytest.approx(0.62, abs=0.02)
    assert joader == pytest.approx(0.84, abs=0.02)
    assert alone == 0.99


@pytest.mark.slow
def test_jobs_that_end_read_everything_once_at_least() -> None:
    """Figures are from the first draw to the last; memory for all samples reads each of them once."""
    jobs = PlannedJob(epochs=2), PlannedJob(start=1.0, epochs=1, subset=0.5)
    for policy in ("follow", "alone"):
        found = sharing(policy, 1.0, *jobs)
        assert found.draws == pytest.approx([2, 0.5])
        assert sum(found.reads) == pytest.approx(1)
    assert sum(sharing("coordl", 1.0, PlannedJob(epochs=3), PlannedJob(epochs=3)).reads) == 1


@pytest.mark.slow
def test_preparations_are_shared_as_far_as_their_memory_goes() -> None:
    """Without such a memory each job prepares what it draws."""
    jobs = PlannedJob(), PlannedJob(start=0.25)
    none, little, much = (sharing("follow", 0.5, *jobs, prepared=each).prepared_per_draw for each in (None, 0.01, 1.0))
    assert none == 1
    assert much < little < 0.62


@pytest.mark.slow
def test_late_starts_count_by_what_is_left_of_an_epoch() -> None:
    """Jobs that go on are looked at when all have run for a while."""
    late, later = (sharing("follow", 0.1, PlannedJob(), PlannedJob(start=start)).per_draw for start in (0.25, 7.25))
    assert late == later


@pytest.mark.slow
def test_a_piece_of_a_large_data_set_reads_the_same_share() -> None:
    """1.28 million samples are answered by fewer."""
    large = Facts("0" * 32, 1_281_167, 64, 110e3, 512 << 10)
    jobs = PlannedJob(), PlannedJob(0.5)
    whole, piece = (Together(facts, jobs, 2).sharing("follow", 0.1) for facts in (FACTS, large))
    assert piece.per_draw == pytest.approx(whole.per_draw, abs=0.02)
    assert piece.operations / large.samples == pytest.approx(whole.operations / FACTS.samples, rel=0.1)


@pytest.mark.parametrize(
    ("jobs", "cure"),
    [
        ([], "give 1 to 64"),
        ([PlannedJob()] * (MOST_JOBS + 1), "give 1 to 64"),
        ([PlannedJob(epochs=2), PlannedJob()], "give each of them a number, or none"),
        ([PlannedJob(), PlannedJob(0.01)], "leave out the slowest job"),
        ([PlannedJob(epochs=100)], "give fewer epochs"),
    ],
)
def test_jobs_that_cannot_be_simulated_are_refused(jobs: list[PlannedJob], cure: str) -> None:
    """With what to give instead."""
    with pytest.raises(UsageError, match=cure):
        Together(FACTS, jobs, 3)


@pytest.mark.parametrize("jobs", [[PlannedJob(), PlannedJob(subset=0.5)], [PlannedJob(epochs=1), PlannedJob(epochs=2)]])
def test_lock_step_needs_equal_jobs(jobs: list[PlannedJob]) -> None:
    """The same samples, for the same number of epochs."""
    with pytest.raises(UsageError, match="coordl: all jobs fetch all samples"):
        sharing("coordl", 0.5, *jobs)
