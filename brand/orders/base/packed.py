"""A mask with an entry for each sample that takes one bit for each entry instead of one byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class PackedMask:
    """A mask that does not change."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self._bits, self._count = np.packbits(mask, bitorder="little"), len(mask)

    def __repr__(self) -> str:
        return f"PackedMask({np.count_nonzero(self.part())} of {self._count})"

    def __len__(self) -> int:
        return self._count

    def at(self, places: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return the entries at these places, same shape."""
        found: NDArray[np.bool_] = self._bits[places >> 3] >> (places & 7) & 1 != 0
        return found

    def part(self, part: slice = slice(None)) -> NDArray[np.bool_]:
        """Return the entries of a slice without steps, as a mask of its own."""
        start, stop, _ = part.indices(self._count)
        bits = np.unpackbits(self._bits[start // 8 : -(-stop // 8)], bitorder="little")
        return bits[start % 8 : start % 8 + max(0, stop - start)].view(np.bool_)
