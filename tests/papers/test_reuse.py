"""Reuse distances: Lobster's 80 %, the closed form, and distances counted on real permutations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.frequency import node_draws
from bench.papers.reuse import reuse_distances, share_longer
from brand.errors import UsageError
from tests.rounds import examples


def by_hand(draws: Sequence[Sequence[int]], iterations: int) -> list[int]:
    """Each draw's distance from the draw before of the same sample, draw by draw."""
    before: dict[int, int] = {}
    found = []
    for epoch, drawn in enumerate(draws):
        for position, sample in enumerate(drawn):
            now = epoch * iterations + position * iterations // len(drawn)
            if sample in before:
                found.append(now - before[sample])
            before[sample] = now
    return sorted(found)


@pytest.mark.parametrize(("epochs", "share"), [(None, 0.8447), (30, 0.798), (50, 0.820)])
def test_most_distances_are_longer_than_1000_iterations(epochs: int | None, share: float) -> None:
    """8 nodes, 562 iterations: 84.5 % without end; 79.8 % in 30 epochs, which is Lobster's 80 %; 82.0 % in 50."""
    assert share_longer(1000, 8, 562, epochs) == pytest.approx(share, abs=0.0005)


@examples(60)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 40), st.one_of(st.none(), st.integers(2, 9)))
def test_the_closed_form_is_the_sum_over_all_pairs(nodes: int, width: int, distance: int, epochs: int | None) -> None:
    """Every pair of epochs and of iterations in them, with its chance. Without end: 200 epochs ahead of the first."""
    last = 200 if epochs is None else epochs - 1
    all_, longer = 0.0, 0.0
    for apart in range(1, last + 1):
        chance = (1 - 1 / nodes) ** (apart - 1) / nodes * (1 if epochs is None else epochs - apart)
        apart_by = apart * width + np.subtract.outer(np.arange(width), np.arange(width))
        all_ += chance
        longer += chance * float((apart_by > distance).mean())
    assert share_longer(distance, nodes, width, epochs) == pytest.approx(longer / all_, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [30, 50])
def test_real_permutations_have_the_distances_of_the_closed_form(epochs: int) -> None:
    """One of eight nodes, 562 iterations of eight samples: within half a point."""
    found = reuse_distances(node_draws(562 * 64, 8, epochs, seed=1), 562)
    assert (found > 1000).mean() == pytest.approx(share_longer(1000, 8, 562, epochs), abs=0.005)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 12), st.data())
def test_distances_are_those_one_counts_by_hand(nodes: int, epochs: int, each: int, data: st.DataObject) -> None:
    """Draw by draw, also where iterations are not equally long."""
    draws = node_draws(nodes * each, nodes, epochs, data.draw(st.integers(0, 99)))
    iterations = data.draw(st.integers(1, each))
    assert sorted(reuse_distances(draws, iterations).tolist()) == by_hand(draws.tolist(), iterations)


def test_wrong_numbers_are_refused() -> None:
    """The message says what to give."""
    with pytest.raises(UsageError, match="give 0 or more"):
        share_longer(-1, 8, 562)
    with pytest.raises(UsageError, match="give 2 or more"):
        share_longer(1000, 8, 562, epochs=1)
    with pytest.raises(UsageError, match="give 1 to 5"):
        reuse_distances(node_draws(10, 2, 3, 0), 6)
