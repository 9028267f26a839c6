"""Which samples does the page cache hold just now? They are copied out of it at once, and nothing else is read.

A data set that was just written, or that the last training has read, is in memory already. To read it into pages of a
server would only copy it into fresh pages, which cost more than the copy. So clients take such samples by themselves
(`brand.node.client.taking`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.storage.dataset import StoredDataSet
from brand.storage.files import RangeReader
from brand.storage.location import Folder

LEAST_BYTES: Final = 4096
"""The mean size of samples that are worth a system call each. Smaller ones come faster many at a time."""
LEAST_DATA: Final = 64 << 20
"""The size of a data set that is worth it. A smaller one is soon in the server's memory, which serves it faster."""
FEW: Final = 64
"""One sample of so many may come from the storage. The kernel sometimes says that a page is missing which is there."""


class CachedSamples:
    """The samples of a data set in files, for one thread."""

    def __init__(self, data: StoredDataSet) -> None:
        self._data, self._reader = data, RangeReader(data.location.chunk_file)

    def __repr__(self) -> str:
        return f"CachedSamples({self._data.name!r})"

    def rows(self, places: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """Rows of the index for these places. Raises `FormatError`."""
        return self._data.rows_at(places)

    def copy(
        self, places: NDArray[np.integer[Any]], rows: NDArray[np.void], memory: memoryview, starts: NDArray[np.int64]
    ) -> bool:
        """Copy the stored bytes of samples to where they begin in `memory`. Returns whether they were there.

        A few that are not there are read. The caller checks the bytes.
        """
        chunks = places // self._data.header.chunk_size
        ends = starts + rows["size"]
        pieces = (memory[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
        ranges = zip(chunks.tolist(), rows["offset"].tolist(), pieces, strict=True)
        return self._reader.read_cached(ranges, len(places) // FEW)


def cached_samples(data: StoredDataSet) -> Callable[[], CachedSamples] | None:
    """Makes a `CachedSamples`; None where a data set is in no folder, a share of it, or it or its samples are small."""
    worth = data.mean_bytes >= LEAST_BYTES and data.mean_bytes * len(data) >= LEAST_DATA
    return partial(CachedSamples, data) if worth and isinstance(data.location, Folder) and data.share is None else None
