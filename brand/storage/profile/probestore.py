"""How fast does a store answer reads, by their size and the number in flight? Measured on chunks of a data set.

The method is that of `probe`. Requests and bytes of a store cost money, and its latency is high. So sizes and numbers
in flight are larger, each cell is visited once, with few reads, and the maximum cost is known in advance
(`StoreProbe.requests`, `StoreProbe.bytes`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from brand.errors import BrandError, StorageError
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.location import Location
from brand.storage.profile.probe import Measurement, Report, check_enough, run
from brand.storage.profile.ranges import ProfileCell, Range, cells_that_fit, layouts, rounds
from brand.stores.url import parse_url

SIZES: Final = tuple(1 << power for power in range(16, 25))
"""Read sizes: 64 KiB to 16 MiB."""
DEPTHS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Reads in flight."""
SECONDS: Final = 60.0
MOST_IN_FLIGHT: Final = 128 << 20
"""Maximum bytes that are read at the same time; this bounds the memory."""

_MOST_CHUNKS: Final = 256
_WAVES: Final = ((256 << 10, 8), (1 << 20, 4), (1 << 60, 2))
"""Read sizes, and how many reads up to that size each of the reads in flight makes: small reads need more."""


class StoreProbe:
    """The measurement of the store that holds a data set. The constructor reads the index only.

    Raises `UsageError` if the data set is too small, `FormatError`.
    """

    def __init__(self, location: Location) -> None:
        self._url = location.name
        sizes = StoredDataSet(location).chunk_rows["file_size"].tolist()
        chunks = sorted(random.sample(range(len(sizes)), min(_MOST_CHUNKS, len(sizes))))
        self._subject = _StoreSubject(location, chunks, [sizes[number] for number in chunks])
        cells = cells_that_fit(self._subject.sizes, SIZES, DEPTHS, MOST_IN_FLIGHT)
        check_enough(self._url, self._subject.sizes, cells)
        self._order = rounds(cells, 1)
        self.requests = sum(map(_reads_of, cells))
        """Maximum number of requests."""
        self.bytes = sum(cell.size * _reads_of(cell) for cell in cells)
        """Maximum number of bytes read."""

    def __repr__(self) -> str:
        return f"StoreProbe({self._url}, {self.requests:,} requests, {self.bytes:,} bytes)"

    def measure(self, *, seconds: float = SECONDS, report: Report | None = None) -> Measurement:
        """Measure, for about `seconds` at most. Raises `StorageError`, `UsageError`."""
        cells = [cell for some in self._order for cell in some]
        visits = layouts(self._subject.sizes, cells, random.Random(), _reads_of)
        try:
            return run(self._subject, self._url, (SIZES, DEPTHS), self._order, visits, seconds, report)
        except BrandError:  # some of Brand's errors are OSErrors, too
            raise
        except OSError as error:
            raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error


class _StoreSubject:
    """A `ProbeSubject`: chunks in a store."""

    def __init__(self, location: Location, chunks: Sequence[int], sizes: list[int]) -> None:
        self.device, self.sizes = parse_url(location.name).root, sizes
        self._location, self._chunks = location, chunks

    def cold(self, ranges: Sequence[Range]) -> list[Range]:
        """See `ProbeSubject`. This machine caches nothing of a store in memory."""
        return list(ranges)

    def read(self, piece: Range, buffer: memoryview) -> None:
        self._location.reader().read_into([(self._chunks[piece.file], piece.offset, buffer)])


def _reads_of(cell: ProfileCell) -> int:
    return cell.depth * next(waves for size, waves in _WAVES if cell.size <= size)
