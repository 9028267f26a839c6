"""How are many records before compression passed on without a Python object for each?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.formats.values import Buffer, lengths
from brand.native import CORE, XXH3

SMALL: Final = 4096
"""Pieces below this mean size are first copied together into bytes: slicing bytes is faster than slicing a view."""


@dataclass(frozen=True, slots=True, eq=False)
class Records(Sequence[bytes]):
    """Records at any offsets of one memory. As a sequence it copies each record to bytes of its own."""

    memory: NDArray[np.uint8]
    starts: NDArray[np.int64]
    """Offset of each record in `memory`."""
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, pieces: Sequence[Buffer]) -> Records:
        """Return records of these bytes, which are copied together."""
        return cls.side_by_side(b"".join(pieces), lengths(pieces))

    @classmethod
    def side_by_side(cls, memory: Buffer, sizes: NDArray[np.int64]) -> Records:
        """Return records of these sizes, which fill the memory."""
        return cls(np.frombuffer(memory, np.uint8), np.cumsum(sizes) - sizes, sizes)

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, number: int) -> bytes: ...

    @overload
    def __getitem__(self, number: slice | NDArray[np.intp]) -> Records: ...

    def __getitem__(self, number: int | slice | NDArray[np.intp]) -> bytes | Records:
        if isinstance(number, slice | np.ndarray):
            return Records(self.memory, self.starts[number], self.sizes[number])
        return bytes(self.view(number))

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self.pieces())

    def view(self, number: int) -> memoryview:
        """Return one record, without a copy."""
        start = int(self.starts[number])
        return self.memory.data[start : start + int(self.sizes[number])]

    def pieces(self) -> list[Buffer]:
        """Return the bytes of each record, without a copy if they are large."""
        return slices(self.memory, self.starts, self.sizes)

    def joined(self) -> Buffer:
        """Return the bytes of all records, one after the other: a copy."""
        if CORE is None:
            return b"".join(self.pieces())
        made = np.empty(int(self.sizes.sum()), np.uint8)
        CORE.gather(self.memory, np.ascontiguousarray(self.starts), np.ascontiguousarray(self.sizes), made)
        return made.data

    def checksums(self) -> NDArray[np.uint64]:
        """Return the XXH3 of each record."""
        return checksums(self.memory, self.starts, self.sizes)

    def windows(self, size: int) -> NDArray[np.void]:
        """Return `size` bytes from each of these offsets of the memory on, without a copy."""
        return windows(self.memory, size)


def windows(memory: NDArray[np.uint8], size: int) -> NDArray[np.void]:
    """Return `size` bytes from each of these offsets of a memory on, without a copy."""
    return np.ndarray((max(0, len(memory) - size + 1),), f"V{size}", memory, strides=(1,))


def slices(memory: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[Buffer]:
    """Return pieces of one memory: `sizes[i]` bytes from `starts[i]` on."""
    data: Any = memory.data
    if len(sizes) and int(sizes.mean()) < SMALL:
        if CORE is not None:
            pieces: list[Buffer] = CORE.pieces(memory, np.ascontiguousarray(starts), np.ascontiguousarray(sizes))
            return pieces
        first = int(starts.min())
        data, starts = memory[first : int((starts + sizes).max())].tobytes(), starts - first
    return [data[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]


def checksums(memory: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the XXH3 of each of the pieces that `slices` makes."""
    if CORE is None or not XXH3:
        return np.fromiter(map(xxhash.xxh3_64_intdigest, slices(memory, starts, sizes)), np.uint64, len(starts))
    made = np.empty(len(starts), np.uint64)
    CORE.digests(XXH3[0], memory, np.ascontiguousarray(starts), np.ascontiguousarray(sizes), made)
    return made
