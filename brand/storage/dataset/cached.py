"""Which samples does the page cache hold just now? They are copied out of it at once, and nothing else is read.

A data set that was just written, or that the last training has read, is in memory already. To read it into pages of a
server would only copy it into fresh pages, which cost more than the copy. So clients take such samples by themselves
(`brand.node.client.taking`).
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
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.crew import Crew
from brand.storage.io.files import Range, RangeReader, plenty_open
from brand.storage.io.location import Collected, FolderLocation

LEAST_BYTES: Final = 4096
"""The mean size of samples that are worth a system call each. Smaller ones come faster many at a time."""
LEAST_DATA: Final = 64 << 20
"""The size of a data set that is worth it. A smaller one is soon in the server's memory, which serves it faster."""
FEW: Final = 64
"""One sample of so many may come from the storage. The kernel sometimes says that a page is missing which is there."""


class CachedSamples:
    """The samples of a data set in files, for one thread that draws, and its `crew`."""

    def __init__(self, data: StoredDataSet, crew: Crew) -> None:
        self._data, self._crew = data, crew
        most = plenty_open() // crew.threads
        self._readers = [RangeReader(data.location.chunk_file, most) for _ in range(crew.threads)]

    def __repr__(self) -> str:
        return f"CachedSamples({self._data.name!r})"

    def rows(self, places: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """Rows of the index for these places. Raises `FormatError`, also where the halves of the index disagree."""
        return self._data.agreed_rows_at(places)

    def copy(
        self, places: NDArray[np.integer[Any]], rows: NDArray[np.void], memory: memoryview, starts: NDArray[np.int64]
    ) -> bool:
        """Copy the stored bytes of samples to where they begin in `memory`.

        Returns whether they were there and have right checksums. A few that are not there are read.
        """
        chunks, sizes = places.astype(np.int64) // self._data.header.chunk_size, rows["size"].astype(np.int64)
        if not self._data.are_inside(chunks, rows).all():
            return False  # an exact read says what is wrong with the index

        offsets, checksums = rows["offset"].astype(np.int64), rows["checksum"]

        def copy(number: int, part: slice) -> bool:
            wanted = _Wanted(chunks[part], offsets[part], memory, starts[part], sizes[part])
            return _copied(self._readers[number], wanted, checksums[part])

        return all(self._crew.each(copy, self._crew.parts(sizes)))


class _Wanted(NamedTuple):
    """Which ranges of chunk files are to be read to where in `memory`."""

    chunks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    memory: memoryview
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def ranges(self, which: NDArray[np.intp] | slice) -> list[Range]:
        """Some of them."""
        columns = (self.chunks, self.offsets, self.starts, self.sizes)
        wanted = zip(*(column[which].tolist() for column in columns), strict=True)
        return [(chunk, offset, self.memory[start : start + size]) for chunk, offset, start, size in wanted]


def _copied(reader: RangeReader, wanted: _Wanted, checksums: NDArray[np.uint64]) -> bool:
    """Fill ranges. Returns whether all but a few were in the page cache, and have the right checksums."""
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
    """Read what the page cache has, and set the checksums of that. Returns whether that was all but a few.

    Without the core, and where so many files cannot be open at a time, there is a call for each range.
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
    """Makes a `CachedSamples`; None where a data set is in no folder, a share of it, or it or its samples are small."""
    worth = data.mean_bytes >= LEAST_BYTES and data.mean_bytes * len(data) >= LEAST_DATA
    in_files = isinstance(data.location, FolderLocation | Collected) and data.share is None
    return partial(CachedSamples, data) if worth and in_files else None
