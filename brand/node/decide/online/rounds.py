"""What do jobs with online orders draw next? JOADER's rounds, in pieces (`brand.orders.joader.tree`).

A job takes part in a piece of rounds while it has fewer positions decided ahead than its upper level, and a piece is
drawn as soon as one job is below its lower level. So jobs that draw about equally fast draw together, although each
of them asks at its own times. `Rounds` owns one tree for all jobs that draw together, and no epoch, clock or client.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from numpy.typing import NDArray

from brand.node.decide.state.epoch_table import Key
from brand.orders.base.random import RandomStream, Words
from brand.orders.joader.growing import Growing
from brand.orders.joader.tree import MOST_JOBS, Need, Tree, draw_rounds

PIECE: Final = 256
"""Limit on the rounds of a piece: the server's loop does nothing else meanwhile."""
_STEPS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Levels:
    """How far the order of a job has to be decided."""

    low: int
    """Positions before this one are decided at once."""
    high: int
    """Positions before this one may be decided in the same rounds as those of other jobs; `low` or more."""


@dataclass(eq=False, slots=True)
class _Group:
    """Jobs that draw together."""

    tree: Tree
    words: Words
    jobs: dict[Key, tuple[Growing, Need]] = field(default_factory=dict)
    entered: int = 0
    """Number of jobs that have entered while other jobs were present."""

    def add(self, key: Key, seed: int, growing: Growing) -> None:
        """Add a job. The stream of random words starts again."""
        self.entered = self.entered + 1 if self.jobs else 0
        need = self.tree.insert(growing.open())
        self.jobs[key] = growing, need
        self.words = Words(seed, RandomStream.ROUNDS, key[1], need.left * _STEPS + self.entered % _STEPS)


class Rounds:
    """The rounds of all jobs of a node, for a data set of `samples`."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._groups: dict[Hashable, _Group] = {}
        """The group of the next step is the first; then it becomes the last."""
        self._group_of: dict[Key, Hashable] = {}

    def __repr__(self) -> str:
        return f"Rounds({', '.join(repr(group.tree) for group in self._groups.values())})"

    def __contains__(self, key: Key) -> bool:
        return key in self._group_of

    def enter(self, key: Key, seed: int, common: Hashable, growing: Growing) -> None:
        """Add a job that begins or continues an epoch. It needs the samples without a position in its order.

        From now on only `step` decides in `growing`. A job that enters alone draws words that seed and epoch fix.
        """
        names = ((seed, common, number) for number in range(len(self._groups) + 1))
        name = next(n for n in names if n not in self._groups or len(self._groups[n].jobs) < MOST_JOBS)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(Tree(self._samples), Words(seed, RandomStream.ROUNDS))
        group.add(key, seed, growing)
        self._group_of[key] = name

    def leave(self, key: Key) -> None:
        name = self._group_of.pop(key, None)
        if name is not None:
            group = self._groups[name]
            group.tree.remove(group.jobs.pop(key)[1])
            if not group.jobs:
                del self._groups[name]

    def is_due(self, levels: Mapping[Key, Levels]) -> bool:
        """Return whether any job has fewer decided positions than it needs."""
        return any(self._in_need(group, levels) for group in self._groups.values())

    def step(self, levels: Mapping[Key, Levels]) -> dict[Key, NDArray[Any]]:
        """Draw one piece of rounds for the jobs of one group. Return the decided samples by job.

        `levels`: of each job that may draw. A job that has its whole order is removed.
        """
        for name, group in list(self._groups.items()):
            needy = self._in_need(group, levels)
            if needy:
                self._groups[name] = self._groups.pop(name)
                return self._piece(group, needy, levels)
        return {}

    def _in_need(self, group: _Group, levels: Mapping[Key, Levels]) -> list[Key]:
        return [key for key, (growing, _) in group.jobs.items() if key in levels and growing.decided < levels[key].low]

    def _piece(self, group: _Group, needy: list[Key], levels: Mapping[Key, Levels]) -> dict[Key, NDArray[Any]]:
        jobs = {key: job for key, job in group.jobs.items() if key in levels and job[0].decided < levels[key].high}
        most = max(levels[key].high - group.jobs[key][0].decided for key in needy)
        rounds = min(PIECE, most, *(need.left for _, need in jobs.values()))
        picks = draw_rounds(group.tree, [need for _, need in jobs.values()], rounds, group.words)
        decided = dict(zip(jobs, picks.T, strict=True))
        for key, (growing, _) in jobs.items():
            growing.decide(decided[key])
            if growing.complete:
                self.leave(key)
        return decided
