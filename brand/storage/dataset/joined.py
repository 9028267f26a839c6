"""A version of a collection as one data set, without an index of its own.

    public indices   0 ........ 999 | 1000 ..... 1199 | 1200 ...          segments follow each other
    chunks           0  1  2  3     | 4               | 5 ...             and so do their chunks
    places           0 .... 999 hole| 256 * 4 ...     | 256 * 5 ...       `chunk_size` places for each chunk

A data server, orders and caches use places only, and chunk `k` has the places from `k * chunk_size` on. So a segment
whose last chunk is short leaves a **hole**: places without a sample. A hole has a row of no bytes at the end of its
chunk. Orders leave out holes and deleted samples alike (`drawn`). The arrays (`joinedarrays`) read the segments' own
files (`partindex`), so opening a collection reads no index, and a change of it writes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import LayoutError, NotADataSetError
from brand.formats.manifest import Manifest
from brand.formats.version import Version
from brand.storage.dataset.indexes import Elements
from brand.storage.dataset.joinedarrays import JoinedRows, JoinedTables, joined_places
from brand.storage.dataset.lists import VERIFY_HINT, read_list, read_values
from brand.storage.dataset.partindex import NOTHING, PartIndex, check_alike, open_parts
from brand.storage.io.location import Location


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
        """See `Index`."""
        header = self.manifest.header
        mask = np.zeros(header.samples, np.bool_)
        for part in self.parts:
            mask[part.first_place : part.first_place + part.header.samples] = True
        here = self.place.take(self.deleted)
        mask[here[here >= 0]] = False
        return None if mask.all() else mask

    def chunk_rows(self) -> NDArray[np.void]:
        """See `Index`."""
        return np.concatenate([part.own.chunk_rows() for part in self.parts])

    def column(self, name: str) -> NDArray[Any]:
        """See `Index`."""
        overlay = self.version.overlays.get(name)
        codec = self.manifest.header.schema.codec(name) if overlay is None else overlay.codec
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
        """See `Index`."""
        part = self.parts[int(np.searchsorted(self._first_chunks, chunk, side="right")) - 1]
        return part.location, chunk - part.first_chunk, part.manifest

    def holder(self, index: int) -> Location:
        """See `Index`."""
        return self.parts[max(0, int(np.searchsorted(self._firsts, index, side="right")) - 1)].location


def _joined_manifest(parts: Sequence[PartIndex], version_id: str) -> Manifest:
    """Return the facts of all segments together."""
    last, first = parts[-1], parts[0]
    header = type(first.header)(
        samples=last.first_place + last.header.samples,
        chunk_size=first.header.chunk_size,
        schema=first.header.schema,
        classes=last.header.classes,
        compression="zstd" if any(part.header.compression == "zstd" for part in parts) else "none",
        seed=first.header.seed,
        source=first.header.source,
    )
    manifests = [part.manifest for part in parts]
    files = {}
    for name in manifests[0].files:
        digests = "".join(manifest.files[name][1] for manifest in manifests)
        size = sum(manifest.files[name][0] for manifest in manifests)
        files[name] = size, xxhash.xxh3_128_hexdigest(digests.encode())
    return Manifest(
        data_set_id=bytes.fromhex(version_id),
        header=header,
        dictionary_size=first.manifest.dictionary_size,
        stored_bytes=sum(manifest.stored_bytes for manifest in manifests),
        raw_bytes=sum(manifest.raw_bytes for manifest in manifests),
        largest_sample=max(manifest.largest_sample for manifest in manifests),
        files=files,
        companions={},
    )
