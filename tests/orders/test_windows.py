"""Any positions of an epoch of `stripes` are planned without those before them, as the whole epoch plans them."""

from __future__ import annotations

import hashlib
import itertools
import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base import access
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, PlanWindows
from brand.orders.policies import tapes, windows
from brand.orders.policies.stripe_policy import plan_stripes
from brand.orders.policies.tapes import StripeTapes
from brand.orders.policies.windows import StripeWindows
from tests.orders.models import table_of
from tests.orders.test_stripes import Case, cases
from tests.rounds import examples

LARGE = Mapping(2_500_000, 1024, 16)
"""Three parts of the access sequence, of which the tree has four."""


PARTS: dict[str, tuple[bool, ...]] = {
    "all": (),
    "one": tuple(place == 77 for place in range(130)),
    "few": tuple(place % 16 == 5 for place in range(130)),
    "some": tuple(place % 3 > 0 and not 30 <= place < 60 for place in range(130)),
}
"""Subsets of 130 samples: without the samples of some stripes, chunks and groups."""


@pytest.fixture(params=[(5, 3, 1), (40, 16, 1 << 22)], ids=["small", "medium"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts, blocks, and tables of stripes of these sizes, so that small epochs have many."""
    most, at_once, kept = request.param
    monkeypatch.setattr(access, "PART", most)
    monkeypatch.setattr(windows, "_AT_ONCE", at_once)
    monkeypatch.setattr(tapes, "_LEAST_KEPT", kept)


def check(found: StripeWindows, plan: EpochPlan, first: int, end: int) -> None:
    """A window has the draws and the reads that the plan has there."""
    window, due = found.window(first, end), table_of(plan)["deadline"]
    assert window.first == first
    assert window.reads is not None
    assert window.sample_of.tolist() == plan.sample_of[first:end].tolist()
    assert window.reads.tolist() == table_of(plan)[(due >= first) & (due < end)].tolist()
    assert found.reads_before(first) == np.count_nonzero(due < first)
    if plan.mapping.samples < LARGE.samples:
        check_open_reads(found, plan, first)


def check_open_reads(found: PlanWindows, plan: EpochPlan, position: int) -> None:
    """A job that begins at a position reads the stripes of which earlier positions draw some samples, but not all."""
    reads, drawn = plan.reads, np.zeros(plan.mapping.samples, np.bool_)
    assert reads is not None
    drawn[plan.sample_of[:position]] = True
    numbers = range(np.count_nonzero(reads["deadline"] < position))
    left = [number for number in numbers if not drawn[plan.places_held(number)].all()]
    open_reads = found.open_reads(position)
    assert sorted(row[1:] for row in open_reads.reads.tolist()) == sorted(reads[n].tolist()[1:] for n in left)
    assert (open_reads.reads["deadline"] == position).all()
    places = sorted(place for number in left for place in plan.places_held(number).tolist() if drawn[place])
    assert sorted(open_reads.drawn.tolist()) == places


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@examples(60)
@given(cases(), st.randoms(use_true_random=False))
def test_windows_are_parts_of_the_plan(case: Case, rng: random.Random) -> None:
    """One after another, and in any order; of windows that have made others before, and of new ones."""
    plan, draws = case.plan(), len(case.places)
    cuts = sorted({0, draws, *(rng.randint(0, draws) for _ in range(5))})
    pieces = list(itertools.pairwise(cuts))
    found = case.windows()
    for first, end in pieces:
        check(found, plan, first, end)
    rng.shuffle(pieces)
    for first, end in pieces:
        check(found, plan, first, end)
        check(case.windows(), plan, first, end)


RESUMED = Case(Mapping(130, 8, 3), 3, 5, 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_run_resumes_at_every_position(part: tuple[bool, ...]) -> None:
    """Windows that begin there have all that is left of the plan."""
    case = replace(RESUMED, part=part)
    plan, draws = case.plan(), len(case.places)
    for position in range(draws + 1):
        check(case.windows(), plan, position, draws)


def test_a_window_whose_groups_are_at_different_stripes() -> None:
    """The reads of a group that is at its last stripes are not those of the groups behind it."""
    case = Case(Mapping(34, 6, 5), 1, 5998, 2)
    check(case.windows(), case.plan(), 24, 27)


@pytest.mark.slow
def test_a_run_resumes_at_random_positions_of_a_large_epoch() -> None:
    """At 200 positions of 2.5 million, and at the ends of the parts of the access sequence."""
    case = Case(LARGE, 64, 1, 3)
    plan, found, rng = case.plan(), case.windows(), random.Random(4)
    assert found.access.depth == 2
    ends = [found.access.part(number).end for number in range(4)]
    places = [rng.randrange(LARGE.samples) for _ in range(200)]
    for position in [*places, *(end - 1 for end in ends), *ends[:-1]]:
        check(found if position % 4 else case.windows(), plan, position, min(position + 700, LARGE.samples))


@pytest.mark.slow
@examples(60)
@given(cases(), st.data())
def test_any_part_of_any_tape_is_that_of_the_model(case: Case, data: st.DataObject) -> None:
    """Also of some groups only, and of no draws. `opened` is behind the stripes of all draws before."""
    found = StripeTapes(case.mapping, case.stripe, case.seed, case.epoch, case.subset)
    some = data.draw(st.sets(st.integers(0, case.mapping.groups - 1), min_size=1))
    groups = np.array(sorted(some))
    before = np.array([data.draw(st.integers(0, int(found.sizes[group]))) for group in groups])
    counts = np.array([data.draw(st.integers(0, int(found.sizes[g]) - c)) for g, c in zip(groups, before, strict=True)])
    part = found.part(groups, before, counts)
    places, opened = [], []
    for group, first, count in zip(groups.tolist(), before.tolist(), counts.tolist(), strict=True):
        tape, in_order = case.tape(group), case.in_order(group)
        places += tape[first : first + count]
        number = {place: n for n, one in enumerate(in_order) for place in one.places}
        opened.append(max((number[place] + 1 for place in tape[:first]), default=0))
    assert part.places.tolist() == places
    assert part.opened.tolist() == opened


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [1 << 17, (1 << 18) - 1, 1 << 19, 1 << 20])
def test_the_largest_keys_fit_in_a_word(chunk_size: int) -> None:
    """A key has its number beside it in one word. Parts of most draws, of large chunks, are the narrowest."""
    mapping = Mapping(1 << 20, chunk_size, 1)
    for stripe in (1, chunk_size):
        assert len(np.unique(StripeWindows(mapping, stripe, 0, 1).window(0, mapping.samples).sample_of)) == 1 << 20


@pytest.mark.parametrize("all_samples", [True, False], ids=["all", "subset"])
def test_windows_of_a_hundred_million_take_memory_for_a_window(all_samples: bool) -> None:
    """And a little for each group and stripe: less than a byte a sample, in a subset of nine tenths, too."""
    bits = bytes([255, 255, 255, 255, 0b11110000]) * 2_500_000
    subset = None if all_samples else Subset(100_000_000, bits)
    tracemalloc.start()
    found = StripeWindows(Mapping(100_000_000, 8192, 16), 1024, 0, 1, subset)
    found.window(50_000_000, 50_004_096)
    assert tracemalloc.get_traced_memory()[1] < 100_000_000
    tracemalloc.stop()


def test_windows_of_a_large_order_never_change() -> None:
    """WARNING: a change here changes the order of runs that users resume (see `test_golden`)."""
    found = StripeWindows(Mapping(300_000_000, 8192, 16), 1024, 2024, 5)
    made = hashlib.sha256()
    for first in (0, 123_456_789, 299_999_000):
        window = found.window(first, first + 1000)
        assert window.reads is not None
        made.update(window.sample_of.astype("<i8").tobytes())
        made.update(np.array(window.reads.tolist(), "<i8").tobytes())
        made.update(np.array(found.reads_before(first), "<i8").tobytes())
    assert made.hexdigest() == "3b0959b3957f12757af71534d3f2ad54207b55e85282ea409f335078b3f3da1e"


def test_a_plan_is_its_windows() -> None:
    """`plan_stripes` is the window of a whole epoch."""
    case = Case(Mapping(500, 16, 3), 4, 1, 1)
    check(case.windows(), plan_stripes(case.mapping, case.stripe, case.seed, case.epoch), 0, 500)
