"""Does somebody read a whole data set in random order, sample by sample? Then they should hear of `BrandSampler`."""

from __future__ import annotations

import logging
import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from brand.printable import printable

ENOUGH: Final = 5000
"""Samples that must have been read in random order before anything is said."""

log = logging.getLogger("brand")


_said = mmap.mmap(-1, 1)
"""Whether it was said: one byte that forked workers share."""


class ReadingHabit:
    """Notes what is read exactly, and says once what drawing would change."""

    def __init__(self) -> None:
        self._jumps = 0

    def note(self, indices: NDArray[np.int64], data_set: Any) -> None:
        """These were read exactly."""
        if _said[0] or len(indices) < 2:
            return
        self._jumps += int(np.count_nonzero(np.abs(np.diff(indices)) > 1))
        worker = get_worker_info()
        if self._jumps >= ENOUGH and (worker is None or worker.id == 0):
            _said[0] = 1
            log.warning(
                "%d samples of %s were read in random order, one by one. Give the DataLoader "
                "sampler=BrandSampler(data_set) in place of shuffle=True: it draws every sample once an epoch, in "
                "random order, at the speed of sequential storage. (This is said once.)",
                self._jumps,
                printable(str(data_set.path)),
            )
