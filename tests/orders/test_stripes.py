"""Protocol `stripes` is the formula of its design: a plain model gives the same tapes and deadlines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, memory_over_time, read_of_sample
from brand.orders.base.random import RandomStream, bits, permutation, words_at
from brand.orders.policies import windows
from brand.orders.policies.stripe_policy import plan_stripes
from brand.orders.policies.windows import StripeWindows
from tests.orders.models import (
    ModelStripe,
    Read,
    epochs,
    mappings,
    masks,
    model_deadlines,
    model_memory,
    model_tape,
    reads_of,
    seeds,
    stripes_of_group,
    table_of,
)
from tests.pythonchild import ROOT
from tests.rounds import examples


@dataclass(frozen=True)
class Case:
    """Sizes and a stream of random numbers. `part`: whether each place is in the subset, if there is one."""

    mapping: Mapping
    stripe: int
    seed: int
    epoch: int
    part: tuple[bool, ...] = ()

    @property
    def subset(self) -> Subset | None:
        return Subset.of(np.array(self.part)) if self.part else None

    @property
    def places(self) -> list[int]:
        """The places that are drawn, ascending."""
        return [place for place in range(self.mapping.samples) if not self.part or self.part[place]]

    def windows(self) -> StripeWindows:
        return StripeWindows(self.mapping, self.stripe, self.seed, self.epoch, self.subset)

    def plan(self) -> EpochPlan:
        """The plan of the case."""
        return self.windows().whole()

    def stripes(self, group: int) -> list[ModelStripe]:
        """The group's stripes as they are stored."""
        return stripes_of_group(self.mapping, self.stripe, group, self.part)

    @property
    def width(self) -> int:
        """Stripes of a whole group."""
        return self.mapping.group_chunks * -(-self.mapping.chunk_size // self.stripe)

    def words(self, purpose: RandomStream, group: int) -> Callable[[int], list[int]]:
        """Random words for each sample of the group's stripes, by the number of the stripe."""

        def of(number: int) -> list[int]:
            first = (group * self.width + number) * self.stripe
            found = words_at(np.arange(first, first + self.stripe), self.seed, purpose, self.epoch)
            return [int(word) for word in found]

        return of

    def in_order(self, group: int) -> list[ModelStripe]:
        """The group's stripes in the order of reading. Those of each chunk are equally far apart in it.

        Chunks, and the stripes of a chunk, are in the order of their words, but for the low bits.
        """
        parts = 1 if self.stripe == 1 else self.mapping.group_chunks  # single samples: as if of one chunk
        size, first = self.width // parts, group * self.width
        word = bits(first + self.width, self.seed, RandomStream.STRIPE_ORDER, self.epoch).tolist()[first:]
        turn = bits((group + 1) * parts, self.seed, RandomStream.STRIPE_TURNS, self.epoch).tolist()[group * parts :]
        chunks = [[one for one in self.stripes(group) if one.number // size == part] for part in range(parts)]
        low = [1 << (count - 1).bit_length() for count in (size, parts)]
        in_turn = sorted((turn[part] // low[1], part) for part in range(parts) if chunks[part])
        keyed = []
        for i, (_, part) in enumerate(in_turn):
            samples, before = sum(len(one.places) for one in chunks[part]), 0
            shuffled = sorted(chunks[part], key=lambda one: (word[one.number] // low[0], one.number))
            for j, one in enumerate(shuffled):
                at = (before + Fraction(len(one.places) * i, len(in_turn))) / samples
                keyed.append((int(at * 2**31), i, j, one))
                before += len(one.places)
        return [one for *_, one in sorted(keyed, key=lambda entry: entry[:3])]

    def tape(self, group: int) -> list[int]:
        """The group's places in tape order."""
        words = [self.words(purpose, group) for purpose in (RandomStream.STRIPE_MATES, RandomStream.STRIPE_KEYS)]
        return model_tape(self.mapping, self.stripe, self.in_order(group), *words)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any sizes; all samples, or a subset."""
    mapping = draw(mappings())
    part = draw(st.one_of(st.just(()), masks(mapping.samples).map(lambda mask: tuple(mask.tolist()))))
    return Case(mapping, draw(st.integers(1, mapping.chunk_size)), draw(seeds), draw(epochs), part)


LARGE = Case(Mapping(5000, 48, 7), 5, 11, 3)
SOME = replace(LARGE, part=tuple(place % 3 > 0 and place % 1000 < 900 for place in range(5000)))
"""A subset of it. Some chunks are not read."""


def drawn_by_group(plan: EpochPlan) -> list[list[int]]:
    """The places of each group in the order in which they are drawn."""
    size = plan.mapping.chunk_size * plan.mapping.group_chunks
    found: list[list[int]] = [[] for _ in range(plan.mapping.groups)]
    for place in plan.sample_of.tolist():
        found[place // size].append(place)
    return found


def read_by_group(plan: EpochPlan) -> list[list[Read]]:
    """The reads of each group in the order of the plan."""
    found: list[list[Read]] = [[] for _ in range(plan.mapping.groups)]
    for read in reads_of(plan):
        found[read.chunk // plan.mapping.group_chunks].append(read)
    return found


def ranges(reads: list[Read]) -> list[tuple[int, int, int]]:
    """What reads read, without when."""
    return [(read.chunk, read.first, read.count) for read in reads]


@pytest.mark.slow
@examples(150)
@given(cases())
def test_a_group_is_drawn_in_the_order_of_its_model_tape(case: Case) -> None:
    """The k-th draw of a group takes the k-th sample of the group by key."""
    assert drawn_by_group(case.plan()) == [case.tape(group) for group in range(case.mapping.groups)]


@pytest.mark.slow
@examples(150)
@given(cases())
def test_deadlines_are_those_of_the_model(case: Case) -> None:
    """A group's stripes are read in their order, each as late as its own first draw and those behind it allow."""
    plan = case.plan()
    drawn_at = {place: position for position, place in enumerate(plan.sample_of.tolist())}
    for group, reads in enumerate(read_by_group(plan)):
        in_order = case.in_order(group)
        due = model_deadlines(in_order, lambda one: min(drawn_at[place] for place in one.places))
        assert ranges(reads) == [(one.chunk, one.first, one.count) for one in in_order]
        assert [read.deadline for read in reads] == due


@pytest.mark.parametrize("case", [LARGE, SOME], ids=["all", "subset"])
def test_a_plan_of_some_size_is_that_of_the_model(case: Case) -> None:
    """The same with 15 groups of 70 stripes, of which the last of each chunk and the last chunk are short."""
    plan = case.plan()
    assert drawn_by_group(plan) == [case.tape(group) for group in range(case.mapping.groups)]
    for group, reads in enumerate(read_by_group(plan)):
        assert ranges(reads) == [(one.chunk, one.first, one.count) for one in case.in_order(group)]


@pytest.mark.slow
@given(cases())
def test_every_stripe_is_read_exactly_once(case: Case) -> None:
    """The reads of an epoch are the stripes of all chunks, whole, no more; of a subset, those that have samples of it.

    They hold these samples, and span no others before the first or behind the last of them.
    """
    expected = [
        ((one.chunk, one.first, one.count), one.places)
        for group in range(case.mapping.groups)
        for one in case.stripes(group)
    ]
    assert sorted(((read.chunk, read.first, read.count), read.held) for read in reads_of(case.plan())) == expected


@pytest.mark.slow
@given(cases())
def test_each_sample_of_a_subset_is_drawn_once_and_is_in_one_read(case: Case) -> None:
    """No others are. A subset of all samples has the plan of all samples."""
    plan = case.plan()
    assert sorted(plan.sample_of.tolist()) == case.places
    read_of = read_of_sample(plan)
    assert np.flatnonzero(read_of >= 0).tolist() == case.places
    assert all(place in plan.places_held(read_of[place]) for place in case.places)
    of_all = replace(case, part=(True,) * case.mapping.samples).plan()
    expected = replace(case, part=()).plan()
    assert of_all.sample_of.tolist() == expected.sample_of.tolist()
    assert table_of(of_all).tolist() == table_of(expected).tolist()
    sizes = np.arange(case.mapping.samples) % 7
    assert memory_over_time(plan, sizes).tolist() == model_memory(plan, sizes.tolist())


@pytest.mark.slow
@given(cases())
def test_a_stripe_is_read_before_the_first_draw_of_each_of_its_samples(case: Case) -> None:
    """No deadline is later than the position of any sample of its stripe."""
    plan = case.plan()
    drawn_at = {place: position for position, place in enumerate(plan.sample_of.tolist())}
    assert all(read.deadline <= drawn_at[place] for read in reads_of(plan) for place in read.held)


@pytest.mark.slow
@given(cases())
def test_reads_are_sorted_and_those_of_a_group_keep_its_stripe_order(case: Case) -> None:
    """The table is sorted by deadline, and among equals of a group the order of its stripes stands."""
    plan = case.plan()
    assert [read.deadline for read in reads_of(plan)] == sorted(read.deadline for read in reads_of(plan))
    for group, reads in enumerate(read_by_group(plan)):
        assert ranges(reads) == [(one.chunk, one.first, one.count) for one in case.in_order(group)]


@pytest.mark.slow
@given(cases())
def test_the_access_sequence_says_which_group_is_drawn_from(case: Case) -> None:
    """Position after position, the group is that of the epoch's permutation of all places that are drawn."""
    size = case.mapping.chunk_size * case.mapping.group_chunks
    access = permutation(len(case.places), case.seed, RandomStream.ACCESS, case.epoch)
    assert [case.places[a] // size for a in access.tolist()] == [s // size for s in case.plan().sample_of.tolist()]


@pytest.mark.parametrize("block", [1, 335, 336, 337, 700, 1 << 30])
def test_planning_in_other_blocks_gives_the_same_plan(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many positions are planned at a time is not seen in the plan."""
    expected = LARGE.plan()
    monkeypatch.setattr(windows, "_AT_ONCE", block)
    plan = LARGE.plan()
    assert plan.sample_of.tolist() == expected.sample_of.tolist()
    assert table_of(plan).tolist() == table_of(expected).tolist()


@pytest.mark.slow
@given(cases(), st.integers(1, 60))
def test_the_order_within_a_group_is_the_same_when_more_groups_follow(case: Case, more: int) -> None:
    """Tape and stripe order of every whole group depend on seed, epoch and group only, not on the number of groups."""
    mapping = case.mapping
    longer = Mapping(mapping.samples + more, mapping.chunk_size, mapping.group_chunks)
    few = case.plan()
    many = replace(case, mapping=longer, part=(*case.part, *[True] * more) if case.part else ()).plan()
    whole = mapping.samples // mapping.group_size
    assert drawn_by_group(few)[:whole] == drawn_by_group(many)[:whole]
    for reads, same in zip(read_by_group(few)[:whole], read_by_group(many)[:whole], strict=True):
        assert ranges(reads) == ranges(same)


def test_groups_seeds_and_epochs_have_tapes_of_their_own() -> None:
    """The order relative to the group's first place is another one in each group, for each seed and epoch."""
    mapping = Mapping(640, 8, 8)
    tapes = {
        tuple(place % mapping.group_size for place in drawn)
        for seed in (0, 1, 1 << 64)
        for epoch in (0, 1, 2)
        for drawn in drawn_by_group(plan_stripes(mapping, 4, seed, epoch))
    }
    assert len(tapes) == 3 * 3 * mapping.groups


def bags(plan: EpochPlan) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The most samples that each group has in memory, where every read happens at its deadline."""
    mapping, samples = plan.mapping, plan.mapping.samples
    by_group = np.argsort(plan.sample_of // mapping.group_size, kind="stable")  # positions, group after group
    number = np.empty(samples, np.int64)
    number[by_group] = np.arange(samples)
    change = np.zeros(samples, np.int64)
    np.add.at(change, number[table_of(plan)["deadline"]], table_of(plan)["count"])
    change[1:] -= 1
    return np.maximum.reduceat(np.cumsum(change), np.arange(0, samples, mapping.group_size))


@pytest.mark.slow
@pytest.mark.parametrize("stripe", [4, 8, 16])
@pytest.mark.parametrize("n", [10, 16])
def test_the_bag_of_a_group_holds_about_a_chunk(n: int, stripe: int) -> None:
    """With chunks of 64 the fullest of hundreds of groups has 65 to 72 samples in memory at a time."""
    found = bags(plan_stripes(Mapping(64 * n * 500, 64, n), stripe, 0, 0))
    assert 65 <= found.max() <= 72
    assert found.mean() == pytest.approx(65.5, abs=2)


def test_the_picture_shows_the_plan_of_the_example() -> None:
    """Of `docs/dev/orders.md`: a row for each stripe, its samples at their positions, and memory below."""
    plan = plan_stripes(Mapping(24, 8, 3), 4, 3, 0)
    shown = re.findall(
        r'<text class="(\w)" x="(\d+)" y="([\d.]+)" text-anchor="middle" font-size="([\d.]+)">(\d+)</text>',
        (ROOT / "docs/images/stripes.svg").read_text(encoding="utf-8"),
    )
    drawn = {(int(x) - 273) // 26: int(number) for kind, x, *_, number in shown if kind == "w" and int(x) > 262}
    assert [drawn[position] for position in range(24)] == plan.sample_of.tolist()
    labels = re.findall(r"chunk (\d), by (\d+)<", (ROOT / "docs/images/stripes.svg").read_text(encoding="utf-8"))
    assert labels == [(str(read.chunk), str(read.deadline)) for read in reads_of(plan)]
    below = [int(number) for *_, size, number in shown if size == "10.5"]
    assert below == memory_over_time(plan, np.ones(24, np.int64)).tolist()
