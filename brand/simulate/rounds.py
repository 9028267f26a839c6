"""How much do several jobs read that draw by JOADER's rule, each at its own speed, epoch after epoch?

A round is the time of one draw of the fastest job. In a round the jobs draw that are due (partial sampling,
`brand.orders.joader.tree`). Memory holds single elements; if it is full, the element that the fewest jobs still need in
their epochs is evicted. A job that begins an epoch needs all elements of its subset again, and finds what is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.random import RandomStream, Words
from brand.orders.joader.tree import Need, Tree, draw_rounds
from brand.simulate.following import Runner

_ROUNDS: Final = 256
"""Rounds that are planned ahead for jobs that are due together."""


def drawn_and_read(
    runners: Sequence[Runner], slots: int, seed: int, after: float, until: float, *, keeps: bool = True
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the draws and the reads of each job between two times, each shape (jobs,).

    The memory has `slots` elements. Times are in draws of a job of speed 1, and no job is faster. A read that serves
    several draws is divided evenly. `keeps`: whether an element stays that no job needs in its epoch.
    """
    elements = len(runners[0].part)
    tree, words = Tree(elements), Words(seed, RandomStream.ROUNDS)
    cache, count = Counted(max(1, slots), [0] * elements, keeps=keeps), _Count(len(runners))
    needs = dict[int, Need]()
    for first, due, rounds in _due(runners, until):
        now = first
        while now < first + rounds:
            for job in due:
                if job not in needs:
                    needs[job] = tree.insert(runners[job].part)
                    cache.want(np.flatnonzero(runners[job].part).tolist())
            some = min(first + rounds - now, *(needs[job].left for job in due))
            for picks in draw_rounds(tree, [needs[job] for job in due], some, words).tolist():
                for element in dict.fromkeys(picks):
                    if cache.miss(element):
                        count.read(element, counts=now >= after)
                    cache.drawn(element, picks.count(element))
                for job, element in zip(due, picks, strict=True):
                    count.drawn(element, job, counts=now >= after)
                now += 1
            for job in due:
                if not needs[job].left:
                    tree.remove(needs.pop(job))
    return count.result()


class Counted:
    """A cache with eviction `refcnt`. `wanted`: how many jobs need each element."""

    def __init__(self, slots: int, wanted: list[int], *, keeps: bool) -> None:
        self._slots, self._wanted, self._keeps, self._held = slots, wanted, keeps, dict[int, int]()
        self._heap, self._came = list[tuple[int, int, int]](), 0

    def want(self, elements: Iterable[int]) -> None:
        """Note that one more job needs each of these."""
        for element in elements:
            self._wanted[element] += 1
            if element in self._held:
                heapq.heappush(self._heap, (self._wanted[element], self._held[element], element))

    def miss(self, element: int) -> bool:
        """Use an element. Return whether it must be read; then it is cached."""
        if element in self._held:
            return False
        if len(self._held) == self._slots:
            self._leave()
        self._came += 1
        self._held[element] = self._came
        return True

    def _leave(self) -> None:
        while True:
            wanted, came, element = heapq.heappop(self._heap)
            if self._held.get(element) == came and self._wanted[element] == wanted:
                del self._held[element]
                return

    def drawn(self, element: int, jobs: int) -> None:
        """Note that `jobs` jobs have drawn an element. One that nobody needs leaves next, if a place is needed."""
        self._wanted[element] -= jobs
        if not self._wanted[element] and not self._keeps:
            del self._held[element]
            return
        heapq.heappush(self._heap, (self._wanted[element], self._held[element], element))


class _Count:
    """The draws that the last read of each element served."""

    def __init__(self, jobs: int) -> None:
        self._drawn, self._read = [0] * jobs, [0.0] * jobs
        self._served = dict[int, list[int]]()
        """By element, the job of each draw since its last read, if that read counts."""

    def read(self, element: int, *, counts: bool) -> None:
        self._share(element)
        if counts:
            self._served[element] = []

    def drawn(self, element: int, job: int, *, counts: bool) -> None:
        self._drawn[job] += counts
        if element in self._served:
            self._served[element].append(job)

    def result(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        for element in list(self._served):
            self._share(element)
        return np.array(self._drawn), np.array(self._read)

    def _share(self, element: int) -> None:
        served = self._served.pop(element, [])
        for job in served:
            self._read[job] += 1 / len(served)


def _due(runners: Sequence[Runner], until: float) -> Iterator[tuple[int, list[int], int]]:
    """Yield times, the jobs that draw from then on, and for how many rounds."""
    now = int(min(runner.start for runner in runners))
    while now < until:
        rounds = np.arange(now, min(now + _ROUNDS, int(np.ceil(until))) + 1)
        done = [np.ceil((rounds - runner.start) * runner.speed) for runner in runners]
        last = np.array([[runner.epochs * runner.draws] for runner in runners])
        due = np.diff(np.clip(done, 0, last), axis=1) > 0
        changes = [0, *(np.flatnonzero((due[:, 1:] != due[:, :-1]).any(axis=0)) + 1).tolist(), len(rounds) - 1]
        for first, end in pairwise(changes):
            jobs = np.flatnonzero(due[:, first]).tolist()
            if jobs:
                yield now + first, jobs, end - first
        now = int(rounds[-1])
