"""Arrays that take little memory: the smallest types of numpy that hold given numbers, and a mask of bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.reprs import Reprs

Mask = NDArray[np.bool_]


def index_dtype(count: int) -> type[np.int32] | type[np.int64]:
    """Return the smaller type that holds the numbers -1 to `count`."""
    return np.int32 if count < 1 << 31 else np.int64


def count_dtype(most: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest type that holds the numbers 0 to `most`."""
    return np.min_scalar_type(most)


def smallest(counts: NDArray[np.integer[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """Return numbers, none below 0, in the smallest type that holds them all."""
    return counts.astype(count_dtype(int(counts.max(initial=0))), copy=False)


class PackedMask(Reprs, shows="_count"):
    """A mask that does not change, with one bit for each entry instead of one byte."""

    def __init__(self, mask: Mask) -> None:
        self._bits, self._count = np.packbits(mask, bitorder="little"), len(mask)

    def __len__(self) -> int:
        return self._count

    def at(self, places: NDArray[np.integer[Any]]) -> Mask:
        found: Mask = self._bits[places >> 3] >> (places & 7) & 1 != 0
        return found

    def part(self, part: slice = slice(None)) -> Mask:
        """Return the entries of a slice without steps, as a mask of its own."""
        start, stop, _ = part.indices(self._count)
        bits = np.unpackbits(self._bits[start // 8 : -(-stop // 8)], bitorder="little")
        return bits[start % 8 : start % 8 + max(0, stop - start)].view(np.bool_)

    def without(self, chunks: NDArray[np.integer[Any]], chunk_size: int) -> PackedMask:
        """Return the mask without the entries of these chunks."""
        mask = self.part()
        mask[np.isin(np.arange(len(mask)) // chunk_size, chunks)] = False
        return PackedMask(mask)
