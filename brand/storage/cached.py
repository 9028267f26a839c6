"""Which samples does the page cache hold just now? They are copied out of it at once, and hardly anything else is read.

A data set that was just written, or that the last training has read, is in memory already. To read it into pages of a
server would only copy it into fresh pages, which cost more than the copy. So clients take such samples by themselves
(`brand.node.client.taking`). Large samples are read with a system call each, which says whether they are there. Small
ones are copied by the thousand, out of files that the page cache held when it was asked (`brand.storage.mappedfiles`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.formats.landing import landing
from brand.formats.stored import Stored
from brand.storage.crew import Crew
from brand.storage.dataset import StoredDataSet
from brand.storage.files import Range, RangeReader, plenty_open
from brand.storage.location import Collected, Folder
from brand.storage.mappedfiles import MappedChunks

LARGE_BYTES: Final = 4096
"""The mean size of samples that are worth a system call each. Smaller ones come faster many at a time."""
MOST_MAPPED: Final = 16_384
"""The most chunks of a data set of small samples: a process may have four times as many mappings."""
LEAST_DATA: Final = 64 << 20
"""The size of a data set that is worth it. A smaller one is soon in the server's memory, which serves it faster."""
FEW: Final = 64
"""One sample of so many may come from the storage. The kernel sometimes says that a page is missing which is there."""


class _Wanted(NamedTuple):
    """Stored bytes of samples that go into `out`, side by side."""

    chunks: NDArray[np.integer[Any]]
    rows: NDArray[np.void]
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where each sample begins in `out`."""
    out: NDArray[np.uint8]

    def ranges(self, part: slice | NDArray[np.intp]) -> list[Range]:
        """What to read for some of the samples."""
        columns = (self.chunks, self.rows["offset"], self.starts, self.sizes)
        wanted = zip(*(column[part].tolist() for column in columns), strict=True)
        return [(chunk, offset, self.out[start : start + size].data) for chunk, offset, start, size in wanted]

    def memory(self, part: slice) -> NDArray[np.uint8]:
        """Where the bytes of neighbouring samples go."""
        first, last = self.starts[part][0], self.starts[part][-1] + self.sizes[part][-1]
        return self.out[first:last]

    def are_right(self, part: slice) -> bool:
        """Whether the bytes in `out` have the recorded checksums."""
        return bool(Stored(self.out, self.starts[part], self.rows[part]).right().all())


class CachedSamples:
    """The samples of a data set in files, for one thread that draws, and its `crew`."""

    def __init__(self, data: StoredDataSet, crew: Crew) -> None:
        self._data, self._crew = data, crew
        most = plenty_open() // crew.threads
        self._readers = [RangeReader(data.location.chunk_file, most) for _ in range(crew.threads)]
        self._files = data.chunk_rows["file_size"]
        small = data.mean_bytes < LARGE_BYTES
        self._mapped = MappedChunks(data.location.chunk_file, self._files) if small else None

    def __repr__(self) -> str:
        return f"CachedSamples({self._data.name!r}, {self._mapped or 'read one by one'})"

    def rows(self, places: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """Rows of the index for these places. Raises `FormatError`, also where the halves of the index disagree."""
        return self._data.agreed_rows_at(places)

    def copy(self, places: NDArray[np.integer[Any]], rows: NDArray[np.void], out: NDArray[np.uint8]) -> bool:
        """Copy the stored bytes of samples into `out`, which they fill, side by side.

        Returns whether they were there and have right checksums. A few that are not there are read.
        """
        chunks, sizes = places // self._data.header.chunk_size, rows["size"].astype(np.int64)
        ends = self._files[chunks]
        if ((rows["size"] > ends) | (rows["offset"] > ends - rows["size"])).any():
            return False  # an exact read says what is wrong with the index
        wanted = _Wanted(chunks, rows, sizes, np.cumsum(sizes) - sizes, out)
        with suppress(OSError):
            return self._read(wanted) if self._mapped is None else self._copied(wanted, self._mapped)
        return False

    def _read(self, wanted: _Wanted) -> bool:
        """Read samples out of the page cache, each with a system call."""

        def read(number: int, part: slice) -> bool:
            ranges, late, reader = wanted.ranges(part), list[Range](), self._readers[number]
            for each in ranges:
                if not reader.filled_from_cache(each):
                    late.append(each)
                    if len(late) > len(ranges) // FEW:
                        return False
            reader.read_into(late)
            return wanted.are_right(part)

        return all(self._crew.each(read, self._crew.parts(wanted.sizes)))

    def _copied(self, wanted: _Wanted, mapped: MappedChunks) -> bool:
        """Copy samples out of mapped files."""
        few = len(wanted.rows) // FEW
        held = mapped.held(wanted.chunks, few)
        if held is None:
            return False
        self._readers[0].read_into(wanted.ranges(np.flatnonzero(~held)))
        brought = np.uint64(wanted.out.ctypes.data) + wanted.starts.view(np.uint64)
        addresses = np.where(held, mapped.addresses(wanted.chunks) + wanted.rows["offset"], brought)

        def copy(_: int, part: slice) -> bool:
            there = landing()
            copied = there is not None and there.copy(addresses[part], wanted.sizes[part], wanted.memory(part))
            return copied and wanted.are_right(part)

        with mapped.watched(few):
            return all(self._crew.each(copy, self._crew.parts(wanted.sizes)))


def cached_samples(data: StoredDataSet) -> Callable[[Crew], CachedSamples] | None:
    """Makes a `CachedSamples`; None where a data set is in no folder, a share of it, small, or in too many files."""
    worth = data.mean_bytes * len(data) >= LEAST_DATA
    few_files = data.mean_bytes >= LARGE_BYTES or data.header.chunks <= MOST_MAPPED
    in_files = isinstance(data.location, Folder | Collected) and data.share is None
    return partial(CachedSamples, data) if worth and few_files and in_files else None
