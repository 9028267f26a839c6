"""How much do several jobs read that draw by JOADER's rule, each at its own speed, epoch after epoch?

A round is the time of one draw of the fastest job. In a round the jobs draw that are due (partial sampling,
`brand.protocol.dependent`). Memory holds single elements; without room, the one leaves that the fewest jobs still need
in their epochs. A job that begins an epoch needs all elements of its part again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.protocol.dependent import draw_rounds
from brand.protocol.random import Stream, Words
from brand.protocol.tree import Need, Tree
from brand.simulate.joining import Runner
from brand.simulate.sharing import Counted

_ROUNDS: Final = 256
"""Rounds that are looked ahead for jobs that are due together."""


def drawn_and_read(
    runners: Sequence[Runner], slots: int, seed: int, after: float, until: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What each job draws and what it reads between two times, each shape (jobs,), with room for so many elements.

    Times are in draws of a job of speed 1, and no job is faster. Of jobs that draw an element in one round, the first
    one reads it.
    """
    elements = len(runners[0].part)
    tree, words = Tree(elements), Words(seed, Stream.ROUNDS)
    cache = Counted(max(1, slots), [0] * elements)
    needs = dict[int, Need]()
    drawn, read = np.zeros(len(runners), np.int64), np.zeros(len(runners), np.int64)
    for now, due, rounds in _due(runners, until):
        left = rounds
        while left:
            for job in due:
                if job not in needs:
                    needs[job] = tree.insert(runners[job].part)
                    cache.want(np.flatnonzero(runners[job].part).tolist())
            some = min(left, *(needs[job].left for job in due))
            for turn, picks in enumerate(draw_rounds(tree, [needs[job] for job in due], some, words).tolist()):
                counts = now + rounds - left + turn >= after
                for element in dict.fromkeys(picks):
                    missed = cache.miss(element)
                    cache.drawn(element, picks.count(element))
                    read[due[picks.index(element)]] += missed and counts
                if counts:
                    drawn[due] += 1
            for job in due:
                if not needs[job].left:
                    tree.remove(needs.pop(job))
            left -= some
    return drawn, read


def _due(runners: Sequence[Runner], until: float) -> Iterator[tuple[int, list[int], int]]:
    """Times, the jobs that draw from then on, and for how many rounds."""
    now = int(min(runner.start for runner in runners))
    while now < until:
        rounds = np.arange(now, min(now + _ROUNDS, int(np.ceil(until))) + 1)
        done = [np.clip(np.ceil((rounds - runner.start) * runner.speed), 0, _ends(runner)) for runner in runners]
        due = np.diff(np.array(done), axis=1) > 0
        changes = [0, *(np.flatnonzero((due[:, 1:] != due[:, :-1]).any(axis=0)) + 1).tolist(), len(rounds) - 1]
        for first, end in zip(changes, changes[1:], strict=False):
            jobs = np.flatnonzero(due[:, first]).tolist()
            if jobs:
                yield now + first, jobs, end - first
        now = int(rounds[-1])


def _ends(runner: Runner) -> float:
    """Draws after which the job ends."""
    return runner.epochs * runner.draws
