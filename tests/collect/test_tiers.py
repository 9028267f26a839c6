"""Which segments are merged: the rule against a slow one, and what it costs over many appends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from brand.collect.tiers import CROWD, FANOUT, merges, tier
from tests.rounds import examples

SIZES = st.lists(st.sampled_from([0, 1, 1, 1, 1, 1, 1, 3, 8, 9, 64]), min_size=FANOUT, max_size=60)


@given(st.integers(0, 1 << 50))
def test_a_tier_is_a_logarithm(samples: int) -> None:
    """To base 8, exact also next to its powers."""
    if samples:
        assert FANOUT ** tier(samples) <= samples < FANOUT ** (tier(samples) + 1)
    else:
        assert tier(samples) == -1


def slowly(sizes: Sequence[int]) -> list[list[int]]:
    """Segments that become one, from the definition: look at all windows again after each merge."""
    stretches = [[number] for number in range(len(sizes))]

    def size(stretch: Iterable[int]) -> int:
        return sum(sizes[number] for number in stretch)

    def full(first: int, end: int) -> bool:
        tiers = [tier(size(stretch)) for stretch in stretches[first:end]]
        return tiers[0] == tiers[-1] == max(tiers) and tiers.count(tiers[0]) == FANOUT

    while True:
        ends = [(end, first) for end in range(1, len(stretches) + 1) for first in range(end) if full(first, end)]
        if not ends:
            return stretches
        end, first = min(ends)
        stretches[first:end] = [[number for stretch in stretches[first:end] for number in stretch]]


@given(SIZES)
@examples(200)
def test_the_rule_is_its_definition(sizes: list[int]) -> None:
    """Eight of one tier with nothing larger between them, the leftmost first."""
    found = {run.start: list(run) for run in merges(sizes)}
    assert list(found.values()) == [each for each in slowly(sizes) if len(each) > 1]


def after(sizes: Sequence[int], runs: Sequence[range]) -> list[int]:
    """Sizes after these merges."""
    left = list(sizes)
    for run in reversed(runs):
        left[run.start : run.stop] = [sum(sizes[run.start : run.stop])]
    return left


@given(st.lists(st.integers(0, 1 << 40), max_size=300))
@examples(60)
def test_what_is_merged_stays(sizes: list[int]) -> None:
    """Runs are apart and ascending; afterwards there is nothing to do, and no crowd."""
    runs = merges(sizes)
    assert all(run.stop <= other.start for run, other in pairwise(runs))
    assert all(len(run) > 1 and run.step == 1 and run.start >= 0 and run.stop <= len(sizes) for run in runs)
    left = after(sizes, runs)
    assert merges(left) == []
    assert len(left) <= CROWD


def appended(sizes: Iterable[int]) -> tuple[list[int], int, int]:
    """Sizes after so many appends with a compaction after each; the most segments on the way, and samples copied."""
    left: list[int] = []
    most = copied = 0
    for size in sizes:
        left.append(size)
        runs = merges(left)
        copied += sum(sum(left[run.start : run.stop]) for run in runs)
        left = after(left, runs)
        most = max(most, len(left))
    return left, most, copied


def test_ten_thousand_appends() -> None:
    """Of 20 samples each: few segments at all times, and each sample is copied once for each tier at most."""
    left, most, copied = appended([20] * 10_000)
    assert len(left) <= (FANOUT - 1) * math.ceil(math.log(10_000, FANOUT)) + 1
    assert most <= (FANOUT - 1) * math.ceil(math.log(10_000, FANOUT)) + 1
    assert copied <= 200_000 * math.log(10_000, FANOUT)


@given(st.lists(st.floats(0, 20).map(lambda power: int(2**power)), min_size=1, max_size=400))
@examples(20)
def test_uneven_appends(sizes: list[int]) -> None:
    """Of 1 to a million samples: never a crowd, and about as few copies."""
    _, most, copied = appended(sizes)
    assert most <= CROWD
    assert copied <= sum(sizes) * (2 + math.log(sum(sizes), FANOUT))


def test_one_pass_does_what_many_do() -> None:
    """A compaction after 300 appends leaves the segments that one after each append leaves."""
    sizes = [20 + number % 7 for number in range(300)]
    assert after(sizes, merges(sizes)) == appended(sizes)[0]


def test_a_crowd_is_thinned() -> None:
    """Small segments between larger ones that never fill a tier: the smallest neighbours become one."""
    zeros = [((number & -number).bit_length() - 1) for number in range(1, 600)]
    _, most, copied = appended([FANOUT ** min(5, each) for each in zeros])
    assert most == CROWD
    assert copied <= 4 * sum(FANOUT ** min(5, each) for each in zeros)
