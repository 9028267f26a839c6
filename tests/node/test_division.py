"""Properties of a division: what is found some at a time, or in an array by position, is what `positions` says."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brand.node.decide.state.epoch import Division
from brand.orders.base import random


@st.composite
def divisions(draw: st.DrawFn) -> Division:
    samples = draw(st.integers(0, 40))
    start, replicas = draw(st.integers(0, samples)), draw(st.integers(1, 5))
    if draw(st.booleans()):
        return Division(samples, start, replicas)
    ranks = st.lists(st.integers(0, replicas - 1), min_size=samples - start, max_size=samples - start)
    return Division(samples, start, replicas, 2, np.array(draw(ranks), np.int32))


@given(divisions(), st.integers(0, 45), st.integers(1, 9))
def test_parts_are_positions_from_the_first_on(division: Division, first: int, block: int) -> None:
    for rank in range(division.replicas):
        with patch.object(random, "BLOCK", block):
            parts = [part.tolist() for part in division.parts(rank, first)]
        positions = division.positions(rank).tolist()
        assert [position for part in parts for position in part] == [
            position for position in positions if position >= first
        ]
        assert all(len(part) <= block for part in parts)


@given(divisions(), st.integers(0, 45))
def test_values_at_the_positions_of_a_rank(division: Division, last: int) -> None:
    values = np.arange(division.samples) ** 2
    for rank in range(division.replicas):
        wanted = [position**2 for position in division.positions(rank).tolist() if position <= last]
        assert division.at(values, rank, last).tolist() == wanted
