"""Which samples does the page cache hold just now? They are copied out of it at once, and nothing else is read.

A data set that was just written, or that the last training has read, is in memory already. To read it into pages of a
server would only copy it into fresh pages, which cost more than the copy. So clients take such samples by themselves
(`brand.node.client.taking`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.stored import is_right
from brand.storage.crew import Crew
from brand.storage.dataset import StoredDataSet
from brand.storage.files import Range, RangeReader, plenty_open
from brand.storage.location import Collected, Folder

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
        chunks, sizes = places // self._data.header.chunk_size, rows["size"].astype(np.int64)
        if not self._data.are_inside(chunks, rows).all():
            return False  # an exact read says what is wrong with the index

        def copy(number: int, part: slice) -> bool:
            wanted = zip(*(each[part].tolist() for each in (chunks, rows["offset"], starts, sizes)), strict=True)
            ranges = [(chunk, offset, memory[start : start + size]) for chunk, offset, start, size in wanted]
            return _copied(self._readers[number], ranges, rows["checksum"][part].tolist())

        return all(self._crew.each(copy, self._crew.parts(sizes)))


def _copied(reader: RangeReader, ranges: list[Range], checksums: list[int]) -> bool:
    """Fill ranges. Returns whether all but a few were in the page cache, and have the right checksums."""
    late: list[int] = []
    with suppress(OSError):
        for number, wanted in enumerate(ranges):
            if not reader.filled_from_cache(wanted):
                late.append(number)
                if len(late) > len(ranges) // FEW:
                    return False
            elif not is_right(wanted[2], checksums[number]):
                return False
        reader.read_into([ranges[number] for number in late])
        return all(is_right(ranges[number][2], checksums[number]) for number in late)
    return False


def cached_samples(data: StoredDataSet) -> Callable[[Crew], CachedSamples] | None:
    """Makes a `CachedSamples`; None where a data set is in no folder, a share of it, or it or its samples are small."""
    worth = data.mean_bytes >= LEAST_BYTES and data.mean_bytes * len(data) >= LEAST_DATA
    in_files = isinstance(data.location, Folder | Collected) and data.share is None
    return partial(CachedSamples, data) if worth and in_files else None
