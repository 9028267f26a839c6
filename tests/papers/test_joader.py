"""Reads of several jobs with one cache: the figures of JOADER's appendix A.2, and what holds for any sets."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.papers.caches import Policy, Sampling, misses
from bench.papers.joader import least_slots
from tests.rounds import examples

Sets = list[NDArray[np.int64]]
N = 10_000


def nested(*sizes: int) -> Sets:
    """Sets of which each has the smaller ones in it."""
    return [np.arange(size) for size in sizes]


def apart(offset: int) -> Sets:
    """Two sets of one size."""
    return [np.arange(N), np.arange(N) + offset]


def at_random(jobs: int = 4) -> Sets:
    """Sets of 10,000 out of 13,333."""
    rng = np.random.default_rng(0)
    return [rng.choice(13_333, N, replace=False) for _ in range(jobs)]


@pytest.mark.parametrize("slots", [1, 5000])
@pytest.mark.parametrize("policy", ["lru", "refcnt"])
@pytest.mark.parametrize("offset", [0, 2500, 7500])
def test_equal_sizes_cost_the_least_that_there_is(offset: int, policy: Policy, slots: int) -> None:
    """With dependent sampling, whatever the cache holds: each element is read once."""
    assert misses(apart(offset), slots, "dependent", policy) == N + offset


@pytest.mark.parametrize("size", [7500, 5000, 2500])
def test_nested_sets_with_one_slot_have_a_closed_form(size: int) -> None:
    """10,000 + d * ln(10,000 / d) reads, with d the difference of the sizes."""
    difference = N - size
    expected = N + difference * math.log(N / difference)
    assert misses(nested(N, size), 1, "dependent", "lru") == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("sets", "slots", "sampling", "policy", "reads"),
    [
        (lambda: nested(N, 7500), 2500, "dependent", "lru", 11_961),
        (lambda: nested(N, 7500), 5000, "dependent", "lru", 10_750),
        (lambda: nested(N, 7500), 2500, "dependent", "refcnt", 10_000),
        (lambda: nested(N, 7500), 2500, "independent", "lru", 15_480),
        (at_random, 1, "dependent", "lru", 22_623),
        (at_random, 2500, "dependent", "refcnt", 15_411),
        (at_random, 2500, "independent", "lru", 34_493),
        (lambda: nested(N, 7500, 5000, 2500), 1, "dependent", "lru", 18_676),
        (lambda: nested(N, 7500, 5000, 2500), 2500, "dependent", "refcnt", 11_060),
    ],
)
def test_the_figures_of_the_appendix(
    sets: Callable[[], Sets], slots: int, sampling: Sampling, policy: Policy, reads: int
) -> None:
    """The paper draws curves; these are the figures of this project's first model of the same rules."""
    assert misses(sets(), slots, sampling, policy) == pytest.approx(reads, rel=0.015)


def test_caches_with_which_nothing_is_read_twice() -> None:
    """Dependent sampling needs half of what independent sampling does. `lru` needs room for all elements."""
    sets = nested(N, 7500)
    assert least_slots(sets, "dependent", "refcnt") == 2000
    assert least_slots(sets, "independent", "refcnt") == 4000
    assert least_slots(nested(5000, 3750), "dependent", "lru") == 5000


sets_of_numbers = st.lists(st.sets(st.integers(0, 30), min_size=1), min_size=1, max_size=4)


@examples(100)
@given(
    sets_of_numbers,
    st.integers(1, 31),
    st.sampled_from(["dependent", "independent"]),
    st.sampled_from(["lru", "fifo", "random", "refcnt"]),
)
def test_reads_lie_between_all_different_and_all_elements(
    sets: list[set[int]], slots: int, sampling: Sampling, policy: Policy
) -> None:
    """A cache that holds everything reads each element once."""
    arrays = [np.array(sorted(each)) for each in sets]
    least, most = len(set.union(*sets)), sum(map(len, sets))
    assert least <= misses(arrays, slots, sampling, policy) <= most
    assert misses(arrays, 31, sampling, policy) == least
