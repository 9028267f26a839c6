"""An epoch takes its plan in windows, and gets the same samples by the same reads as if it had all of the plan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.node.decide.state import windowed
from brand.node.decide.state.states import GONE, HELD
from brand.node.decide.state.windowed import WindowedEpoch
from brand.node.wire.numbers import RunNumber
from brand.orders.order import Order
from brand.orders.policies import stripe_policy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform_stripes import UniformStripes
from tests.node.test_core import draw
from tests.node.test_core_walks import WALKS, walk
from tests.node.world import World
from tests.rounds import Chance, examples, rounds

SAMPLES = 240
STRIPES: dict[str, Any] = {"group_chunks": 5, "stripe": 4, "seed": 1}
PLANNED = Order("0" * 32, SAMPLES, 8, 1, StripePolicy(5, 4))
"""The same."""
UNIFORM: dict[str, Any] = {"group_chunks": 5, "protocol": "uniform", "seed": 1}
STORAGE: dict[str, Any] = STRIPES | {"protocol": "storage"}
IN_MEMORY: dict[str, Any] = dict(STRIPES)
"""The same numbers, but each epoch is a uniform shuffle (`in_memory`)."""
SUBSETS = [STRIPES | {"part": part} for part in (3, -7, -100)]
"""Most samples, a few, and three (`World.register`)."""
NAMES = ("FIRST", "MOST", "BEHIND", "MOST_PLACES")
SIZES = [(1, 1, 0, 1), (3, 8, 4, 5), (16, 64, 16, 1 << 16)]
"""Positions of the first window, of the largest one, behind the draws that stay known, and of which windows begin at a
multiple."""


@pytest.fixture(params=SIZES, ids=["single", "few", "many"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, positions in zip(NAMES, request.param, strict=True):
        monkeypatch.setattr(windowed, name, positions)


@contextmanager
def in_memory(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Plan the first epoch, too, as later ones are planned if memory holds all samples."""
    with pytest.MonkeyPatch.context() as patch:
        if order is IN_MEMORY:
            patch.setattr(stripe_policy, "StripeWindows", UniformStripes)
        yield order


@pytest.fixture(
    scope="module",
    params=[STRIPES, UNIFORM, STORAGE, IN_MEMORY],
    ids=["stripes", "uniform", "storage", "in memory"],
)
def order(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    with in_memory(request.param) as found:
        yield found


@pytest.fixture(scope="module", params=[STRIPES, UNIFORM, STORAGE, IN_MEMORY, *SUBSETS])
def any_order(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """One of these, or `stripes` of a subset."""
    with in_memory(request.param) as found:
        yield found


def plan_of(order: dict[str, Any], epoch: int = 0) -> NDArray[Any]:
    """The places of an epoch."""
    made = world()
    return made.plan(made.runs[made.register(1, **order)].order, epoch).sample_of


def world(pages: int = SAMPLES // 3, *, whole: bool = False) -> World:
    """Samples of one page each, in chunks of eight."""
    return World([96] * SAMPLES, 8, pages + 1, depth=1, whole=whole)


def room(order: dict[str, Any]) -> int:
    """Pages for all reads of an epoch."""
    return SAMPLES if order is IN_MEMORY else SAMPLES // 3


def epoch_of(world: World, run: int, epoch: int = 0) -> WindowedEpoch:
    found = world.epochs()[RunNumber(run), epoch].epoch
    assert isinstance(found, WindowedEpoch)
    return found


def reads_of(world: World, order: dict[str, Any], ranks: int, start: int, batch: int) -> list[list[int]]:
    """The places of each read while ranks draw an epoch from a position on, in turns."""
    run, draws = 0, len(plan_of(order))
    for rank in range(ranks):
        run = world.register(1 + rank, **order)
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
@examples(8)
@given(ranks=st.integers(1, 3), at=st.floats(0, 1), batch=st.integers(1, 9))
def test_the_reads_are_those_of_the_whole_plan(any_order: dict[str, Any], ranks: int, at: float, batch: int) -> None:
    """The same samples, each read once; in the same order, but for those that are due when the job begins."""
    start = int(at * (len(plan_of(any_order)) - 1)) // ranks * ranks
    found, expected = (reads_of(world(SAMPLES, whole=whole), any_order, ranks, start, batch) for whole in (False, True))
    if any_order is not UNIFORM:
        assert sorted(found) == sorted(expected)
        if not start:
            assert found == expected
    assert sorted(place for places in found for place in places) == sorted(plan_of(any_order)[start:].tolist())


@pytest.mark.usefixtures("small")
def test_a_job_goes_on_at_every_position(any_order: dict[str, Any]) -> None:
    """Without a direct read."""
    draws = len(plan_of(any_order))
    for start in range(0, draws, 7 if any_order is STRIPES or draws < SAMPLES else 29):
        made = world(room(any_order))
        run = made.register(1, **any_order)
        made.begin(1, run, 0, start)
        assert draw(made, 1, run, 0, range(start, draws)) == 1.0


@pytest.mark.usefixtures("small")
def test_positions_in_any_order(any_order: dict[str, Any]) -> None:
    """As with the whole plan: each draw is answered, whatever it asks for."""
    made = world(SAMPLES)
    run = made.register(1, **any_order)
    made.begin(1, run, 0)
    positions = list(range(made.draws(run)))
    random.Random(3).shuffle(positions)
    draw(made, 1, run, 0, positions, batch=40)
    assert sorted(made.given[RunNumber(run), 0]) == sorted(positions)


@pytest.mark.usefixtures("small")
def test_positions_that_are_drawn_again(any_order: dict[str, Any]) -> None:
    """A sampler repeats the first positions to fill up the last round, when these windows are forgotten."""
    made = world(room(any_order))
    run = made.register(1, **any_order)
    made.begin(1, run, 0)
    draws = made.draws(run)
    draw(made, 1, run, 0, [*range(draws), 0, 1])
    assert sorted(made.given[RunNumber(run), 0]) == list(range(draws))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("order", SUBSETS)
def test_samples_outside_the_subset_are_never_due(order: dict[str, Any]) -> None:
    """Nor are they held, when the epoch begins and when it has been drawn."""
    made, others = world(), np.setdiff1d(np.arange(SAMPLES), plan_of(order))
    run = made.register(1, **order)
    made.begin(1, run, 0)
    made.settle()
    assert epoch_of(made, run).states.are(GONE, others).all()
    draw(made, 1, run, 0, range(made.draws(run) - 1))
    assert epoch_of(made, run).states.are(GONE, others).all()


@pytest.mark.usefixtures("small")
def test_positions_before_the_first_one(order: dict[str, Any]) -> None:
    """A job began in the middle, and a slow worker asks for samples that were left out there. No read is waited for."""
    made = world(room(order))
    run = made.register(1, **order)
    made.begin(1, run, 0, 100)
    draw(made, 1, run, 0, range(100, 180))
    draw(made, 1, run, 0, [3, 50, 99])
    assert sorted(made.given[RunNumber(run), 0]) == [3, 50, *range(99, 180)]
    assert epoch_of(made, run).progress.unbuffered == 0


@pytest.mark.usefixtures("small")
def test_samples_that_are_passed_over_leave_memory(order: dict[str, Any]) -> None:
    """A rank draws every third batch."""
    made = world(room(order))
    run = made.register(1, **order)
    made.begin(1, run, 0)
    for first in range(0, SAMPLES, 15):
        draw(made, 1, run, 0, range(first, first + 5))
    held = epoch_of(made, run).states.all(HELD)
    position_of = np.argsort(plan_of(order))
    assert not (position_of[held] < epoch_of(made, run).known.start).any()


def test_windows_that_all_ranks_have_passed_are_forgotten(
    order: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, positions in (("FIRST", 4), ("MOST", 8), ("BEHIND", 8)):
        monkeypatch.setattr(windowed, name, positions)
    made = world(20)
    run = made.register(1, **order)
    made.begin(1, run, 0)
    behind = 28 if order is UNIFORM else 24  # a window is made later, because no sample is read before its own read
    for first in range(0, SAMPLES, 8):
        draw(made, 1, run, 0, range(first, first + 8))
        known = epoch_of(made, run).known
        assert first - behind <= known.start <= first + 8 <= known.stop <= first + 8 + 20 + 2 * 8


@pytest.mark.usefixtures("small")
def test_samples_of_a_rank_that_never_begins_leave_memory(order: dict[str, Any]) -> None:
    """One of two ranks draws here. The samples of the other are dropped when it is known which they are.

    If the other begins far behind, it gets the right samples, by direct reads if need be.
    """
    made = world(SAMPLES // 2)
    run = made.register(1, **order)
    made.begin(1, run, 0, rank=0, replicas=2)
    assert draw(made, 1, run, 0, range(0, SAMPLES, 2)) == 1.0
    epoch = epoch_of(made, run)
    assert not len(epoch.states.all(HELD))
    made.begin(2, made.register(2, **order), 0, rank=1, replicas=2)
    draw(made, 2, run, 0, range(1, SAMPLES, 2))
    assert sorted(made.given[RunNumber(run), 0]) == list(range(SAMPLES))


@pytest.mark.usefixtures("small")
def test_a_straggler_is_answered(order: dict[str, Any]) -> None:
    """A client asks for positions of an epoch that is over, and of which nothing is read any more."""
    made = world(room(order))
    run = made.register(1, **order)
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
