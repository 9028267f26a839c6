"""How often a node draws a sample: HDMLP's figures, its Lemma 1 in exact fractions, and counts on real permutations."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.frequency import (
    Another,
    counted_above,
    draw_counts,
    expected_above,
    from_other_nodes,
    lemma_1,
    node_draws,
    often,
    seldom,
)
from brand.errors import UsageError
from tests.rounds import examples

TENTH = Fraction(1, 10)


@cache
def splits(total: int, parts: int, most: int) -> tuple[tuple[int, ...], ...]:
    """All ways to share `total` draws among `parts` nodes, the largest share first, none above `most`."""
    if parts == 1:
        return ((total,),) if total <= most else ()
    return tuple(
        (first, *rest) for first in range(min(total, most) + 1) for rest in splits(total - first, parts - 1, first)
    )


def test_the_papers_example_expects_323_samples() -> None:
    """10,000 samples, 4 nodes, 1,000 epochs: 322.94 samples are drawn more than 275 times; the paper says 323."""
    assert expected_above(10_000, 4, 1000, TENTH) == pytest.approx(322.94, abs=0.01)


def test_the_printed_sum_also_counts_those_at_the_limit() -> None:
    """The paper's sum begins at the ceiling of 275 and gives 378.2."""
    assert 10_000 * draw_counts(4, 1000)[275:].sum() == pytest.approx(378.2, abs=0.05)


@pytest.mark.slow
def test_real_permutations_agree_with_the_expected_number() -> None:
    """Each of the four nodes is within four standard deviations (17.7, if samples were independent)."""
    counted = counted_above(10_000, 4, 1000, TENTH, seed=0)
    assert counted.shape == (4,)
    assert np.abs(counted - 322.94).max() < 4 * 17.7


@pytest.mark.parametrize("epochs", [1, 2, 9, 10])
def test_one_copy_where_a_sample_is_drawn_most(epochs: int) -> None:
    """On two nodes: the chance that the binomial distribution gives for the node that draws it less often."""
    times = np.arange(epochs + 1)
    less = float((np.minimum(times, epochs - times) * draw_counts(2, epochs)).sum()) / epochs
    assert from_other_nodes(20_000, 2, epochs, seed=0) == pytest.approx(less, abs=0.005)


def test_placement_by_frequency_saves_less_in_a_longer_run() -> None:
    """Of what three nodes get from each other, 67 % of all draws if placed at random; 0 if there is one node."""
    ten, ninety = (from_other_nodes(20_000, 3, epochs, seed=0) for epochs in (10, 90))
    assert (round(ten, 2), round(ninety, 2)) == (0.51, 0.61)
    assert from_other_nodes(100, 1, 10, seed=0) == 0


@given(st.integers(1, 9), st.integers(1, 60))
def test_the_chances_are_those_of_the_binomial_distribution(nodes: int, epochs: int) -> None:
    """Each chance is the number of ways times powers, computed exactly."""
    one = Fraction(1, nodes)
    exact = [math.comb(epochs, k) * one**k * (1 - one) ** (epochs - k) for k in range(epochs + 1)]
    assert draw_counts(nodes, epochs) == pytest.approx([float(chance) for chance in exact], abs=1e-12)


@given(st.integers(1, 6), st.integers(1, 30), st.fractions(-1, 5, max_denominator=12))
def test_more_often_is_strict(nodes: int, epochs: int, delta: Fraction) -> None:
    """The expected number sums the chances of all counts above the limit, and of no count at it."""
    chances, limit = draw_counts(nodes, epochs), (1 + delta) * Fraction(epochs, nodes)
    assert expected_above(7, nodes, epochs, delta) == pytest.approx(
        7 * sum(chances[k] for k in range(epochs + 1) if k > limit)
    )


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 20), st.fractions(-1, 4, max_denominator=6))
def test_counted_is_what_one_counts_by_hand(nodes: int, epochs: int, more: int, delta: Fraction) -> None:
    """For each node: the samples whose draws, all epochs together, are above the limit."""
    samples = nodes + more
    limit = (1 + delta) * Fraction(epochs, nodes)
    by_hand = []
    for node in range(nodes):
        drawn = node_draws(samples, nodes, epochs, 3, node).ravel().tolist()
        by_hand.append(sum(drawn.count(sample) > limit for sample in range(samples)))
    assert counted_above(samples, nodes, epochs, delta, 3).tolist() == by_hand


def test_the_nodes_of_an_epoch_draw_every_sample_once() -> None:
    """Four nodes share 23 samples: five each, three are left out; no sample comes twice."""
    drawn = np.stack([node_draws(23, 4, 3, 1, node) for node in range(4)])
    assert drawn.shape == (4, 3, 5)
    for epoch in range(3):
        assert len(np.unique(drawn[:, epoch])) == 20


def cases() -> list[tuple[int, int, int]]:
    """Nodes, epochs and a node's draws of a sample: all of 2 to 6 nodes and 1 to 24 epochs."""
    return [(nodes, epochs, x) for nodes in range(2, 7) for epochs in range(1, 25) for x in range(epochs + 1)]


def test_lemma_1_holds_for_every_case() -> None:
    """However the other nodes share the rest, one of them is within the bound: 1,654 cases, both directions."""
    checked = 0
    for nodes, epochs, x in cases():
        mean = Fraction(epochs, nodes)
        others = splits(epochs - x, nodes - 1, epochs - x)
        if x >= mean:
            said = often(nodes, epochs, x / mean - 1)
            assert said.draws == x
            assert all(min(split) <= said.bound for split in others)
            checked += 1
        if x <= mean:
            said = seldom(nodes, epochs, 1 - x / mean)
            assert said.draws == x
            assert all(max(split) >= said.bound for split in others)
            checked += 1
    assert (checked, 0) == lemma_1(6, 24) == (1654, 0)


@examples(60)
@given(st.integers(2, 6), st.integers(1, 24), st.data())
def test_lemma_1_holds_between_whole_draws(nodes: int, epochs: int, data: st.DataObject) -> None:
    """Any delta, also one that makes no whole number of draws."""
    said = often(nodes, epochs, data.draw(st.fractions(0, nodes - 1, max_denominator=60)))
    assert all(min(split) <= said.bound for split in splits(epochs - said.draws, nodes - 1, epochs))
    said = seldom(nodes, epochs, data.draw(st.fractions(0, 1, max_denominator=60)))
    assert all(max(split) >= said.bound for split in splits(epochs - said.draws, nodes - 1, epochs))


def test_lemma_1_as_the_paper_writes_it() -> None:
    """Four nodes, 1,000 epochs, a tenth above and below the mean of 250."""
    assert often(4, 1000, TENTH) == Another(275, math.ceil(Fraction(29, 30) * 250))
    assert seldom(4, 1000, TENTH) == Another(225, math.floor(Fraction(31, 30) * 250))


@pytest.mark.parametrize(
    "call",
    [
        lambda: draw_counts(0, 5),
        lambda: draw_counts(2, 0),
        lambda: node_draws(3, 4, 1, 0),
        lambda: expected_above(10, 2, 5, Fraction(-2)),
        lambda: often(1, 5, Fraction(0)),
        lambda: often(3, 5, Fraction(21, 10)),
        lambda: seldom(3, 5, Fraction(11, 10)),
    ],
)
def test_wrong_numbers_are_refused(call: Callable[[], object]) -> None:
    """The message says what to give."""
    with pytest.raises(UsageError, match=r"give "):
        call()
