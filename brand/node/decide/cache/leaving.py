"""Which samples leave the cache folder, and when? Those that have no place any more, once they are read for this epoch.

A choice for an epoch is made while the epoch before it is still read. It holds from the first read of its epoch on:
until then, the samples stay that the epoch before still reads from the folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class _EvictionChoice:
    since: int
    placed: Mask


class Leaving:
    """The samples of one folder that leave it. Masks have the shape (samples,)."""

    def __init__(self, samples: int) -> None:
        self._coming: _EvictionChoice | None = None
        """A choice that does not hold yet."""
        self._going = np.zeros(samples, np.bool_)
        """Samples that go when they are read."""
        self.moves = False
        """Whether samples leave the folder at all."""

    def __repr__(self) -> str:
        return f"Leaving({np.count_nonzero(self._going)} go when they are read)"

    @property
    def next_placed(self) -> Mask | None:
        """What has a place by the choice that does not hold yet; None: there is none."""
        return None if self._coming is None else self._coming.placed

    def stays(self) -> None:
        """From now on nothing leaves."""
        self._coming, self.moves = None, False
        self._going[:] = False

    def follows(self, since: int, placed: Mask) -> None:
        """A choice is made: it holds from the first read on of epoch number `since`, or of a later one."""
        self._coming, self.moves = _EvictionChoice(since, placed), True

    def takes_hold(self, number: int) -> bool:
        """Whether the choice that does not hold yet begins to hold with this read, for epoch number `number`."""
        return self._coming is not None and number >= self._coming.since

    def begin(self, held: Mask, to_read: Mask) -> tuple[Mask, NDArray[np.intp]]:
        """The choice holds from now on. Returns what has a place, and the places of samples that go at once.

        `held` is what the folder holds, `to_read` what epochs have still to read.
        """
        assert self._coming is not None
        placed, self._coming = self._coming.placed, None
        self._going = held & ~placed
        now = np.flatnonzero(self._going & ~to_read)
        self._going[now] = False
        return placed, now

    def read(self, places: NDArray[Any]) -> NDArray[Any]:
        """These samples are in memory. Returns those of them that go now."""
        going: NDArray[Any] = places[self._going[places]]
        self._going[going] = False
        return going
