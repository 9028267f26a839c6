"""Each job draws uniformly, as fractions show, and jobs draw the same as often as can be."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.random import RandomStream, Words
from brand.orders.joader.tree import Tree, draw_rounds
from tests.orders.test_tree import mask
from tests.rounds import examples

A, B, C = set("abcd"), set("abefgh"), set("aefgijkl")
"""The worked example. Sets ascend in size."""
Law = Counter[tuple[str, ...]]


def law(sets: list[set[str]], *, printed: bool = False) -> dict[tuple[str, ...], Fraction]:
    """The probability of each outcome of a round, by Algorithm 1: as `dependent` has it, or as printed."""
    found: dict[tuple[str, ...], Fraction] = {}

    def round_from(k: int, refused: set[str], picks: tuple[str, ...], chance: Fraction) -> None:
        if not chance:
            return
        if k == len(sets):
            found[picks] = found.get(picks, Fraction()) + chance
            return
        shared = set.intersection(*sets[k:]) - refused
        joins = Fraction(len(shared), len(sets[k] - refused))
        own = sets[k] - shared if printed else sets[k] - shared - refused
        for element in own:
            round_from(k + 1, refused | shared, (*picks, element), chance * (1 - joins) / len(own))
        for end in range(k + 1, len(sets) + 1):
            goes_on = Fraction()
            if end < len(sets):
                last = len(sets[end - 1]) if printed else len(sets[end - 1] - refused)
                goes_on = min(Fraction(1), Fraction(last, len(sets[end] - refused)))
            for element in shared:
                at = chance * joins * (1 - goes_on) / len(shared)
                round_from(end, refused | shared, (*picks, *[element] * (end - k)), at)
            joins *= goes_on

    round_from(0, set(), (), Fraction(1))
    assert sum(found.values()) == 1
    return found


def chances(found: dict[tuple[str, ...], Fraction], job: int) -> dict[str, Fraction]:
    """How likely a job draws each element."""
    result: dict[str, Fraction] = {}
    for picks, chance in found.items():
        result[picks[job]] = result.get(picks[job], Fraction()) + chance
    return result


def together(found: dict[tuple[str, ...], Fraction], *drawn: str) -> Fraction:
    """The probability that each job draws one of these letters; a letter that comes twice is drawn by both."""
    groups = [set(letters) for letters in drawn]
    same = [(i, j) for j in range(len(drawn)) for i in range(j) if drawn[i] == drawn[j]]
    return sum(
        (
            chance
            for picks, chance in found.items()
            if all(pick in group for pick, group in zip(picks, groups, strict=True))
            and all(picks[i] == picks[j] for i, j in same)
        ),
        Fraction(),
    )


def test_the_worked_example() -> None:
    """Three jobs, by hand."""
    found = law([A, B, C])
    assert together(found, "a", "a", "a") == Fraction(1, 8)
    assert together(found, "a", "a", "efgijkl") == Fraction(1, 24)
    assert together(found, "a", "efg", "efg") == Fraction(1, 28)
    assert together(found, "a", "bh", "ijkl") == Fraction(1, 30)
    assert together(found, "a", "efg", "ijkl") == Fraction(1, 70)
    assert together(found, "bcd", "efg", "efg") == Fraction(9, 28)
    assert together(found, "bcd", "bh", "ijkl") == Fraction(3, 10)
    assert together(found, "bcd", "efg", "ijkl") == Fraction(9, 70)
    assert chances(found, 2) == dict.fromkeys(C, Fraction(1, 8))


def test_the_printed_algorithm_is_biased() -> None:
    """Job C draws e, f and g more often than i, j, k and l."""
    found = chances(law([A, B, C], printed=True), 2)
    assert [found[letter] for letter in "efgijkl"] == [Fraction(25, 168)] * 3 + [Fraction(3, 28)] * 4


def test_nested_sets_of_4_8_and_12() -> None:
    """As printed, the last job draws an element 1.75 times as often as it should; both corrections are needed."""
    letters = "abcdefghijkl"
    sets = [set(letters[:size]) for size in (4, 8, 12)]
    assert max(chances(law(sets, printed=True), 2).values()) > Fraction(3, 2 * 12)
    for job, each in enumerate(sets):
        assert chances(law(sets), job) == dict.fromkeys(each, Fraction(1, len(each)))


sets_of_letters = st.lists(st.sets(st.sampled_from("abcdefg"), min_size=1), min_size=1, max_size=4)


@examples(60)
@given(sets_of_letters)
def test_each_job_draws_each_of_its_elements_with_the_same_chance(sets: list[set[str]]) -> None:
    """Whatever the sets have in common."""
    ranked = sorted(sets, key=len)
    found = law(ranked)
    for job, each in enumerate(ranked):
        assert chances(found, job) == dict.fromkeys(each, Fraction(1, len(each)))


@pytest.mark.parametrize(
    "sets", [[A, B, C], [A], [A, A, A], [A, set("efg"), C], [set("abc"), set("def")], [A, A | B, A | B | C]]
)
def test_rounds_follow_the_law(sets: list[set[str]]) -> None:
    """The first round of 5,000 trees; the law of the rest is that of smaller sets."""
    ranked, words, found, rounds = sorted(sets, key=len), Words(7, RandomStream.ROUNDS), Law(), 5000
    expected = law(ranked)
    for _ in range(rounds):
        tree = Tree(12)
        jobs = [tree.insert(mask({ord(letter) - ord("a") for letter in each}, 12)) for each in ranked]
        order = [tree.jobs.index(job) for job in jobs]
        picks = draw_rounds(tree, tree.jobs, 1, words)[0]
        found[tuple(chr(ord("a") + int(picks[at])) for at in order)] += 1
    assert set(found) <= set(expected)
    square = sum((found[each] - rounds * chance) ** 2 / (rounds * chance) for each, chance in expected.items())
    freedom = len(expected) - 1
    assert float(square) < freedom + 5 * sqrt(2 * freedom) + 1e-9


def test_two_jobs_draw_the_same_as_often_as_can_be() -> None:
    """With a probability of |I| / max(|D|), and no rule could do better."""
    words, rounds = Words(3, RandomStream.ROUNDS), 10_000
    for low, share in ((6, 0.4), (8, 0.2)):
        same = 0
        for _ in range(rounds):
            tree = Tree(20)
            jobs = [tree.insert(mask(set(range(10)), 20)), tree.insert(mask(set(range(low, low + 10)), 20))]
            first, second = draw_rounds(tree, jobs, 1, words)[0].tolist()
            same += first == second
        assert same / rounds == pytest.approx(share, abs=0.02)


@pytest.mark.slow
def test_positions_are_uniform_where_jobs_come_go_and_wait() -> None:
    """The positions of each element in the orders of three jobs: one is always ready, one draws every other round, one
    comes late. Over 1,000 epochs of 12 elements.
    """
    words, epochs, elements = Words(11, RandomStream.ROUNDS), 1000, 12
    counts = np.zeros((3, elements, elements), np.int64)
    for _ in range(epochs):
        tree = Tree(elements)
        jobs = [tree.insert(np.ones(elements, np.bool_)), tree.insert(np.ones(elements, np.bool_))]
        drawn: list[list[int]] = [[], [], []]
        for turn in range(3 * elements):
            if turn == elements // 2:
                jobs.append(tree.insert(np.ones(elements, np.bool_)))
            ready = [k for k, job in enumerate(jobs) if job.left and (k != 1 or turn % 2)]
            if ready:
                picks = draw_rounds(tree, [jobs[k] for k in ready], 1, words)[0].tolist()
                for k, element in zip(ready, picks, strict=True):
                    drawn[k].append(element)
        for k, order in enumerate(drawn):
            assert sorted(order) == list(range(elements))
            counts[k, order, np.arange(elements)] += 1
    expected = epochs / elements
    freedom = (elements - 1) ** 2
    for table in counts:
        square = float(((table - expected) ** 2 / expected).sum())
        assert abs(square - freedom) < 5 * sqrt(2 * freedom)


@examples(60)
@given(st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=1, max_size=5), st.integers(1, 9), st.integers(0, 9))
def test_rounds_in_one_call_are_rounds_one_after_another(sets: list[set[int]], step: int, seed: int) -> None:
    """The same words give the same draws, however many rounds a call makes."""
    rounds = min(map(len, sets))
    trees = []
    for steps in ([rounds], [min(step, rounds - done) for done in range(0, rounds, step)]):
        tree, words = Tree(41), Words(seed, RandomStream.ROUNDS)
        jobs = [tree.insert(mask(each, 41)) for each in sets]
        parts = [draw_rounds(tree, jobs, count, words) for count in steps]
        trees.append((np.concatenate(parts).tolist(), words.used, tree.levels.tolist()))
        assert list(accumulate(steps))[-1] == rounds
    assert trees[0] == trees[1]


def test_no_job_draws_more_than_it_needs() -> None:
    """It is refused before anything is drawn."""
    tree = Tree(5)
    job = tree.insert(mask({1, 2}, 5))
    with pytest.raises(ValueError, match="3 rounds of jobs that need 2 elements"):
        draw_rounds(tree, [job], 3, Words(0, RandomStream.ROUNDS))
    assert job.left == 2
