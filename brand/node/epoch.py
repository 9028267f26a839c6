"""How far is one epoch of one order: what must still be read, what lies ready, what was drawn?

Each sample of the epoch is in one of three states: `due` (its read has not happened yet), `held` (in memory for this
epoch), or neither: drawn, given up, or never to be held; who asks for it then is sent to storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.protocol.plan import Plan


class Epoch:
    """The progress of one epoch. `read_of` is the read that brings each place in (`read_of_sample`)."""

    def __init__(self, plan: Plan, read_of: NDArray[Any], without: NDArray[np.bool_], start: int = 0) -> None:
        samples = len(plan.sample_of)
        self.plan, self.read_of = plan, read_of
        self.start = start
        """Positions before it are not asked for."""
        self.begun = 0
        """How often it was begun; 0: nobody has yet, it is read ahead."""
        self.dropped = False
        self.replicas = 1
        self.drawn = 0
        self.asked: dict[int, int] = {}
        """The highest position that each rank has asked for."""
        self.held = np.zeros(samples, np.bool_)
        self.due = ~without
        self.due[plan.sample_of[:start]] = False
        wanted = np.bincount(read_of[self.due], minlength=len(plan.reads))
        self._todo = np.flatnonzero(wanted)
        self._at = 0

    @property
    def next_read(self) -> int | None:
        """Number of the next read; None where all are on their way or done."""
        return int(self._todo[self._at]) if self._at < len(self._todo) else None

    def advance(self) -> None:
        """The next read is on its way, or not needed."""
        self._at += 1

    def deadline(self) -> int:
        """Position by which the next read must be done."""
        number = self.next_read
        return len(self.plan.sample_of) if number is None else int(self.plan.reads["deadline"][number])

    def note_asked(self, positions: NDArray[np.int64]) -> None:
        """A rank asked for these."""
        rank = int(positions[0]) % self.replicas
        self.asked[rank] = max(self.asked.get(rank, -1), int(positions.max()))

    def skipped_before(self, waiting: Iterator[NDArray[np.int64]]) -> int:
        """The position before which no rank asks any more, given the positions that are asked for just now."""
        fronts = {rank: self.asked.get(rank, self.start) for rank in range(self.replicas)}
        lowest: dict[int, int] = {}
        for positions in waiting:
            rank = int(positions[0]) % self.replicas
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
