"""Which samples are evicted from the cache folder, and when? Samples without a place, once they are read for this
epoch.

The choice for an epoch is made while the epoch before it is still read. It takes effect with the first read of its
epoch: until then, the folder holds the samples that the epoch before still reads from it.
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
    """The samples to evict from one folder. Masks have the shape (samples,)."""

    def __init__(self, samples: int) -> None:
        self._coming: _EvictionChoice | None = None
        """A choice that is not in effect yet."""
        self._going = np.zeros(samples, np.bool_)
        """Whether each sample is evicted when it is read."""
        self.moves = False
        """Whether samples are evicted at all."""

    def __repr__(self) -> str:
        return f"Leaving({np.count_nonzero(self._going)} go when they are read)"

    @property
    def next_placed(self) -> Mask | None:
        """Mask of the samples with a place by the choice that is not in effect yet. None if there is no such choice."""
        return None if self._coming is None else self._coming.placed

    def stop(self) -> None:
        """Evict nothing from now on."""
        self._coming, self.moves = None, False
        self._going[:] = False

    def store_choice(self, since: int, placed: Mask) -> None:
        """Store a choice. It takes effect with the first read of epoch number `since`, or of a later one."""
        self._coming, self.moves = _EvictionChoice(since, placed), True

    def is_due(self, number: int) -> bool:
        """Return whether the stored choice takes effect with this read, for epoch number `number`."""
        return self._coming is not None and number >= self._coming.since

    def apply(self, held: Mask, to_read: Mask) -> tuple[Mask, NDArray[np.intp]]:
        """Put the stored choice into effect. Return the mask of samples with a place, and the places to evict at once.

        `held` is a mask of the folder's samples, `to_read` of the samples that epochs still have to read.
        """
        assert self._coming is not None
        placed, self._coming = self._coming.placed, None
        self._going = held & ~placed
        now = np.flatnonzero(self._going & ~to_read)
        self._going[now] = False
        return placed, now

    def on_read(self, places: NDArray[Any]) -> NDArray[Any]:
        """Note that these samples are in memory. Return those of them to evict now."""
        going: NDArray[Any] = places[self._going[places]]
        self._going[going] = False
        return going
