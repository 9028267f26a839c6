"""The access sequence of an epoch: a random arrangement of the groups, of which any part is made without the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base import access
from brand.orders.base.access import GroupSequence, SequencePart
from brand.orders.base.random import RandomStream, bits
from tests.orders.models import chi_square, epochs, seeds
from tests.rounds import examples

sizes = st.lists(st.integers(0, 300), min_size=1, max_size=12).filter(any)


@pytest.fixture(params=[1, 7, 64])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many positions in a part at most, on average."""
    monkeypatch.setattr(access, "PART", request.param)
    return int(request.param)


def sequence(sizes: list[int], seed: int, epoch: int) -> GroupSequence:
    """The sequence of groups of these sizes."""
    return GroupSequence(np.array(sizes, np.int64), seed, epoch)


def parts_of(found: GroupSequence) -> list[SequencePart]:
    """All parts."""
    return [found.part(number) for number in range(1 << found.depth)]


def model_parts(sizes: list[int], depth: int, word: Callable[[int, int], int]) -> list[list[int]]:
    """How often each part draws each group: a bit for each sample, and the ones are in the first half.

    `word(node, n)` is a word for the halves of a node. Each group has whole blocks of four words.
    """
    level = {1: sizes}
    for _ in range(depth):
        below = {}
        for node, counts in level.items():
            first, at = [], 0
            for count in counts:
                digits = "".join(f"{word(node, at + n):064b}"[::-1] for n in range(-(-count // 256) * 4))
                first.append(digits[:count].count("1"))
                at += -(-count // 256) * 4
            below[2 * node] = first
            below[2 * node + 1] = [all_ - some for all_, some in zip(counts, first, strict=True)]
        level = below
    return list(level.values())


@pytest.mark.slow
@pytest.mark.usefixtures("part")
@examples(40)
@given(sizes, seeds, epochs)
def test_the_parts_are_those_of_the_model(sizes: list[int], seed: int, epoch: int) -> None:
    """And each begins where the one before it ends, with all draws before it."""
    found = sequence(sizes, seed, epoch)

    def word(node: int, number: int) -> int:
        block = bits(4, seed, RandomStream.ACCESS_HALVES, epoch, node, first=number // 4 * 4)
        return int(block[number % 4])

    parts = parts_of(found)
    assert [part.counts.tolist() for part in parts] == model_parts(sizes, found.depth, word)
    first, before = 0, np.zeros(len(sizes), np.int64)
    for number, each in enumerate(parts):
        assert (each.number, each.first, each.before.tolist()) == (number, first, before.tolist())
        first, before = each.end, before + each.counts
    assert (first, before.tolist()) == (found.draws, sizes)


@pytest.mark.slow
@examples(40)
@given(sizes, seeds, epochs)
@pytest.mark.usefixtures("part")
def test_the_part_of_a_position_is_found_without_the_others(sizes: list[int], seed: int, epoch: int) -> None:
    """By its position, in any order, and by a sequence that has made no other part."""
    parts = parts_of(sequence(sizes, seed, epoch))
    again = sequence(sizes, seed, epoch)
    for each in sorted(parts, key=lambda each: hash((each.first, seed))):
        for position in {each.first, each.end - 1} if each.end > each.first else ():
            for found in (again.part_at(position), sequence(sizes, seed, epoch).part_at(position)):
                assert (found.number, found.first, found.end) == (each.number, each.first, each.end)
                assert (found.before.tolist(), found.counts.tolist()) == (each.before.tolist(), each.counts.tolist())


@pytest.mark.usefixtures("part")
@given(sizes, seeds, epochs)
def test_a_part_draws_each_group_as_often_as_it_says(sizes: list[int], seed: int, epoch: int) -> None:
    """The groups of its positions are an arrangement of its counts."""
    found = sequence(sizes, seed, epoch)
    for part in parts_of(found):
        groups = found.groups(part)
        assert np.bincount(groups, minlength=len(sizes)).tolist() == part.counts.tolist()


@pytest.mark.parametrize("most", [1, 2, 1 << 20])
def test_all_arrangements_are_equally_likely(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parts of one position on average, of two, and as a whole: chi-square within four standard deviations."""
    monkeypatch.setattr(access, "PART", most)
    many = 6_000
    found = Counter[tuple[int, ...]]()
    for seed in range(many):
        drawn = sequence([3, 2, 1], seed, 1)
        found[tuple(np.concatenate([drawn.groups(part) for part in parts_of(drawn)]).tolist())] += 1
    kinds = math.factorial(6) // (math.factorial(3) * math.factorial(2))
    assert len(found) == kinds
    assert abs(chi_square(np.array(list(found.values()))) - (kinds - 1)) < 4 * math.sqrt(2 * (kinds - 1))


def test_a_part_of_a_billion_positions() -> None:
    """One of 1,024, with 7,630 groups: its size, and its share of each group, are those of chance."""
    found = sequence([131_072] * 7_629 + [51_712], 3, 1)
    assert (found.draws, found.depth) == (10**9, 10)
    part = found.part_at(600_000_000)
    assert part.first <= 600_000_000 < part.end
    assert abs(part.end - part.first - 10**9 / 1024) < 5_000
    assert part.before.sum() == part.first
    assert (part.before + part.counts <= found._sizes).all()
    assert chi_square(part.counts[:-1]) < 7_628 + 4 * math.sqrt(2 * 7_628)
