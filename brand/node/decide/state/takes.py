"""Which samples have all ranks of a model-parallel group drawn?

Each of the ranks draws all positions of the group. The epoch holds a sample until the last of them has drawn it, so it
is read once. If one of them is far behind, memory gives up its samples as it does those of skipped positions, and that
rank reads them directly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.reprs import Reprs


class Takes(Reprs, shows="copies"):
    """How often each sample of an epoch was drawn by the ranks of a group of `copies` ranks, by place."""

    def __init__(self, samples: int, copies: int) -> None:
        self.copies = copies
        self._drawn = np.zeros(samples, np.uint8)

    def note(self, places: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Record a draw. Return a mask of the samples that all ranks of the group have drawn."""
        drawn = np.minimum(self._drawn[places], self.copies - 1) + np.uint8(1)
        self._drawn[places] = drawn
        done: NDArray[np.bool_] = drawn == self.copies
        return done
