"""Places, chunks and groups: the arithmetic of section 3.2 of the paper against counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.mapping import Mapping, chunks_per_group
from tests.orders.models import mappings


@given(mappings())
def test_counts_are_those_of_cutting_places_into_chunks_and_groups(mapping: Mapping) -> None:
    """Cut the places into chunks, the chunks into groups, and count."""
    places = list(range(mapping.samples))
    chunks = [places[k : k + mapping.chunk_size] for k in range(0, len(places), mapping.chunk_size)]
    groups = [chunks[k : k + mapping.group_chunks] for k in range(0, len(chunks), mapping.group_chunks)]
    assert (mapping.chunks, mapping.groups) == (len(chunks), len(groups))
    assert all(sum(map(len, group)) == mapping.group_size for group in groups[:-1])
    group_of = {place: number for number, group in enumerate(groups) for chunk in group for place in chunk}
    assert mapping.group_of(np.array(places)).tolist() == [group_of[place] for place in places]
    padding = [0] * (len(groups) * mapping.group_chunks - len(chunks))
    assert mapping.chunk_samples().tolist() == [len(chunk) for chunk in chunks] + padding


def test_the_example_of_the_paper() -> None:
    """Figure 2: 18 samples in chunks of three, three chunks a group, are two groups."""
    mapping = Mapping(18, 3, 3)
    assert (mapping.chunks, mapping.groups, mapping.group_size) == (6, 2, 9)
    assert chunks_per_group(18, 3, 6) == 3


@pytest.mark.parametrize("wrong", [(0, 3, 3), (18, 0, 3), (18, 3, 0), (-1, 3, 3), (18, -3, 3), (18, 3, -3)])
def test_numbers_below_one_are_refused(wrong: tuple[int, int, int]) -> None:
    """The message tells all three numbers."""
    with pytest.raises(ValueError, match=r"below 1.*samples={}.*chunk_size={}.*group_chunks={}".format(*wrong)):
        Mapping(*wrong)


@given(st.integers(1, 10**9), st.integers(1, 10**4), st.integers(1, 10**10))
def test_chunks_per_group_is_the_data_over_the_memory_rounded_up(samples: int, size: int, memory: int) -> None:
    """n = ceil(N / M), at least one chunk, at most all."""
    n = chunks_per_group(samples, size, memory)
    assert n == min(max(1, math.ceil(samples / memory)), math.ceil(samples / size))


@given(st.integers(1, 10**6), st.integers(1, 100), st.floats(1, 1e7))
def test_whole_groups_fit_into_the_memory_that_was_asked_for(samples: int, size: int, memory: float) -> None:
    """A share 1/n of the samples is no more than the abstract memory, unless one group of all chunks is the least."""
    n = chunks_per_group(samples, size, memory)
    assert samples / n <= memory or n == -(-samples // size)


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.999])
def test_memory_for_less_than_a_sample_makes_one_group(memory: float) -> None:
    """The least memory there can be is one abstract chunk."""
    assert chunks_per_group(1000, 10, memory) == 100
