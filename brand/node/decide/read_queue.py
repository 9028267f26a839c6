"""Which reads of a plan have not started for an epoch, in the order of their deadlines?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.protocol.plan import Plan


class ReadQueue:
    """Numbers of reads of one plan. The first is the next to start."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._todo: NDArray[np.intp] = np.arange(0)
        self._at = 0

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

    def rest(self) -> NDArray[np.intp]:
        """Numbers of all reads that have not started."""
        return self._todo[self._at :]

    def upcoming(self, most: int) -> NDArray[np.intp]:
        """Numbers of the next reads, at most `most`."""
        return self._todo[self._at : self._at + most]

    def fill(self, wanted: NDArray[np.bool_]) -> None:
        """From now on start the reads of `wanted`, shape (reads,), and no others."""
        self._todo, self._at = np.flatnonzero(wanted), 0

    def put_back(self, numbers: NDArray[np.integer[Any]]) -> None:
        """Reads that have started, or were not needed, are to be started again at their time."""
        self._todo, self._at = np.union1d(self.rest(), numbers), 0

    def pop(self, count: int = 1) -> None:
        """The next reads have started, or are not needed."""
        self._at += count
