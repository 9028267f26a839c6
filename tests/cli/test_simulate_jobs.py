"""`brand simulate --job`: what it prints, its JSON, and what is wrong use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import brand

IMAGINED = "--samples", "20000", "--mean-bytes", "100kB", "--memory", "0.1"


@pytest.mark.slow
def test_jobs_are_shown_one_by_one_and_together() -> None:
    """With times where speeds are in samples a second."""
    out = brand("simulate", *IMAGINED, "--job", "100/s", "--job", "100/s,start=0.5").out
    first, _, one, other, said, _, follow, alone, advice = out.splitlines()
    assert first == "20,000 samples, 2.0 GB; memory 0.1"
    assert one.split()[:6] == ["100/s", "3", "min", "20", "s", "20,000"]
    assert other.split()[0] == "100/s,start=0.5"
    assert said == "While the fastest job could fetch all samples once:"
    assert follow.split()[0] == "follow"
    assert alone.split() == ["alone", "6,188", "3.6", "GB", "0.90", "1.00"]
    assert advice.startswith("Together these jobs read ")
    assert advice.endswith("less if they start at the same time")


@pytest.mark.slow
def test_relative_speeds_have_relative_times() -> None:
    """The fastest job's epoch of all samples is 1."""
    out = brand("simulate", *IMAGINED, "--job", "3", "--job", "1.5", "--job", "3,subset=0.5").out
    assert [line.split()[1] for line in out.splitlines()[2:5]] == ["1.00", "2.00", "0.50"]


def test_lock_step_is_told_to_go_at_the_speed_of_the_slowest() -> None:
    """Only where speeds differ."""
    said = "With coordl all jobs run at the speed of the slowest one"
    asked = *IMAGINED, "--policies", "coordl,alone", "--job", "2", "--job"
    assert said in brand("simulate", *asked, "1").out
    assert said not in brand("simulate", *asked, "2").out


@pytest.mark.slow
def test_a_random_part_is_told_to_run_apart() -> None:
    """It overlaps little with the samples of other jobs."""
    told = brand("simulate", *IMAGINED[:4], "--memory", "0.01", "--job", "1", "--job", "1,subset=0.1").out
    assert (
        "less than each for itself: a random subset overlaps little with the samples of other jobs. Run them apart"
        in told
    )


def test_one_job_is_told_that_it_is_alone() -> None:
    """It reads the same with both policies, but for the pool that mixes."""
    assert "One job has nobody to share with" in brand("simulate", *IMAGINED, "--job", "1").out


@pytest.mark.slow
def test_each_memory_and_policy_makes_a_row_of_json() -> None:
    """With figures for each job."""
    asked = (
        "--memory",
        "0.1,1GB",
        "--policies",
        "follow,joader,coordl,alone",
        "--decoded-memory",
        "200MB:200kB",
        "--decode",
        "4",
    )
    found = brand("simulate", *IMAGINED[:4], *asked, "--job", "500/s", "--job", "500/s", "--json").json
    assert [(row["memory"], row["policy"]) for row in found["rows"]] == [
        (memory, policy) for memory in ("0.1", "1GB") for policy in ("follow", "joader", "coordl", "alone")
    ]
    assert found["jobs"][1] == {"job": "500/s", "speed": 500, "start": 0, "subset": 1, "epochs": None}
    for row in found["rows"]:
        shared = row["policy"] != "alone"
        assert row["decoded_per_sample"] == pytest.approx(0.5 if shared else 1, abs=0.01)
        assert row["decoding_threads"] == pytest.approx(2 if shared else 4, abs=0.05)
        assert row["read_bytes"] == pytest.approx(row["read_per_byte_fetched"] * 4e9)
        assert [job["fetched"] for job in row["jobs"]] == [20_000, 20_000]
    assert found["advice"].startswith("Together these jobs read ")


@pytest.mark.slow
def test_a_data_set_that_is_there_is_asked(photos_set: Path) -> None:
    """Jobs that end count from the first draw to the last."""
    told = brand(
        "simulate", photos_set, "--memory", "0.5", "--job", "1,epochs=2", "--job", "1,epochs=2", "--decode", "1"
    )
    assert told.code == 0, told.err
    assert "From the first fetch to the last:" in told.out


@pytest.mark.slow
def test_a_picture_is_drawn(tmp_path: Path) -> None:
    """With matplotlib."""
    pytest.importorskip("matplotlib")
    plot = tmp_path / "jobs.svg"
    told = brand("simulate", *IMAGINED[:4], "--memory", "0.1,0.5", "--job", "1", "--job", "1", "--plot", plot)
    assert f"The plot of the policies is in {plot}" in told.out
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [
        (("--job", "fast"), "--job fast: give a speed"),
        (("--job", "inf"), "give a speed"),
        (("--job", "1,late=2"), "give a speed, then start="),
        (("--job", "1,start=1,start=2"), "give a speed, then start="),
        (("--job", "0"), "a speed is above 0"),
        (("--job", "1,subset=2"), "at most 1"),
        (("--job", "1,start=-1"), "--job 1,start=-1"),
        (("--job", "1,epochs=1.5"), "epochs a whole number"),
        (("--job", "1", "--job", "100/s"), "give all speeds in samples a second"),
        (("--job", "1", "--job", "1,epochs=2"), "give each of them a number, or none"),
        (("--job", "1", "--policies", "fifo"), "give some of follow, joader, coordl, alone"),
        (("--job", "1", "--decoded-memory", "2GB"), "such as 2GB:262kB"),
        (("--job", "1", "--decoded-memory", "2:262kB"), "--decoded-memory 2:262kB has no unit"),
        (("--job", "1", "--decoded-memory", "2GB:big"), "--decoded-memory 2GB:big: 'big' is not a size"),
        (("--job", "1", "--nodes", "2"), "--job has no use for it: leave out --nodes"),
        (("--decoded-memory", "2GB:1kB"), "give --job"),
        (("--policies", "follow"), "give --job"),
    ],
)
def test_wrong_use_says_what_to_give(wrong: tuple[str, ...], cure: str) -> None:
    """With exit code 2."""
    found = brand("simulate", *IMAGINED, *wrong)
    assert found.code == 2
    assert cure in found.err
