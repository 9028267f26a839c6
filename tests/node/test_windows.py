"""An epoch takes its plan in windows, and gets the same samples by the same reads as if it had all of the plan."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.node.decide.state import windowed
from brand.node.decide.state.states import GONE, HELD
from brand.node.decide.state.windowed import WindowedEpoch
from brand.node.wire.numbers import RunNumber
from brand.orders.base.part import Subset
from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from tests.node.test_core import draw
from tests.node.test_core_walks import WALKS, walk
from tests.node.world import World
from tests.rounds import Chance, examples, rounds

SAMPLES = 240
ORDER: dict[str, Any] = {"group_chunks": 5, "stripe": 4, "seed": 1}
PLANNED = Order("0" * 32, SAMPLES, 8, 1, StripePolicy(5, 4))
"""The same."""
PARTS = (None, 3, -7, -100)
"""Subsets, as `World.register` takes them: all samples, most, a few, and two or three of all."""
NAMES = ("FIRST", "MOST", "BEHIND", "MOST_PLACES")
SIZES = [(1, 1, 0, 1), (3, 8, 4, 5), (16, 64, 16, 1 << 16)]
"""Positions of the first window, of the largest one, behind the draws that stay known, and of which windows begin at a
multiple."""


@pytest.fixture(params=SIZES, ids=["single", "few", "many"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, positions in zip(NAMES, request.param, strict=True):
        monkeypatch.setattr(windowed, name, positions)


def world(pages: int = SAMPLES // 3, *, whole: bool = False) -> World:
    """Samples of one page each, in chunks of eight."""
    return World([96] * SAMPLES, 8, pages + 1, depth=1, whole=whole)


def places_of(part: int | None) -> list[int]:
    """The places of a subset."""
    return [place for place in range(SAMPLES) if part is None or (place % part == 0) == (part < 0)]


def draws_of(part: int | None) -> int:
    """The samples of a subset."""
    return len(places_of(part))


def epoch_of(world: World, run: int, epoch: int = 0) -> WindowedEpoch:
    found = world.epochs()[RunNumber(run), epoch].epoch
    assert isinstance(found, WindowedEpoch)
    return found


def reads_of(world: World, ranks: int, start: int, batch: int, part: int | None) -> list[list[int]]:
    """The places of each read while ranks draw an epoch from a position on, in turns."""
    run, draws = 0, draws_of(part)
    for rank in range(ranks):
        run = world.register(1 + rank, **ORDER, part=part)
        world.begin(1 + rank, run, 0, start, rank=rank, replicas=ranks)
    reads: list[list[int]] = []
    finish_read = world.finish_read

    def finish(*args: Any, **more: Any) -> None:
        reads.append(world.reads[0].places.tolist())
        finish_read(*args, **more)

    world.finish_read = finish  # type: ignore[method-assign]
    world.settle()
    for first in range(start, draws, batch * ranks):
        for rank in range(ranks):
            positions = range(first + rank, min(draws, first + batch * ranks), ranks)
            if len(positions):
                assert draw(world, 1 + rank, run, 0, positions) == 1.0
    return reads


@pytest.mark.usefixtures("small")
@examples(12)
@given(ranks=st.integers(1, 3), at=st.floats(0, 1), batch=st.integers(1, 9), part=st.sampled_from(PARTS))
def test_the_reads_are_those_of_the_whole_plan(ranks: int, at: float, batch: int, part: int | None) -> None:
    """The same samples, each read once; in the same order, but for those that are due when the job begins."""
    start = int(at * (draws_of(part) - 1)) // ranks * ranks
    found, expected = (reads_of(world(SAMPLES, whole=whole), ranks, start, batch, part) for whole in (False, True))
    assert sorted(found) == sorted(expected)
    if not start:
        assert found == expected
    mask = np.isin(np.arange(SAMPLES), places_of(part))
    plan = replace(PLANNED, subset=Subset.of(mask)).plan(0)
    assert sorted(place for places in found for place in places) == sorted(plan.sample_of[start:].tolist())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", PARTS)
def test_a_job_goes_on_at_every_position(part: int | None) -> None:
    """Without a direct read."""
    draws = draws_of(part)
    for start in range(0, draws, 7):
        made = world()
        run = made.register(1, **ORDER, part=part)
        made.begin(1, run, 0, start)
        assert draw(made, 1, run, 0, range(start, draws)) == 1.0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", PARTS)
def test_positions_in_any_order(part: int | None) -> None:
    """As with the whole plan: each draw is answered, whatever it asks for."""
    made = world(SAMPLES)
    run = made.register(1, **ORDER, part=part)
    made.begin(1, run, 0)
    positions = list(range(draws_of(part)))
    random.Random(3).shuffle(positions)
    draw(made, 1, run, 0, positions, batch=40)
    assert sorted(made.given[RunNumber(run), 0]) == sorted(positions)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", PARTS)
def test_positions_that_are_drawn_again(part: int | None) -> None:
    """A sampler repeats the first positions to fill up the last round, when these windows are forgotten."""
    made, draws = world(), draws_of(part)
    run = made.register(1, **ORDER, part=part)
    made.begin(1, run, 0)
    draw(made, 1, run, 0, [*range(draws), 0, 1])
    assert sorted(made.given[RunNumber(run), 0]) == list(range(draws))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", PARTS[1:])
def test_samples_outside_the_subset_are_never_due(part: int) -> None:
    """Nor are they held, when the epoch begins and when it has been drawn."""
    made, others = world(), np.setdiff1d(np.arange(SAMPLES), places_of(part))
    run = made.register(1, **ORDER, part=part)
    made.begin(1, run, 0)
    made.settle()
    assert epoch_of(made, run).states.are(GONE, others).all()
    draw(made, 1, run, 0, range(draws_of(part) - 1))
    assert epoch_of(made, run).states.are(GONE, others).all()


@pytest.mark.usefixtures("small")
def test_positions_before_the_first_one() -> None:
    """A job began in the middle, and a slow worker asks for samples that were left out there. No read is waited for."""
    made = world()
    run = made.register(1, **ORDER)
    made.begin(1, run, 0, 100)
    draw(made, 1, run, 0, range(100, 180))
    draw(made, 1, run, 0, [3, 50, 99])
    assert sorted(made.given[RunNumber(run), 0]) == [3, 50, *range(99, 180)]
    assert epoch_of(made, run).progress.unbuffered == 0


@pytest.mark.usefixtures("small")
def test_samples_that_are_passed_over_leave_memory() -> None:
    """A rank draws every third batch."""
    made = world()
    run = made.register(1, **ORDER)
    made.begin(1, run, 0)
    for first in range(0, SAMPLES, 15):
        draw(made, 1, run, 0, range(first, first + 5))
    held = epoch_of(made, run).states.all(HELD)
    position_of = np.argsort(PLANNED.plan(0).sample_of)
    assert not (position_of[held] < epoch_of(made, run).known.start).any()


def test_windows_that_all_ranks_have_passed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, positions in (("FIRST", 4), ("MOST", 8), ("BEHIND", 8)):
        monkeypatch.setattr(windowed, name, positions)
    made = world(20)
    run = made.register(1, **ORDER)
    made.begin(1, run, 0)
    for first in range(0, SAMPLES, 8):
        draw(made, 1, run, 0, range(first, first + 8))
        known = epoch_of(made, run).known
        assert first - 24 <= known.start <= first + 8 <= known.stop <= first + 8 + 20 + 2 * 8


@pytest.mark.usefixtures("small")
def test_samples_of_a_rank_that_never_begins_leave_memory() -> None:
    """One of two ranks draws here. The samples of the other are dropped when it is known which they are.

    If the other begins far behind, it gets the right samples, by direct reads if need be.
    """
    made = world(SAMPLES // 2)
    run = made.register(1, **ORDER)
    made.begin(1, run, 0, rank=0, replicas=2)
    assert draw(made, 1, run, 0, range(0, SAMPLES, 2)) == 1.0
    epoch = epoch_of(made, run)
    assert not len(epoch.states.all(HELD))
    made.begin(2, made.register(2, **ORDER), 0, rank=1, replicas=2)
    draw(made, 2, run, 0, range(1, SAMPLES, 2))
    assert sorted(made.given[RunNumber(run), 0]) == list(range(SAMPLES))


@pytest.mark.usefixtures("small")
def test_a_straggler_is_answered() -> None:
    """A client asks for positions of an epoch that is over, and of which nothing is read any more."""
    made = world()
    run = made.register(1, **ORDER)
    made.begin(1, run, 0)
    draw(made, 1, run, 0, range(SAMPLES))
    made.begin(1, run, 1)
    draw(made, 1, run, 1, range(SAMPLES))
    made.begin(1, run, 2)
    draw(made, 1, run, 2, range(20))
    draw(made, 1, run, 0, [3, 100, 200, 239])


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@rounds(2)
def test_nothing_is_ever_lost(chance: Chance) -> None:
    for seed in chance.seeds(WALKS):
        walk(seed)


def test_known_places_are_those_of_the_plan() -> None:
    """By number, array and slice, over several windows, and in windows apart from them."""
    plan, source = PLANNED.plan(0), PLANNED.windows(0)
    assert source is not None
    known = windowed.KnownPlaces(SAMPLES)
    known.begin(40)
    for first, end in ((40, 60), (60, 61), (61, 100), (7, 12), (200, 210)):
        known.add(source.window(first, end))
    assert (known.first, known.end, len(known)) == (40, 100, SAMPLES)
    assert known[45] == plan.sample_of[45]
    assert known[40:100].tolist() == plan.sample_of[40:100].tolist()
    some = np.array([99, 40, 7, 209, 60, 60])
    assert known.has(some)
    assert known[some].tolist() == plan.sample_of[some].tolist()
    assert known.missing(np.array([6, 7, 39, 40, 100, 200, 210])).tolist() == [6, 39, 100, 210]
    with pytest.raises(AssertionError, match="not known yet"):
        known[np.array([40, 39])]
    assert known.forget_before(61).tolist() == plan.sample_of[40:61].tolist()
    assert known.first == 61
