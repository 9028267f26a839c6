"""How far is one epoch of one run: what must still be read, what lies ready, what was drawn?

Each sample of the epoch is in one of three states: `due` (its read has not happened yet), `held` (in memory for this
epoch), or neither: drawn, given up, of a rank that draws elsewhere, or never to be held; who asks for it then is sent
to storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.protocol.plan import Plan, read_of_sample
from brand.protocol.random import blocks


class Epoch:
    """The progress of one epoch.

    `read_of` is the read that brings each place in (None: found here), `without()` the places that need none, shape
    (samples,). Rank `k` of `replicas` draws the positions `start + k`, `start + k + replicas`, ...; `ranks` are those
    that draw here.
    """

    def __init__(
        self,
        plan: Plan,
        read_of: NDArray[Any] | None,
        without: Callable[[], NDArray[np.bool_]],
        start: int = 0,
        replicas: int = 1,
        ranks: Iterable[int] = (0,),
    ) -> None:
        samples = len(plan.sample_of)
        self.plan, self._without = plan, without
        self._origin, self.replicas = start, replicas
        self.start = start
        """Positions before it are not asked for."""
        self.begun = 0
        """How often it was begun; 0: nobody has yet, it is read ahead."""
        self.dropped = False
        self.drawn = 0
        self.asked_s = math.inf
        """When it was last drawn from; infinity: not yet."""
        self.ranks: set[int] = set()
        self._asked: dict[int, int] = {}
        """The highest position that each rank has asked for."""
        self.held = np.zeros(samples, np.bool_)
        self.due = np.zeros(samples, np.bool_)
        self.coming = np.zeros(samples, np.bool_)
        """Those that are due and whose read is on its way."""
        self._todo, self._at = np.arange(0), 0
        self.expect(ranks, read_of)

    @property
    def next_read(self) -> int | None:
        """Number of the next read; None where all are on their way or done."""
        return int(self._todo[self._at]) if self._at < len(self._todo) else None

    def advance(self, places: NDArray[Any]) -> None:
        """The next read is on its way, for these places; none where it was not needed."""
        self.coming[places] = True
        self._at += 1

    def finish(self, places: NDArray[Any]) -> None:
        """A read of these places has ended."""
        self.coming[places] = False
        self.due[places] = False

    def deadline(self) -> int:
        """Position by which the next read must be done."""
        number = self.next_read
        return len(self.plan.sample_of) if number is None else int(self.plan.reads["deadline"][number])

    def expect(self, ranks: Iterable[int], read_of: NDArray[Any] | None = None) -> None:
        """These ranks, too, draw here; `read_of` where it is at hand (it takes memory to keep, and little time)."""
        new = set(ranks) - self.ranks
        if not new:
            return
        self.ranks |= new
        without = self._without()
        for rank in new:
            places = self.plan.sample_of[self._origin + rank :: self.replicas]
            self.due[places] |= ~without[places] & ~self.held[places]
        read_of = read_of_sample(self.plan) if read_of is None else read_of
        wanted = np.zeros(len(self.plan.reads), np.bool_)
        for part in blocks(len(self.due)):
            wanted[read_of[part][self.due[part] & ~self.coming[part]]] = True
        self._todo, self._at = np.flatnonzero(wanted), 0

    def note_asked(self, positions: NDArray[np.int64], now_s: float) -> None:
        """A rank asked for these."""
        self.asked_s = now_s
        rank = self._rank(positions)
        self._asked[rank] = max(self._asked.get(rank, -1), int(positions.max()))

    def skipped_before(self, waiting: Iterable[NDArray[np.int64]]) -> int:
        """The position before which no rank asks any more, given the positions that are asked for just now."""
        fronts = {rank: self._asked.get(rank, self.start) for rank in self.ranks}
        lowest: dict[int, int] = {}
        for positions in waiting:
            rank = self._rank(positions)
            lowest[rank] = min(lowest.get(rank, len(self.plan.sample_of)), int(positions.min()))
        return min((fronts | lowest).values())

    def give_up_before(self, position: int) -> NDArray[Any]:
        """What lies before `position` is not asked for any more; returns the places that were held for it."""
        before = self.plan.sample_of[:position]
        held: NDArray[Any] = before[self.held[before]]
        self.held[before] = False
        self.due[before] = False
        self.start = max(self.start, position)
        return held

    def _rank(self, positions: NDArray[np.int64]) -> int:
        return (int(positions[0]) - self._origin) % self.replicas
