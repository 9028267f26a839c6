"""Pace and progress of a training follow from what its loops took; how far clients have fetched is another number."""

from __future__ import annotations

from typing import Any

import pytest

from brand.node.serve.loops import CELL_S, SILENT_S
from brand.node.serve.progress import FORGOTTEN_S, history, slow_rank, trainings


def loop(rank: int = 0, ranks: int = 1, **more: Any) -> dict[str, Any]:
    """A loop that has taken a tenth of an epoch of 1,000 samples, in batches of ten."""
    pace = {"samples_per_s": 50.0, "batches_per_s": 5.0, "wait_share": 0.01}
    return {
        **{"job": "run", "rank": rank, "ranks": ranks, "epoch": 3, "heard_s": 0.5, "now": None, "recent_cause": "loop"},
        **{"busy_s": 0.0},
        **{"step": 10, "taken": 100, "due": 1000 // ranks, "epoch_start": 0, "epoch_samples": 1000, "left_s": 18.0},
        **{"rows": [], "cells": [], "pace": pace},
        **more,
    }


def job(**more: Any) -> dict[str, Any]:
    """What a server knows of the fetches of a run."""
    return {"job": "run", "epoch": 3, "position": 400, "samples": 1000, "rate": 0.0, **more}


def test_what_was_read_ahead_is_not_what_was_taken() -> None:
    """The fault that a page had which showed fetches: all samples are fetched in the middle of an epoch."""
    (found,) = trainings([loop()], [job(position=1000, rate=0.0)])
    assert (found["taken"], found["fetched"], found["share"]) == (100, 1000, 0.1)
    assert (found["samples_per_s"], found["batches_per_s"], found["state"]) == (50.0, 5.0, "training")
    assert found["left_s"] == 18.0


def test_ranks_add_up() -> None:
    """Their speeds and samples; the slowest one ends the epoch."""
    (found,) = trainings([loop(0, 2), loop(1, 2, left_s=40.0)], [job()])
    assert (found["taken"], found["samples_per_s"], found["left_s"]) == (200, 100.0, 40.0)
    assert (found["ranks"], found["ranks_here"]) == (2, 2)


def test_ranks_of_other_nodes_are_assumed_to_be_as_far() -> None:
    """Their loops report to their own servers."""
    (found,) = trainings([loop(0, 4), loop(1, 4)], [])
    assert (found["taken"], found["ranks_here"]) == (400, 2)


def test_an_epoch_that_goes_on_began_where_it_was_left() -> None:
    """After a loader state."""
    (found,) = trainings([loop(epoch_start=600, due=400, taken=100)], [])
    assert (found["taken"], found["share"]) == (700, 0.7)


def test_a_rank_that_has_not_begun_the_epoch_has_taken_nothing_of_it() -> None:
    """It still ends the one before."""
    (found,) = trainings([loop(0, 2), loop(1, 2, epoch=2, taken=500)], [])
    assert (found["epoch"], found["taken"]) == (3, 100)


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "training"),
        ({"now": {"step": 10, "wait_s": 3.0, "cause": "storage"}}, "waiting"),
        ({"busy_s": 40.0}, "busy"),
        ({"heard_s": SILENT_S}, "paused"),
        ({"taken": 1000}, "ended"),
    ],
)
def test_states(change: dict[str, Any], state: str) -> None:
    """A loop that does not report has no speed."""
    (found,) = trainings([loop(**change)], [])
    assert found["state"] == state
    assert (found["samples_per_s"] is None) == (state == "paused")


def test_jobs_that_train_come_first_and_old_ones_are_left_out() -> None:
    """So a server that has served many is not full of them."""
    loops = [loop(job="a", heard_s=60.0), loop(job="b"), loop(job="c", heard_s=FORGOTTEN_S)]
    assert [found["job"] for found in trainings(loops, [])] == ["b", "a"]


def test_a_restart_with_fewer_ranks_forgets_the_others() -> None:
    """A loop of the same name that is silent for long belongs to an earlier run."""
    (found,) = trainings([loop(0, 1), loop(1, 2, heard_s=100.0)], [])
    assert (found["ranks"], found["ranks_here"], found["slow_rank"]) == (1, 1, None)


def test_a_plain_loader_has_its_fetches_only() -> None:
    """They are not called progress of the training."""
    (found,) = trainings([], [job(rate=12.0)])
    assert (found["reports"], found["taken"], found["fetched"], found["state"]) == (False, None, 400, "fetching")


def test_fetches_of_another_epoch_are_not_those_of_this_one() -> None:
    """Nor those of one member of a mixture."""
    assert trainings([loop()], [job(epoch=2, position=1000)])[0]["fetched"] == 100
    assert trainings([loop()], [job(samples=5000)])[0]["fetched"] == 100


# -- slow ranks ------------------------------------------------------------------------------------------------------


def four(**third: Any) -> list[dict[str, Any]]:
    """Four ranks, of which the third differs."""
    return [loop(rank, 4, **(third if rank == 2 else {})) for rank in range(4)]


def pace(batches_per_s: float = 5.0, wait_share: float = 0.01) -> dict[str, float]:
    """A speed."""
    return {"samples_per_s": 10 * batches_per_s, "batches_per_s": batches_per_s, "wait_share": wait_share}


@pytest.mark.parametrize(
    ("third", "text"),
    [
        ({"heard_s": 9.0}, "rank 2 has not reported for 9 s"),
        (
            {"pace": pace(wait_share=0.31), "recent_cause": "storage"},
            "rank 2 waits for storage: 31 % of its time, the other ranks 1 %",
        ),
        (
            {"pace": pace(wait_share=0.5), "now": {"step": 1, "wait_s": 5.0, "cause": "node"}},
            "rank 2 waits for another node: 50 % of its time, the other ranks 1 %",
        ),
        ({"step": -40}, "rank 2 is 50 batches behind"),
        ({"pace": pace(3.0)}, "rank 2 trains 3 batches a second, the other ranks 5"),
    ],
)
def test_a_rank_that_stands_out_is_named(third: dict[str, Any], text: str) -> None:
    """With the reason."""
    assert slow_rank(four(**third)) == {"rank": 2, "text": text}


@pytest.mark.parametrize(
    "third",
    [
        {},
        {"step": 8},
        {"pace": pace(4.8)},
        {"pace": pace(wait_share=0.04)},
        {"heard_s": 9.0, "taken": 250},
        {"pace": None},
        {"step": 0, "epoch": 4},
    ],
)
def test_small_differences_are_none(third: dict[str, Any]) -> None:
    """Reports come once a second, so ranks differ by a few batches. A rank that has all its samples may be silent."""
    assert slow_rank(four(**third)) is None


def test_one_rank_is_never_slow() -> None:
    """There is nothing to compare it with."""
    assert slow_rank([loop(pace=pace(wait_share=0.9))]) is None


# -- charts ----------------------------------------------------------------------------------------------------------


def cell(number: int, seconds: float, samples: int, wait_s: float = 0.0, epoch: int = 0) -> dict[str, Any]:
    """A cell with one step."""
    waits = {"storage" if wait_s else "loop": wait_s}
    return {"number": number, "epoch": epoch, "seconds": seconds, "samples": samples, "waits": waits}


def test_points_are_sums_over_ranks() -> None:
    """Samples a second of all ranks, and the mean share of the time that they waited."""
    cells = [cell(7, 5.0, 100, wait_s=2.5)], [cell(7, 4.0, 80), cell(8, 5.0, 50, epoch=1)]
    found = history([loop(rank, cells=each) for rank, each in enumerate(cells)])["run"]
    assert [(point["number"], point["epoch"], point["samples_per_s"]) for point in found] == [
        (7, 0, 40.0),
        (8, 1, 10.0),
    ]
    assert found[0]["waits"] == {"storage": 0.25, "loop": 0.0}


def test_a_long_step_covers_the_time_that_it_took() -> None:
    """And no time that an earlier step took."""
    found = history([loop(cells=[cell(1, CELL_S, 5), cell(6, 4 * CELL_S, 40)])])["run"]
    assert [point["number"] for point in found] == [1, 3, 4, 5, 6]
    assert {point["samples_per_s"] for point in found} == {1.0, 2.0}
    found = history([loop(cells=[cell(5, CELL_S, 5), cell(6, 4 * CELL_S, 40)])])["run"]
    assert [point["number"] for point in found] == [5, 6]


def test_jobs_have_points_of_their_own() -> None:
    """So a chart can tell them apart."""
    found = history([loop(cells=[cell(1, 5.0, 10)]), loop(job="other", cells=[cell(2, 5.0, 20)])])
    assert {job: [point["samples_per_s"] for point in points] for job, points in found.items()} == {
        "run": [2.0],
        "other": [4.0],
    }
