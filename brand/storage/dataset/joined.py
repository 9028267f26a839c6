"""A version of a collection as one data set, without an index of its own.

    public indices   0 ........ 999 | 1000 ..... 1199 | 1200 ...          segments follow each other
    chunks           0  1  2  3     | 4               | 5 ...             and so do their chunks
    places           0 .... 999 hole| 256 * 4 ...     | 256 * 5 ...       `chunk_size` places for each chunk

A data server, orders and caches use places only, and chunk `k` has the places from `k * chunk_size` on. So a segment
whose last chunk is short leaves a **hole**: places without a sample. A hole has a row of no bytes at the end of its
chunk. Orders leave out holes and deleted samples alike (`drawn`). The arrays read the segments' own files
(`segments`), so opening a collection reads no index, and a change of it writes none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import LayoutError, NotADataSetError
from brand.formats.constants import NOTHING, ROW
from brand.formats.header import Header
from brand.formats.manifest import Manifest
from brand.formats.noticed import merged
from brand.formats.version import Version
from brand.storage.dataset.indexes import Elements
from brand.storage.dataset.segments import (
    VERIFY_HINT,
    PartIndex,
    check_alike,
    open_parts,
    read_list,
    read_values,
)
from brand.storage.io.files import ChunkReader
from brand.storage.io.location import Location

_NO_INDEX: Final = np.iinfo(np.uint64).max
_NO_CHECKSUM: Final = xxhash.xxh3_64_intdigest(b"")

TakeFrom = Callable[[PartIndex, NDArray[np.int64]], NDArray[Any]]
"""Returns a segment's elements, given their numbers in the collection."""


class JoinedArray:
    """`Elements` of several segments. Number `n` is in the last segment whose first one (`firsts`) is at most `n`."""

    def __init__(
        self, parts: Sequence[PartIndex], firsts: Sequence[int], length: int, take_from: TakeFrom, dtype: Any
    ) -> None:
        self._parts, self._firsts, self._length = parts, np.array(firsts), length
        self._take_from, self._dtype = take_from, dtype

    def __len__(self) -> int:
        return self._length

    def run(self, first: int, end: int) -> NDArray[Any]:
        return self.take(np.arange(*slice(first, end).indices(self._length)[:2], dtype=np.int64))

    def all(self) -> NDArray[Any]:
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


class JoinedIndex:
    """The index of a version of a collection: an `Index`. Raises `FormatError`."""

    share = None

    def __init__(self, location: Location, version: Version) -> None:
        self.folder, self.version = location.local, version
        self.parts = open_parts(self.folder, version)
        if not self.parts:
            raise NotADataSetError("all samples of the collection are deleted", path=self.folder)
        check_alike(self.parts)
        self.samples = version.samples
        self.deleted = read_list(self.folder, version.deleted, version.samples)
        for part in self.parts:
            if not np.isin(part.absent, self.deleted).all():
                what, path = "an absent index that is not deleted", part.location.local
                raise LayoutError(what, path=path, hint=VERIFY_HINT)
        self._first_chunks = np.array([part.first_chunk for part in self.parts])
        self._firsts = np.array([part.part.first for part in self.parts])
        self.manifest = _joined_manifest(self.parts, version.id)
        self.rows: Elements = JoinedRows(self.parts, self.manifest.header.samples)
        self.place: Elements = joined_places(self.parts, version.samples)
        self.tables = JoinedTables(self.parts)

    def drawn(self) -> NDArray[np.bool_] | None:
        header = self.manifest.header
        mask = np.zeros(header.samples, np.bool_)
        for part in self.parts:
            mask[part.first_place : part.first_place + part.header.samples] = True
        here = self.place.take(self.deleted)
        mask[here[here >= 0]] = False
        return None if mask.all() else mask

    def chunk_rows(self) -> NDArray[np.void]:
        return np.concatenate([part.own.chunk_rows() for part in self.parts])

    def column(self, name: str) -> NDArray[Any]:
        overlay = self.version.overlays.get(name)
        codec = dict(self.manifest.header.schema.columns)[name] if overlay is None else overlay.codec
        found = np.full(self.samples, NOTHING[codec], "<i8" if codec == "int" else "<f8")
        if overlay is not None:
            values = read_values(self.folder, overlay.values, overlay.dtype)
            found[: len(values)] = values[: self.samples]
        else:
            for part in self.parts:
                found[part.part.first : part.part.end] = part.column(name, codec)
        found[self.deleted] = NOTHING[codec]
        return found

    def home(self, chunk: int) -> tuple[Location, int, Manifest]:
        part = self.parts[int(np.searchsorted(self._first_chunks, chunk, side="right")) - 1]
        return part.location, chunk - part.first_chunk, part.manifest

    def holder(self, index: int) -> Location:
        return self.parts[max(0, int(np.searchsorted(self._firsts, index, side="right")) - 1)].location


def joined_header(parts: Sequence[PartIndex]) -> Header:
    """Return the header of segments that are one data set, with places for holes."""
    last, first = parts[-1], parts[0]
    return Header(
        samples=last.first_place + last.header.samples,
        chunk_size=first.header.chunk_size,
        schema=first.header.schema,
        classes=last.header.classes,
        compression="zstd" if any(part.header.compression == "zstd" for part in parts) else "none",
        seed=first.header.seed,
        source=first.header.source,
        decode=first.header.decode,
        field_classes=first.header.field_classes,
    )


def _joined_manifest(parts: Sequence[PartIndex], version_id: str) -> Manifest:
    manifests = [part.manifest for part in parts]
    files = {}
    for name in manifests[0].files:
        digests = "".join(manifest.files[name][1] for manifest in manifests)
        size = sum(manifest.files[name][0] for manifest in manifests)
        files[name] = size, xxhash.xxh3_128_hexdigest(digests.encode())
    return Manifest(
        data_set_id=bytes.fromhex(version_id),
        header=joined_header(parts),
        dictionary_size=manifests[0].dictionary_size,
        stored_bytes=sum(manifest.stored_bytes for manifest in manifests),
        raw_bytes=sum(manifest.raw_bytes for manifest in manifests),
        largest_sample=max(manifest.largest_sample for manifest in manifests),
        files=files,
        companions={},
        noticed=merged(fact for manifest in manifests for fact in manifest.noticed),
    )
