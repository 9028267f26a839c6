"""Which samples do jobs draw next, so that each draws uniformly and they share as many draws as possible? (JOADER, 4)

A *round* gives each ready job one element that it still needs. The jobs are ordered from the smallest remaining set to
the largest. The first job draws from its own set. If all jobs behind it need the drawn element, too, the next job
follows and draws the same element, with the probability that keeps its own draw uniform: the ratio of the two sets'
sizes. The first job that does not follow draws from its own set without the elements that all jobs behind the first job
need; and so on. A job that is not ready is left out of the round (partial sampling): the others draw as if they were
alone.

This is Algorithm 1 of the paper with two corrections. Line 13 sets `c` to the size of D, but the paper's own equation
12 has the size of D without S. Line 17 lets the first job draw `D - I`, although S has been refused already:
`D - S - I`. As printed, some elements are drawn up to 1.8 times as often as others. `tests/orders/test_dependent.py`
computes the law of both in fractions. A drawn element takes its new level once; the text of appendix C would add it to
several vertices.

The paper's tree of intersections over the jobs in that order is one number for each element, its *level*: the first k
for which all of the jobs k, k + 1, ... need the element; the number of jobs, if the last job does not. The paper's
vertex `V_k` is the set of elements of level k, its intersection of the jobs k to the last one is the set of elements of
level k or below, and a leaf is the set that a job needs and whose level is above it. So the time to add a job, remove a
job or draw depends on the number of elements, not on elements times jobs, and no element is in two sets.

`Tree` owns the sets of elements that its jobs need. One thread owns a tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.random import Words
from brand.reprs import Reprs

MOST_JOBS: Final = 255
"""A level is one byte."""
_REFUSALS: Final = 32
"""The most refused candidates in a row; then the allowed ones are listed."""


class Need(Reprs, shows="left"):
    """The elements that one job has not drawn in its epoch."""

    def __init__(self, needed: NDArray[np.bool_]) -> None:
        self._bits = bytearray(np.packbits(needed, bitorder="little").tobytes())
        self._items = np.flatnonzero(needed).astype(np.int32)
        self._listed = len(self._items)
        self._view = self._items.data
        self.left = len(self._items)
        """Number of elements that the job needs."""

    def __contains__(self, element: int) -> bool:
        return bool(self._bits[element >> 3] >> (element & 7) & 1)

    def mask(self, elements: int) -> NDArray[np.bool_]:
        packed = np.frombuffer(self._bits, np.uint8)
        return np.unpackbits(packed, count=elements, bitorder="little").view(np.bool_)

    def needs(self, elements: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether the job needs each of some elements, same shape."""
        bits: NDArray[np.bool_] = np.frombuffer(self._bits, np.uint8)[elements >> 3] >> (elements & 7) & 1 == 1
        return bits

    def listed(self, at: int) -> int | None:
        """Return the element at a place of the draw list, 0 <= `at` < `places`; None if it is drawn already.

        A drawn element is removed from the list, so the place has another element afterwards.
        """
        element = self._view[at]
        if element in self:
            return element
        self._listed -= 1
        self._view[at] = self._view[self._listed]
        return None

    @property
    def places(self) -> int:
        return self._listed

    def above(self, levels: NDArray[np.uint8], bound: int) -> NDArray[np.int32]:
        """Return the elements of a level above `bound` that the job needs, ascending."""
        items = self._items[: self._listed]
        return np.sort(items[self.needs(items) & (levels[items] > bound)])

    def drawn(self, element: int) -> None:
        """Note that the job has drawn an element that it needed."""
        self._bits[element >> 3] &= ~(1 << (element & 7))
        self.left -= 1


class Tree(Reprs, shows="levels jobs"):
    """The levels of `elements` elements, for any number of jobs up to `MOST_JOBS`."""

    def __init__(self, elements: int) -> None:
        self.levels: NDArray[np.uint8] = np.zeros(elements, np.uint8)
        """Level of each element, shape (elements,)."""
        self.jobs: list[Need] = []
        """The jobs, in the tree's order."""

    def insert(self, needed: NDArray[np.bool_]) -> Need:
        """Add a job. `needed`: the elements that it will draw, shape (elements,). Raises ValueError at `MOST_JOBS`."""
        if len(self.jobs) == MOST_JOBS:
            raise ValueError(f"at most {MOST_JOBS} jobs share a tree")
        job = Need(needed)
        rank = next((k for k, other in enumerate(self.jobs) if other.left > job.left), len(self.jobs))
        below = self.levels <= rank
        self.levels[~below] += 1
        self.levels[below & ~needed] = rank + 1  # a chain that the new job breaks begins behind it
        self.jobs.insert(rank, job)
        return job

    def remove(self, job: Need) -> None:
        """Remove a job. Chains that only this job broke are joined, so other jobs still share their elements."""
        rank = self.jobs.index(job)
        self.jobs.pop(rank)
        freed = np.flatnonzero(self.levels == rank + 1)
        self.levels[self.levels > rank] -= 1
        for k in range(rank - 1, -1, -1):
            freed = freed[self.jobs[k].needs(freed)]
            self.levels[freed] = k

    def ranked(self, jobs: Sequence[Need]) -> list[Need]:
        """Return the jobs by the number of elements left. If these are all jobs, that becomes the tree's order."""
        if len(jobs) == len(self.jobs):
            if any(first.left > second.left for first, second in zip(self.jobs, self.jobs[1:], strict=False)):
                self.jobs.sort(key=lambda job: job.left)
                self.levels = levels_of([job.mask(len(self.levels)) for job in self.jobs], len(self.levels))
            return self.jobs
        return sorted((job for job in self.jobs if job in jobs), key=lambda job: job.left)

    def levels_among(self, jobs: Sequence[Need]) -> NDArray[np.uint8]:
        """Return the levels of a tree of these jobs only, shape (elements,); the tree's own array if they are all."""
        if len(jobs) == len(self.jobs):
            return self.levels
        return levels_of([job.mask(len(self.levels)) for job in jobs], len(self.levels))

    def settle(self, elements: NDArray[Any]) -> None:
        """Compute the levels of elements that jobs have drawn."""
        self.levels[elements] = levels_of([job.needs(elements) for job in self.jobs], len(elements))


def levels_of(needed: Iterable[NDArray[np.bool_]], elements: int) -> NDArray[np.uint8]:
    """Return levels by their definition, shape (elements,). `needed`: for each job in order, a mask of its elements."""
    of_jobs = list(needed)
    levels = np.full(elements, len(of_jobs), np.uint8)
    all_need = np.ones(elements, np.bool_)
    for k in range(len(of_jobs) - 1, -1, -1):
        all_need &= of_jobs[k]
        levels[all_need] = k
    return levels


def draw_rounds(tree: Tree, ready: Sequence[Need], rounds: int, words: Words) -> NDArray[np.int32]:
    """Draw `rounds` elements for each ready job, shape (rounds, len(ready)). Raises ValueError if a job needs fewer."""
    if any(job.left < rounds for job in ready):
        raise ValueError(f"{rounds} rounds of jobs that need {min(job.left for job in ready)} elements")
    jobs = tree.ranked(ready)
    levels = tree.levels_among(jobs)
    picks = _draw(jobs, levels, rounds, words)
    if levels is not tree.levels:
        tree.settle(np.unique(picks))
    return picks[:, [next(k for k, job in enumerate(jobs) if job is each) for each in ready]]


def _draw(jobs: Sequence[Need], levels: NDArray[np.uint8], rounds: int, words: Words) -> NDArray[np.int32]:
    """Draw for jobs in their order. Updates `levels`."""
    count, level_of = len(jobs), levels.data
    picks = np.empty((rounds, count), np.int32)
    cells: list[int] = np.bincount(levels, minlength=count + 1).tolist()
    left = [job.left for job in jobs]
    for turn in range(rounds):
        drawn, first, bound, refused = [], 0, -1, 0
        while first < count:
            element = _candidate(jobs[first], levels, level_of, bound, words)
            end = first + 1
            if level_of[element] <= first:  # all jobs behind the first one need it, too
                while end < count and words.below(left[end] - refused) < left[end - 1] - refused:
                    end += 1
            drawn.append((first, end, element))
            refused, bound, first = sum(cells[: first + 1]), first, end
        # Only after the round: its probabilities are those of the sets at its beginning.
        for first, end, element in drawn:
            picks[turn, first:end] = element
            for job in jobs[first:end]:
                job.drawn(element)
            level = level_of[element]
            if level < end:
                cells[level] -= 1
                cells[end] += 1
                level_of[element] = end
        left = [each - 1 for each in left]
    return picks


def _candidate(job: Need, levels: NDArray[np.uint8], level_of: Any, bound: int, words: Words) -> int:
    """Return an element that the job needs, of a level above `bound`; each with the same probability.

    A refused candidate is replaced by one at a fresh place of the list. The next one in a shuffled list would make the
    following draws predictable.
    """
    refusals = 0
    while refusals < _REFUSALS:
        element = job.listed(words.below(job.places))
        if element is None:
            continue
        if level_of[element] > bound:
            return element
        refusals += 1
    allowed = job.above(levels, bound)
    return int(allowed[words.below(len(allowed))])
