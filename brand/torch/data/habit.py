"""Does a user read in a way that is much slower than another? Then a line in the log says so, once.

Two habits are slow. A user reads a whole data set exactly, in random order: `BrandSampler` draws it instead. A wrapper
around the data set draws samples one by one: a transform does the same without a request for each sample.
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
"""After so many samples in random order, the log says so."""
ENOUGH_SINGLE: Final = 200
"""After so many draws of one sample, one after the other, the log says so."""

log = logging.getLogger("brand")


_said = mmap.mmap(-1, 2)
"""Whether the log has said so, of reads and of draws: two bytes that forked workers share."""


class AccessHint:
    """Notes reads and draws of a data set, and says once what would be faster."""

    def __init__(self) -> None:
        self._jumps = self._single = 0

    def __repr__(self) -> str:
        return f"AccessHint({counted(self._jumps, 'jump')}, {counted(self._single, 'single draw')})"

    def note_draw(self, count: int, name: str) -> None:
        """One request has drawn `count` samples."""
        self._single = self._single + 1 if count == 1 else 0
        if self._single == ENOUGH_SINGLE and not _said[1]:
            _said[1] = 1
            log.warning(
                "%s is drawn from one sample at a time, a request for each, as a wrapper around it does. Use "
                "transform= in place of the wrapper: it gets the whole sample, with its own `index` and `key`. What a "
                "BrandSampler yields is no index: a table of the wrapper finds nothing, or a default, under it. (This "
                "is said once.)",
                name,
            )

    def note(self, indices: NDArray[np.int64], name: str) -> None:
        """Samples with these indices were read exactly."""
        if _said[0] or len(indices) < 2:
            return
        self._jumps += int(np.count_nonzero(np.abs(np.diff(indices)) > 1))
        worker = get_worker_info()
        if self._jumps >= ENOUGH and (worker is None or worker.id == 0):
            _said[0] = 1
            log.warning(
                "%d samples of %s were read in random order, one by one. Give the DataLoader "
                "sampler=BrandSampler(dataset) in place of shuffle=True: it draws every sample once an epoch, in "
                "random order, at the speed of sequential storage. (This is said once.)",
                self._jumps,
                printable(name),
            )
