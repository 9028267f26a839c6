"""Does a user read in a way that is much slower than another way? If so, the log says it, once.

Two habits are slow. A user reads a whole data set by random access, in random order: a `BrandSampler` would fetch it. A
wrapper around the data set fetches samples one by one: a transform does the same without a request for each sample.
"""

from __future__ import annotations

import logging
import mmap
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from brand.errors import counted
from brand.printable import printable

ENOUGH: Final = 5000
"""Number of samples read in random order after which the log has a hint."""
ENOUGH_SINGLE: Final = 200
"""Number of consecutive draws of a single sample after which the log has a hint."""

log = logging.getLogger("brand")


_said = mmap.mmap(-1, 2)
"""Whether the log has the hint about reads, and the hint about draws: two bytes that forked workers share."""


class AccessHint:
    """Counts reads and draws of a data set, and logs a hint once if another way would be faster."""

    def __init__(self) -> None:
        self._jumps = self._single = 0

    def __repr__(self) -> str:
        return f"AccessHint({counted(self._jumps, 'jump')}, {counted(self._single, 'single draw')})"

    def note_draw(self, count: int, name: str) -> None:
        """Count a request that has drawn `count` samples."""
        self._single = self._single + 1 if count == 1 else 0
        if self._single == ENOUGH_SINGLE and not _said[1]:
            _said[1] = 1
            log.warning(
                "%s is asked for one sample at a time, a request for each, as a wrapper around it does. Use "
                "transform= in place of the wrapper: it gets the whole sample, with its own `index` and `key`. A "
                "BrandSampler yields positions, not indices: a table of the wrapper finds nothing, or a default, for "
                "them. (This is said once.)",
                name,
            )

    def note(self, indices: NDArray[np.int64], name: str) -> None:
        """Count direct reads of the samples with these indices."""
        if _said[0] or len(indices) < 2:
            return
        self._jumps += int(np.count_nonzero(np.abs(np.diff(indices)) > 1))
        worker = get_worker_info()
        if self._jumps >= ENOUGH and (worker is None or worker.id == 0):
            _said[0] = 1
            log.warning(
                "%d samples of %s were read in random order, one by one. Give the DataLoader "
                "sampler=BrandSampler(dataset) in place of shuffle=True: it fetches every sample once an epoch, in "
                "random order, at the speed of sequential storage. (This is said once.)",
                self._jumps,
                printable(name),
            )
