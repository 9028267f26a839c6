"""How much do several jobs read that share one cache, by the rules of JOADER's appendix A.2?

`python -m bench.papers joader` prints it: elements read, beside the *first model* of this project, which was written
from the paper's text before this code, because the paper prints curves. The paper's text has two figures, 20,000 and
16,000, which are read off curves of another run. Then the smallest caches with which nothing is read twice follow, and
times of an insertion; the paper has 0.57 s for sets of 1 to 2 million.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.harness import progress, show, table
from bench.papers.caches import Policy, Sampling, misses
from brand.orders.joader.tree import Tree

_N: Final = 10_000
SLOTS: Final = (1, 2500, 5000)
_POLICIES: Final[tuple[Policy, ...]] = ("lru", "fifo", "random", "refcnt")
Sets = Sequence[NDArray[np.integer[Any]]]


def _at_random(seed: int) -> Sets:
    rng = np.random.default_rng(seed)
    return [rng.choice(13_333, _N, replace=False) for _ in range(4)]


CASES: Final[dict[str, Callable[[int], Sets]]] = {
    "the same 10,000": lambda _: [np.arange(_N)] * 2,
    "two of 10,000, 7,500 apart": lambda _: [np.arange(_N), np.arange(_N) + 7500],
    "two of 10,000, 5,000 apart": lambda _: [np.arange(_N), np.arange(_N) + 5000],
    "two of 10,000, 2,500 apart": lambda _: [np.arange(_N), np.arange(_N) + 2500],
    "10,000 and 7,500 of them": lambda _: [np.arange(_N), np.arange(7500)],
    "10,000 and 5,000 of them": lambda _: [np.arange(_N), np.arange(5000)],
    "10,000 and 2,500 of them": lambda _: [np.arange(_N), np.arange(2500)],
    "four at random of 13,333": _at_random,
    "four of 10,000 to 2,500": lambda _: [np.arange(size) for size in (_N, 7500, 5000, 2500)],
}
"""Table 1 of the appendix."""
UNEQUAL: Final = ("10,000 and 7,500 of them", "four at random of 13,333", "four of 10,000 to 2,500")
"""The cases of which the paper says how large a cache has to be."""
STEP: Final = 500
"""Slots by which caches grow in the search for the smallest one."""
FIRST_MODEL: Final[dict[tuple[str, Sampling, Policy, int], int]] = {
    ("two of 10,000, 2,500 apart", "dependent", "lru", 1): 12_500,
    ("10,000 and 7,500 of them", "dependent", "lru", 1): 13_464,
    ("10,000 and 7,500 of them", "dependent", "lru", 2500): 11_961,
    ("10,000 and 7,500 of them", "dependent", "lru", 5000): 10_750,
    ("10,000 and 7,500 of them", "dependent", "refcnt", 2500): 10_000,
    ("10,000 and 7,500 of them", "independent", "lru", 1): 17_498,
    ("10,000 and 7,500 of them", "independent", "lru", 2500): 15_480,
    ("10,000 and 5,000 of them", "dependent", "lru", 1): 13_469,
    ("10,000 and 5,000 of them", "dependent", "lru", 2500): 12_618,
    ("10,000 and 2,500 of them", "dependent", "lru", 1): 12_173,
    ("10,000 and 2,500 of them", "dependent", "lru", 2500): 11_734,
    ("four at random of 13,333", "dependent", "lru", 1): 22_623,
    ("four at random of 13,333", "dependent", "lru", 2500): 20_051,
    ("four at random of 13,333", "dependent", "lru", 5000): 17_697,
    ("four at random of 13,333", "dependent", "refcnt", 2500): 15_411,
    ("four at random of 13,333", "dependent", "refcnt", 5000): 13_281,
    ("four at random of 13,333", "independent", "lru", 1): 39_994,
    ("four at random of 13,333", "independent", "lru", 2500): 34_493,
    ("four of 10,000 to 2,500", "dependent", "lru", 1): 18_676,
    ("four of 10,000 to 2,500", "dependent", "lru", 2500): 15_652,
    ("four of 10,000 to 2,500", "dependent", "refcnt", 2500): 11_060,
    ("four of 10,000 to 2,500", "independent", "lru", 1): 24_994,
    ("four of 10,000 to 2,500", "independent", "lru", 2500): 20_447,
}


def print_all() -> None:
    """Print the reads, and the time of an insertion."""
    rows = []
    for name in CASES:
        progress(f"joader: {name}")
        rows.append([name, "independent", "lru", *(_cell(name, "independent", "lru", slots) for slots in SLOTS)])
        for policy in _POLICIES:
            rows.append(["", "dependent", policy, *(_cell(name, "dependent", policy, slots) for slots in SLOTS)])
    show("elements read, by slots of the cache; in brackets the first model's figure\n")
    show(table(["sets", "sampling", "cache", *(f"{slots:,}" for slots in SLOTS)], rows))
    rows = []
    for name in UNEQUAL:
        progress(f"joader: smallest caches, {name}")
        sets = CASES[name](0)
        shares = [
            f"{100 * slots / len(union(sets)):.0f} %"
            for slots in (
                least_slots(sets, "independent", "refcnt"),
                least_slots(sets, "dependent", "lru"),
                least_slots(sets, "dependent", "refcnt"),
            )
        ]
        rows.append([name, *shares])
    show("\nsmallest cache with which each element is read once, as a share of all elements\n")
    show(table(["sets", "independent, refcnt", "dependent, lru", "dependent, refcnt"], rows))
    show(f"\n128 sets of 1 to 2 million ids: {insertion_s():.3f} s an insertion on average (paper: 0.57 s)")


def _cell(name: str, sampling: Sampling, policy: Policy, slots: int) -> str:
    seeds = 3 if slots == 1 else 1
    found = np.mean([misses(CASES[name](seed), slots, sampling, policy, seed) for seed in range(seeds)])
    first = FIRST_MODEL.get((name, sampling, policy, slots))
    return f"{found:,.0f}" if first is None else f"{found:,.0f} ({first:,})"


def union(sets: Sets) -> NDArray[np.integer[Any]]:
    """Return the elements of all sets."""
    return np.unique(np.concatenate(sets))


def least_slots(sets: Sets, sampling: Sampling, policy: Policy) -> int:
    """Return the slots of the smallest cache, in steps of `STEP`, with which no element is read twice."""
    elements = len(union(sets))
    for slots in range(STEP, elements, STEP):
        if misses(sets, slots, sampling, policy) == elements:
            return slots
    return elements


def insertion_s(jobs: int = 128, most: int = 2_000_000) -> float:
    """Return the mean seconds in which a tree inserts a job, over `jobs` insertions."""
    rng, tree, spent_s = np.random.default_rng(0), Tree(most), 0.0
    for _ in range(jobs):
        needed = rng.random(most) < rng.uniform(0.5, 1)
        started = time.perf_counter()
        tree.insert(needed)
        spent_s += time.perf_counter() - started
    return spent_s / jobs
