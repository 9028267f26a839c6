"""Shares of members: exact where they are whole, else as near as the tree says; the same from any position on."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.mixtures.shares import MAX_MEMBERS, MAX_POSITION, Shares, leaves, tree_of
from tests.rounds import examples

ROUNDING = 1e-3
"""Shares are fractions of 2 ** 64: what that can move a count by is far below this."""

positions = st.integers(0, MAX_POSITION - 10_000)
weights = st.one_of(
    st.floats(1e-9, 1),
    st.integers(1, 100).map(float),
    st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5, 0.7]),
    st.integers(-6, 0).map(lambda power: 10.0**power),
)
mixtures = st.lists(weights, min_size=2, max_size=6)


def counted(shares: Shares, first: int, end: int) -> list[int]:
    """How often each member comes at positions `first` to `end` - 1, looked up one by one."""
    members, _ = shares.members(np.arange(first, end, dtype=np.int64))
    found: list[int] = np.bincount(members, minlength=len(shares.weights)).tolist()
    return found


def share_of(weights: Sequence[float], member: int) -> Fraction:
    """The exact share of a member."""
    return Fraction(weights[member]) / sum(map(Fraction, weights))


@pytest.mark.slow
@examples(1000)
@given(mixtures, st.integers(1, 3000), st.integers(0, 40))
def test_every_global_batch_has_its_shares(weights: list[float], batch: int, which: int) -> None:
    """1,000 random mixtures, batches of any size: all batches up to one of them, and that one sample by sample."""
    shares = Shares(weights)
    before = [0] * len(weights)
    for number in range(which + 1):
        end = (number + 1) * batch
        come = shares.counts(end)
        assert sum(come) == end
        for member in range(len(weights)):
            exact = share_of(weights, member) * end
            away = abs(come[member] - exact)
            assert away <= shares.away + ROUNDING
            if len(weights) <= 4:
                assert floor(exact - Fraction(ROUNDING)) <= come[member] <= ceil(exact + Fraction(ROUNDING))
            assert come[member] >= before[member]
        before = list(come)
    found = counted(shares, which * batch, (which + 1) * batch)
    assert found == [come - was for come, was in zip(before, shares.counts(which * batch), strict=True)]


@pytest.mark.slow
@examples(1000)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any), st.integers(1, 20), positions)
def test_whole_shares_are_exact_in_any_samples_in_a_row(parts: list[int], times: int, first: int) -> None:
    """Not only in batches that begin at a multiple of their size: a run may go on anywhere with another size."""
    batch = sum(parts) * times
    assert counted(Shares([part / 7 for part in parts]), first, first + batch) == [part * times for part in parts]
    assert counted(Shares(parts), first, first + batch) == [part * times for part in parts]


@pytest.mark.slow
@given(mixtures, positions, st.integers(1, 500))
def test_any_positions_are_found_without_those_before(weights: list[float], first: int, count: int) -> None:
    """A lookup says how often the member has come before, and the next positions go on from there."""
    shares = Shares(weights)
    members, before = shares.members(np.arange(first, first + count, dtype=np.int64))
    come = list(shares.counts(first))
    for member, number in zip(members.tolist(), before.tolist(), strict=True):
        assert number == come[member]
        come[member] += 1
    assert tuple(come) == shares.counts(first + count)
    some = np.array([first + count - 1, first], np.int64)
    assert shares.members(some)[1].tolist() == [before[-1], before[0]]


@given(st.lists(weights, min_size=1, max_size=4))
def test_up_to_four_members_are_never_away_by_one(weights: list[float]) -> None:
    """So their counts are their shares, rounded up or down."""
    assert Shares(weights).away < 1


@pytest.mark.slow
@given(st.lists(weights, min_size=5, max_size=24))
def test_more_members_are_away_by_little(weights: list[float]) -> None:
    """And every one is in the tree."""
    shares = Shares(weights)
    assert shares.away < (1.1 if len(weights) <= 6 else 2)
    assert sorted(leaves(tree_of(dict(enumerate(weights))))) == list(range(len(weights)))


def test_a_member_of_weight_0_never_comes() -> None:
    """The others share all positions."""
    assert counted(Shares([1, 0, 3]), 0, 400) == [100, 0, 300]
    assert counted(Shares([0, 5]), 7, 107) == [0, 100]


def test_golden_members() -> None:
    """Never change these: they fix the order of mixtures that users resume."""
    told = {
        (0.7, 0.3): "0100100010010010001001001000100100100010",
        (5.0, 3.0, 2.0): "0102010201010201020101020102010102010201",
        (1.0, 1.0, 1.0, 1.0, 1.0): "021430214302143",
        (0.4, 0.3, 0.15, 0.1, 0.04, 0.01): "0120130102401031021001201301024010310210",
    }
    for weights, expected in told.items():
        members, _ = Shares(weights).members(np.arange(len(expected), dtype=np.int64))
        assert "".join(map(str, members.tolist())) == expected
    members, before = Shares((0.4, 0.3, 0.15, 0.1, 0.04, 0.01)).members(np.arange(1 << 40, (1 << 40) + 3))
    assert (members.tolist(), before.tolist()) == ([0, 2, 1], [439804651110, 164926744166, 329853488333])


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ([], "0 members"),
        ([1.0] * (MAX_MEMBERS + 1), "257 members"),
        ([0.0, 0], "all weights are 0"),
        ([1.0, -0.1], "weight -0.1"),
        ([1.0, float("nan")], "weight nan"),
        ([float("inf"), 1.0], "weight inf"),
        ([True, 1.0], "weight True"),
        (["1", 1.0], "weight '1'"),
    ],
)
def test_weights_that_cannot_be(weights: list[float], why: str) -> None:
    """Each is named."""
    with pytest.raises(ValueError, match=why):
        Shares(weights)


@pytest.mark.slow
@examples(500)
@given(mixtures, positions)
def test_positions_of_a_member_are_found_from_its_draws(weights: list[float], first: int) -> None:
    """The way back, at small and at the largest positions, for members of any weight."""
    shares, at = Shares(weights), np.concatenate((np.arange(300), np.arange(first, first + 300)))
    members, before = shares.members(at)
    for member in range(len(weights)):
        here = members == member
        assert shares.positions(member, before[here]).tolist() == at[here].tolist()


def test_a_draw_past_the_end_of_the_sequence_has_the_last_position() -> None:
    """A member of a tiny weight has few draws in all positions that there are."""
    found = Shares([1.0, 1e-12]).positions(1, np.array([0, 280, 282, 10**6])).tolist()
    assert found[0] < found[1] < MAX_POSITION
    assert found[2:] == [MAX_POSITION] * 2
