"""Which samples do jobs draw next, so that each draws uniformly and they share as many draws as possible? (JOADER, 4.1)

A *round* gives each ready job one element that it still needs. The jobs are ordered from the smallest remaining set to
the largest. The first job draws from its own set. If all jobs behind it need the drawn element, too, the next job
follows and draws the same element, with the probability that keeps its own draw uniform: the ratio of the two sets'
sizes. The first job that does not follow draws from its own set without the elements that all jobs behind the first job
need; and so on.

This is Algorithm 1 of the paper with two corrections. Line 13 sets `c` to the size of D, but the paper's own equation
12 has the size of D without S. Line 17 lets the first job draw `D - I`, although S has been refused already:
`D - S - I`. As printed, some elements are drawn up to 1.8 times as often as others. `tests/orders/test_dependent.py`
computes the law of both in fractions. A drawn element takes its new level once; the text of appendix C would add it to
several vertices.

A job that is not ready is left out of the round (partial sampling): the others draw as if they were alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.random import Words
from brand.orders.joader.tree import Need, Tree

_REFUSALS: Final = 32
"""The most refused candidates in a row; then the allowed ones are listed."""


def draw_rounds(tree: Tree, ready: Sequence[Need], rounds: int, words: Words) -> NDArray[np.int32]:
    """Draw `rounds` elements for each ready job, shape (rounds, len(ready)).

    Raises ValueError if a job needs fewer elements than that.
    """
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
