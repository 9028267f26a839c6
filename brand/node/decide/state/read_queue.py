"""Which reads of a plan have not started for an epoch, in the order of their deadlines?

A plan may have a read for each sample. The queue therefore stores one bit for each read, and numbers only for the next
reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.states import EARLY, HELD, SampleStates
from brand.orders.base.dtypes import PackedMask, index_dtype
from brand.orders.base.plan import EpochPlan
from brand.orders.base.random import blocks

FOUND: Final = 1 << 13
"""Reads that the queue scans at a time to find the next ones."""
PASSED: Final = 256
"""Reads that the queue scans at a time to find the next one that it does not skip."""


class ReadQueue:
    """Numbers of reads of one plan. The first is the next to start."""

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan
        self._soon: NDArray[Any] = np.arange(0, dtype=np.int32)
        """Numbers of the reads that start next, from entry `_at` on."""
        self._at = 0
        self._later, self._end = PackedMask(np.zeros(0, np.bool_)), 0
        """Whether each read is to start. Valid from read number `_end` on."""
        self._read_of: NDArray[Any] | None = None
        """The read of each place, if the plan's job shares."""
        self._passed: NDArray[np.bool_] | None = None
        """Whether the queue skips the reads of each chunk, shape (chunks,). None if it skips none."""

    def __repr__(self) -> str:
        return f"ReadQueue({len(self.rest())} of {self._plan.read_count} reads are to be started)"

    @property
    def next(self) -> int | None:
        """Number of the next read. None if no read is left."""
        self._look(1)
        if self._passed is not None:
            self._go_on(self._passed)
        return int(self._soon[self._at]) if self._at < len(self._soon) else None

    @property
    def deadline(self) -> int:
        """Position before which the next read must be done. The end of the epoch if no read is left."""
        number = self.next
        return len(self._plan.sample_of) if number is None else self._plan.deadline(number)

    def rest(self) -> NDArray[Any]:
        """Return the numbers of all reads that have not started."""
        return np.concatenate((self._soon[self._at :], self._numbers(len(self._later))))

    def upcoming(self, most: int) -> NDArray[Any]:
        """Return the numbers of the next reads, at most `most`."""
        self._look(most)
        return self._soon[self._at : self._at + most]

    def fill(self, states: SampleStates, read_of: NDArray[Any], mine: NDArray[np.bool_] | None) -> None:
        """Replace the queue by the reads of samples that are due.

        `read_of` is `read_of_sample(plan)`. `mine`: whether this node reads each place, shape (samples,). None if it
        reads all.
        """
        for _ in self.filling(states, read_of, mine):
            pass

    def filling(self, states: SampleStates, read_of: NDArray[Any], mine: NDArray[np.bool_] | None) -> Iterator[int]:
        """Do the work of `fill` in steps. Yield the number of samples of each step."""
        wanted = np.zeros(self._plan.read_count, np.bool_)
        self._read_of = read_of if self._plan.shares else None
        for part in blocks(len(read_of)):
            due = states.due(part) | states.are(EARLY, part)
            if self._plan.shares:  # samples that other jobs have read or are reading may be freed
                due |= states.are(HELD, part) | states.waited_for(part)
            if mine is not None:
                due &= mine[part]
            wanted[read_of[part][due]] = True
            yield len(due)
        self._start(wanted)

    def deadlines(self, places: NDArray[Any]) -> NDArray[Any]:
        """Return the deadline of the read of each place, in a plan whose job shares."""
        assert self._read_of is not None
        assert self._plan.reads is not None
        found: NDArray[Any] = self._plan.reads["deadline"][self._read_of[places]]
        return found

    def put_back(self, places: NDArray[Any]) -> None:
        """Queue the reads of these places again, even if they have started, in a plan whose job shares."""
        assert self._read_of is not None
        todo = np.zeros(self._plan.read_count, np.bool_)
        todo[self.rest()] = todo[self._read_of[places]] = True
        self._start(todo)

    def pass_over(self, chunks: NDArray[np.integer[Any]]) -> None:
        """Skip the reads of these chunks, as no sample in them is due. `fill` and `put_back` end this."""
        if self._plan.reads is not None:
            if self._passed is None:
                self._passed = np.zeros(self._plan.mapping.chunks, np.bool_)
            self._passed[chunks] = True

    def pop(self, count: int = 1) -> None:
        """Remove the next reads, which have started or are not needed."""
        self._at += count

    def _start(self, wanted: NDArray[np.bool_]) -> None:
        """Replace the queue by these reads, shape (reads,)."""
        self._later, self._end = PackedMask(wanted), 0
        self._soon, self._at, self._passed = self._soon[:0], 0, None

    def _go_on(self, passed: NDArray[np.bool_]) -> None:
        """Advance to the next read of a chunk that is not skipped."""
        reads = self._plan.reads
        assert reads is not None
        while self._at < len(self._soon):
            soon = self._soon[self._at : self._at + PASSED]
            needed = np.flatnonzero(~passed[reads["chunk"][soon]])
            self._at += int(needed[0]) if len(needed) else len(soon)
            if len(needed):
                return
            self._look(1)

    def _look(self, most: int) -> None:
        """Find the numbers of the next reads, at least `most` if there are that many."""
        while len(self._soon) - self._at < most and self._end < len(self._later):
            more = self._numbers(self._end + FOUND)
            self._soon, self._at = np.concatenate((self._soon[self._at :], more)), 0
            self._end += FOUND

    def _numbers(self, end: int) -> NDArray[Any]:
        """Return the numbers of the reads to start, from `_end` to `end` - 1."""
        numbers = np.flatnonzero(self._later.part(slice(self._end, end))) + self._end
        return numbers.astype(index_dtype(self._plan.read_count))
