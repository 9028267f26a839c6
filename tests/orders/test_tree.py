"""The levels of a tree are what they are defined as, whatever jobs came, drew and left."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.orders.base.random import RandomStream, Words
from brand.orders.joader.tree import MOST_JOBS, Need, Tree, draw_rounds
from tests.rounds import examples

ELEMENTS = 24


def mask(elements: set[int], count: int = ELEMENTS) -> NDArray[np.bool_]:
    """A set as the tree takes it."""
    return np.isin(np.arange(count), sorted(elements))


def level(jobs: list[set[int]], element: int) -> int:
    """By the definition: the first k for which the jobs from k on need the element."""
    k = len(jobs)
    while k and element in jobs[k - 1]:
        k -= 1
    return k


@dataclass
class Twin:
    """A tree, and beside it what its jobs need as plain sets."""

    tree: Tree = field(default_factory=lambda: Tree(ELEMENTS))
    needed: dict[int, set[int]] = field(default_factory=dict)
    """By the id of a job."""
    words: Words = field(default_factory=lambda: Words(1, RandomStream.ROUNDS))

    def insert(self, elements: set[int]) -> None:
        self.needed[id(self.tree.insert(mask(elements)))] = set(elements)

    def remove(self, job: Need) -> None:
        self.tree.remove(job)
        del self.needed[id(job)]

    def draw(self, ready: list[Need], rounds: int) -> None:
        picks = draw_rounds(self.tree, ready, rounds, self.words)
        for job, drawn in zip(ready, picks.T.tolist(), strict=True):
            assert len(set(drawn)) == rounds
            assert set(drawn) <= self.needed[id(job)]
            self.needed[id(job)] -= set(drawn)

    def check(self) -> None:
        jobs = [self.needed[id(job)] for job in self.tree.jobs]
        assert self.tree.levels.tolist() == [level(jobs, element) for element in range(ELEMENTS)]
        for job, needed in zip(self.tree.jobs, jobs, strict=True):
            assert job.left == len(needed)
            assert np.flatnonzero(job.mask(ELEMENTS)).tolist() == sorted(needed)
            assert [element in job for element in range(ELEMENTS)] == [e in needed for e in range(ELEMENTS)]


@examples(200)
@given(st.data())
def test_levels_are_right_after_any_history(data: st.DataObject) -> None:
    """Jobs come with any set, leave at any time, and any of them draw."""
    twin = Twin()
    for _ in range(data.draw(st.integers(1, 12))):
        jobs = twin.tree.jobs
        able = [job for job in jobs if job.left]
        step = data.draw(st.sampled_from(["insert", "insert", "draw", "remove"]))
        if step == "insert":
            twin.insert(data.draw(st.sets(st.integers(0, ELEMENTS - 1))))
        elif step == "remove" and jobs:
            twin.remove(data.draw(st.sampled_from(jobs)))
        elif step == "draw" and able:
            ready = data.draw(st.lists(st.sampled_from(able), min_size=1, unique_by=id))
            twin.draw(ready, data.draw(st.integers(1, min(job.left for job in ready))))
        twin.check()


def vertices(tree: Tree) -> list[set[int]]:
    """The elements of each level, from the root on; the last one has those of no chain."""
    return [set(np.flatnonzero(tree.levels == k).tolist()) for k in range(len(tree.jobs) + 1)]


def test_the_tree_of_figure_4() -> None:
    """JOADER's example: A is what all three draw, B what D2 and D3 draw beyond it, F what only D3 draws beyond both.

    Without D2, B becomes one with F (4b). A set that is smaller than all becomes the root (4c), any other one comes in
    at its place (4d). Beyond the paper: what only D2 kept from being drawn together, here 2, is together without it.
    """
    none = set(range(9, ELEMENTS))

    def tree_of(*sets: set[int]) -> tuple[Tree, list[Need]]:
        tree = Tree(ELEMENTS)
        return tree, [tree.insert(mask(each)) for each in sets]

    first, second, third = {0, 1, 2, 3}, {0, 1, 4, 5, 6}, {0, 1, 2, 4, 5, 7, 8}
    tree, jobs = tree_of(first, second, third)
    assert vertices(tree) == [{0, 1}, {4, 5}, {2, 7, 8}, {3, 6} | none]
    tree.remove(jobs[1])
    assert vertices(tree) == [{0, 1, 2}, {4, 5, 7, 8}, {3, 6} | none]
    tree.insert(mask({0, 4, 9}))
    assert vertices(tree) == [{0}, {1, 2}, {4, 5, 7, 8}, {3, 6} | none]
    tree, _ = tree_of(third, first)
    tree.insert(mask({1, 4, 5, 6, 9}))
    assert vertices(tree) == [{1}, {4, 5}, {0, 2, 7, 8}, {3, 6} | none]


def test_a_job_that_leaves_separates_nothing() -> None:
    """What two jobs share is shared again when the job between them has left. (The paper's merge of two leaves keeps it
    apart for ever.)
    """
    tree = Tree(6)
    tree.insert(mask({0, 1, 2, 3}, 6))
    between = tree.insert(mask({0, 3, 4, 5}, 6))
    tree.insert(mask({0, 1, 2, 3, 4, 5}, 6))
    assert tree.levels.tolist() == [0, 2, 2, 0, 1, 1]
    tree.remove(between)
    assert tree.levels.tolist() == [0, 0, 0, 0, 1, 1]


def test_jobs_have_a_limit() -> None:
    """A level is one byte."""
    tree = Tree(3)
    for _ in range(MOST_JOBS):
        tree.insert(mask({1}, 3))
    assert tree.levels.tolist() == [MOST_JOBS, 0, MOST_JOBS]
    with pytest.raises(ValueError, match=f"at most {MOST_JOBS} jobs"):
        tree.insert(mask({1}, 3))
    for job in tree.jobs[::-2]:
        tree.remove(job)
    assert tree.levels.tolist() == [len(tree.jobs), 0, len(tree.jobs)]
