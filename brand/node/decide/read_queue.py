"""Which reads of a plan have not started for an epoch, in the order of their deadlines?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.states import EARLY, HELD, SampleStates
from brand.protocol.plan import Plan
from brand.protocol.random import blocks


class ReadQueue:
    """Numbers of reads of one plan. The first is the next to start."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._todo: NDArray[np.int32] = np.arange(0, dtype=np.int32)
        self._at = 0
        self._read_of: NDArray[Any] | None = None
        """The read of each place, where the plan's job shares."""

    def __repr__(self) -> str:
        return f"ReadQueue({len(self._todo) - self._at} of {self._plan.read_count} reads are to be started)"

    @property
    def next(self) -> int | None:
        """Number of the next read; None: no read is left."""
        return int(self._todo[self._at]) if self._at < len(self._todo) else None

    @property
    def deadline(self) -> int:
        """Position before which the next read must be done; the end of the epoch where no read is left."""
        number = self.next
        return len(self._plan.sample_of) if number is None else self._plan.deadline(number)

    def rest(self) -> NDArray[np.int32]:
        """Numbers of all reads that have not started."""
        return self._todo[self._at :]

    def upcoming(self, most: int) -> NDArray[np.int32]:
        """Numbers of the next reads, at most `most`."""
        return self._todo[self._at : self._at + most]

    def fill(self, states: SampleStates, read_of: NDArray[Any], mine: NDArray[np.bool_] | None) -> None:
        """From now on start the reads that bring what is due, and no others.

        `read_of` is `read_of_sample(plan)`. `mine`: the places that this node reads, shape (samples,); None: all.
        """
        for _ in self.filling(states, read_of, mine):
            pass

    def filling(self, states: SampleStates, read_of: NDArray[Any], mine: NDArray[np.bool_] | None) -> Iterator[int]:
        """`fill`, some samples at a time. Yields how many these were."""
        wanted = np.zeros(self._plan.read_count, np.bool_)
        self._read_of = read_of if self._plan.shares else None
        for part in blocks(len(read_of)):
            due = states.due(part) | states.are(EARLY, part)
            if self._plan.shares:  # what other jobs have read, or are reading, may be given back
                due |= states.are(HELD, part) | states.waited_for(part)
            if mine is not None:
                due &= mine[part]
            wanted[read_of[part][due]] = True
            yield len(due)
        self._todo, self._at = np.flatnonzero(wanted).astype(np.int32), 0

    def deadlines(self, places: NDArray[Any]) -> NDArray[Any]:
        """The deadline of the read of each place, in a plan whose job shares."""
        assert self._read_of is not None
        assert self._plan.reads is not None
        found: NDArray[np.int64] = self._plan.reads["deadline"][self._read_of[places]]
        return found

    def put_back(self, places: NDArray[Any]) -> None:
        """The reads of these places are to start at their time, even if they did already. As for `deadlines`."""
        assert self._read_of is not None
        todo = np.zeros(self._plan.read_count, np.bool_)
        todo[self.rest()] = todo[self._read_of[places]] = True
        self._todo, self._at = np.flatnonzero(todo).astype(np.int32), 0

    def pop(self, count: int = 1) -> None:
        """The next reads have started, or are not needed."""
        self._at += count
