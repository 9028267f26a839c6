"""Stored bytes of many samples in one memory: are they intact, and what do they decode to? One call handles all of
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.formats.compression import Decompressor
from brand.formats.record import RecordDecoder
from brand.formats.records import checksums, slices
from brand.formats.values import Buffer


@dataclass(frozen=True, slots=True)
class StoredSamples:
    """Samples as they are stored, not yet unpacked."""

    memory: NDArray[np.uint8]
    starts: NDArray[np.int64]
    """Offset of each sample in `memory`."""
    rows: NDArray[np.void]
    """The samples' rows of the index, of dtype `ROW`: size, raw size, checksum, index."""

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, which: NDArray[Any] | slice) -> StoredSamples:
        """Return some of the samples; `which` holds their positions, or is a mask or a slice."""
        return StoredSamples(self.memory, self.starts[which], self.rows[which])

    def pieces(self) -> list[Buffer]:
        return slices(self.memory, self.starts, self.rows["size"].astype(np.int64))

    def right(self) -> NDArray[np.bool_]:
        """Return whether each sample has the recorded checksum, shape (samples,)."""
        found = checksums(self.memory, self.starts, self.rows["size"].astype(np.int64))
        right: NDArray[np.bool_] = found == self.rows["checksum"]
        return right

    def view(self, number: int) -> memoryview:
        """Return the stored bytes of one sample."""
        start = int(self.starts[number])
        return self.memory.data[start : start + int(self.rows["size"][number])]

    def columns(self, decode: RecordDecoder, decompressor: Decompressor) -> list[NDArray[Any] | list[Any]]:
        """Return the fields that `decode` makes: numbers as arrays, other fields as lists.

        Raises ValueError or RecursionError if a sample does not unpack or decode.
        """
        sizes, raw_sizes = self.rows["size"].astype(np.int64), self.rows["raw_size"].astype(np.int64)
        return decode.columns(*decompressor.unpack_all(self.memory, self.starts, sizes, raw_sizes), raw_sizes)
