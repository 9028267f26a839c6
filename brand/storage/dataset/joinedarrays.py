"""Arrays of a collection: the segments' own files, read as one array, and compared with the chunks' tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.formats.constants import ROW
from brand.storage.dataset.partindex import PartIndex
from brand.storage.io.files import ChunkReader

_NO_INDEX: Final = np.iinfo(np.uint64).max
_NO_CHECKSUM: Final = xxhash.xxh3_64_intdigest(b"")

TakeFrom = Callable[[PartIndex, NDArray[np.int64]], NDArray[Any]]
"""Returns a segment's elements, given their numbers in the collection."""


class JoinedArray:
    """`Elements` of several segments. Number `n` is in the last segment whose first number (`firsts`) is at most
    `n`.
    """

    def __init__(
        self, parts: Sequence[PartIndex], firsts: Sequence[int], length: int, take_from: TakeFrom, dtype: Any
    ) -> None:
        self._parts, self._firsts, self._length = parts, np.array(firsts), length
        self._take_from, self._dtype = take_from, dtype

    def __len__(self) -> int:
        return self._length

    def run(self, first: int, end: int) -> NDArray[Any]:
        """See `Elements`."""
        return self.take(np.arange(*slice(first, end).indices(self._length)[:2], dtype=np.int64))

    def all(self) -> NDArray[Any]:
        """See `Elements`."""
        return self.run(0, self._length)

    def take(self, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """See `Elements`. Raises IndexError for a number that is out of range."""
        wanted = numbers.astype(np.int64)
        if len(wanted) and (int(wanted.min()) < 0 or int(wanted.max()) >= self._length):
            raise IndexError(f"a number is out of range: there are {self._length:,}")
        holders = np.searchsorted(self._firsts, wanted, side="right") - 1
        if len(wanted) and holders[0] == holders.min() == holders.max():
            return self._take_from(self._parts[holders[0]], wanted)
        found = np.empty(len(wanted), self._dtype)
        for number in np.unique(holders).tolist():
            mine = holders == number
            found[mine] = self._take_from(self._parts[number], wanted[mine])
        return found


class JoinedRows(JoinedArray):
    """A row for each place, with public indices."""

    def __init__(self, parts: Sequence[PartIndex], places: int) -> None:
        super().__init__(parts, [part.first_place for part in parts], places, _rows_of, ROW)

    def run(self, first: int, end: int) -> NDArray[np.void]:
        """See `Elements`. A run within one segment, such as a stripe, is read at once."""
        part = self._parts[int(np.searchsorted(self._firsts, first, side="right")) - 1]
        begin = first - part.first_place
        if not 0 <= begin <= (stop := end - part.first_place) <= part.header.samples:
            return super().run(first, end)
        rows = part.own.rows.run(begin, stop)
        rows["index"] = part.public(rows["index"])
        return rows


def joined_places(parts: Sequence[PartIndex], samples: int) -> JoinedArray:
    """Return the place of each index; -1 for a sample whose bytes were removed."""
    return JoinedArray(parts, [0, *(part.part.first for part in parts[1:])], samples, _places_of, np.int64)


class JoinedTables:
    """Compares each segment with the tables of its own chunks."""

    def __init__(self, parts: Sequence[PartIndex]) -> None:
        self._parts, self._firsts = parts, np.array([part.first_place for part in parts])

    def differing(self, places: NDArray[np.int64], reader: ChunkReader) -> NDArray[np.intp]:
        """See `Compared`."""
        holders = np.searchsorted(self._firsts, places, side="right") - 1
        found = [np.empty(0, np.intp)]
        for number in np.unique(holders).tolist():
            part, mine = self._parts[number], np.flatnonzero(holders == number)
            found.append(mine[part.own.tables.differing(places[mine] - part.first_place, reader)])
        return np.sort(np.concatenate(found))


def _rows_of(part: PartIndex, places: NDArray[np.int64]) -> NDArray[np.void]:
    local = places - part.first_place
    there = local < part.header.samples
    found = np.zeros(len(places), ROW)
    rows = part.own.rows.take(local[there])
    rows["index"] = part.public(rows["index"])
    found[there] = rows
    if not there.all():  # a hole has a row of no bytes at the end of its chunk
        found["offset"][~there] = _end_of(part)
        found["checksum"][~there], found["index"][~there] = _NO_CHECKSUM, _NO_INDEX
    return found


def _end_of(part: PartIndex) -> int:
    """Return the offset at which the samples of the last chunk of a segment end."""
    last = part.own.rows.run(part.header.samples - 1, part.header.samples)[0]
    return int(last["offset"]) + int(last["size"])


def _places_of(part: PartIndex, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    local = part.local(indices)
    local[(local < 0) | (indices >= part.part.end)] = -1
    found = np.full(len(indices), -1, np.int64)
    there = local >= 0
    places = part.own.place.take(local[there]).astype(np.int64)
    found[there] = np.where(places.view(np.uint64) < part.header.samples, places + part.first_place, -1)
    return found
