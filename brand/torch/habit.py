"""Does somebody read a whole data set in random order, sample by sample? Then they should hear of `BrandSampler`."""

from __future__ import annotations

import logging
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ENOUGH: Final = 5000
"""Samples that must have been read in random order before anything is said."""

log = logging.getLogger("brand")


class ReadingHabit:
    """Notes what is read exactly, and says once what drawing would change."""

    _said = False
    """In this process."""

    def __init__(self) -> None:
        self._jumps = 0

    def note(self, indices: NDArray[np.int64], data_set: Any) -> None:
        """These were read exactly."""
        if ReadingHabit._said or len(indices) < 2:
            return
        self._jumps += int(np.count_nonzero(np.abs(np.diff(indices)) > 1))
        if self._jumps >= ENOUGH:
            ReadingHabit._said = True
            log.warning(
                "%d samples of %s were read in random order, one by one. Give the DataLoader "
                "sampler=BrandSampler(data_set) in place of shuffle=True: it draws every sample once an epoch, in "
                "random order, at the speed of sequential storage. (This is said once.)",
                self._jumps,
                data_set.path,
            )
