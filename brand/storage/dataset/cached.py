"""Which samples does the page cache hold at the moment? They are copied out of it at once, without a read of the
storage.

A data set that was just written, or that the last training has read, is in memory already. A server would only copy it
from the page cache into its own fresh pages, which cost more than the copy. So clients copy such samples themselves
(`brand.node.client.direct_hits`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.native import CORE, XXH3
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.crew import Crew
from brand.storage.io.files import Range, RangeReader, plenty_open
from brand.storage.io.location import Collected, FolderLocation

LEAST_BYTES: Final = 4096
"""Minimum mean size of samples for one system call each. Smaller samples are read faster many at a time."""
LEAST_DATA: Final = 64 << 20
"""Minimum size of the data set. A smaller one is soon in the server's memory, which serves it faster."""
FEW: Final = 64
"""One sample in this many may be read from storage, as the kernel sometimes reports a cached page as missing."""


class CachedSamples(Reprs, shows="_data.name"):
    """The samples of a data set in files, for one thread that fetches, and its `crew`."""

    def __init__(self, data: StoredDataSet, crew: Crew) -> None:
        self._data, self._crew = data, crew
        most = plenty_open() // crew.threads
        self._readers = [RangeReader(data.location.chunk_file, most) for _ in range(crew.threads)]

    def rows(self, places: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """Return the rows of the index for these places. Raises `FormatError`, also if the index contradicts itself."""
        return self._data.agreed_rows_at(places)

    def copy(
        self, places: NDArray[np.integer[Any]], rows: NDArray[np.void], memory: memoryview, starts: NDArray[np.int64]
    ) -> bool:
        """Copy the stored bytes of samples into `memory`, to the offsets `starts`.

        Return whether they were cached and have right checksums. If only a few are not cached, these are read.
        """
        chunks, sizes = places.astype(np.int64) // self._data.header.chunk_size, rows["size"].astype(np.int64)
        if not self._data.are_inside(chunks, rows).all():
            return False  # a direct read raises the error of the index

        offsets, checksums = rows["offset"].astype(np.int64), rows["checksum"]

        def copy(number: int, part: slice) -> bool:
            wanted = _Wanted(chunks[part], offsets[part], memory, starts[part], sizes[part])
            return _copied(self._readers[number], wanted, checksums[part])

        return all(self._crew.each(copy, self._crew.parts(sizes)))


class _Wanted(NamedTuple):
    """Ranges of chunk files to read, and the target of each in `memory`."""

    chunks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    memory: memoryview
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def ranges(self, which: NDArray[np.intp] | slice) -> list[Range]:
        columns = (self.chunks, self.offsets, self.starts, self.sizes)
        wanted = zip(*(column[which].tolist() for column in columns), strict=True)
        return [(chunk, offset, self.memory[start : start + size]) for chunk, offset, start, size in wanted]


def _copied(reader: RangeReader, wanted: _Wanted, checksums: NDArray[np.uint64]) -> bool:
    """Fill ranges. Return whether all but a few were in the page cache, and all have the right checksums."""
    found, there = np.zeros(len(checksums), np.uint64), np.zeros(len(checksums), np.bool_)
    with suppress(OSError):
        if not _read_together(reader, wanted, found, there):
            return False
        late = np.flatnonzero(~there)
        ranges = wanted.ranges(late)
        reader.read_into(ranges)
        found[late] = [xxhash.xxh3_64_intdigest(buffer) for _, _, buffer in ranges]
        return bool((found == checksums).all())
    return False


def _read_together(reader: RangeReader, wanted: _Wanted, found: NDArray[np.uint64], there: NDArray[np.bool_]) -> bool:
    """Read the ranges that are in the page cache, and set their checksums. Return whether these were all but a few.

    Without the core, or if this many files cannot be open at a time, each range costs a system call.
    """
    few = len(there) // FEW
    if CORE is not None and XXH3:
        chunks, which = np.unique(wanted.chunks, return_inverse=True)
        files = reader.descriptors(chunks.tolist())
        if files is not None:
            opened = np.array(files, np.int64)[which]
            offsets, starts, sizes = map(np.ascontiguousarray, (wanted.offsets, wanted.starts, wanted.sizes))
            read: bool = CORE.read_cached(XXH3[0], opened, offsets, wanted.memory, starts, sizes, few, found, there)
            return read
    for number, one in enumerate(wanted.ranges(slice(None))):
        there[number] = reader.filled_from_cache(one)
        if there[number]:
            found[number] = xxhash.xxh3_64_intdigest(one[2])
        elif np.count_nonzero(~there[: number + 1]) > few:
            return False
    return True


def cached_samples(data: StoredDataSet) -> Callable[[Crew], CachedSamples] | None:
    """Return a function that makes a `CachedSamples`; None if the page cache does not help.

    That is so if the data set is not in a folder, is a partition, or if it or its samples are small.
    """
    worth = data.mean_bytes >= LEAST_BYTES and data.mean_bytes * len(data) >= LEAST_DATA
    in_files = isinstance(data.location, FolderLocation | Collected) and data.share is None
    return partial(CachedSamples, data) if worth and in_files else None
