"""What is a data set, and where is each of its samples?

    indices -> places (index/place.npy) -> rows (index/samples.npy)

Opening reads nothing of the index, so it takes the same time and memory for any number of samples.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import SchemaError, counted
from brand.formats.constants import CHUNKS_NAME, PLACE_NAME, SAMPLES_NAME, column_name
from brand.formats.index import open_array
from brand.formats.manifest import Manifest, read_manifest
from brand.formats.share import Share, read_share
from brand.storage import blame
from brand.storage.location import Where, located


class Catalogue:
    """Facts, index and columns of a data set. Picklable; opens its files anew in each process."""

    def __init__(self, where: Where) -> None:
        self.location = located(where)
        self.name = self.location.name
        """What names it to users and to other processes: a path, or a URL."""
        self.path = self.location.local
        """Folder of this machine that has its manifest and its index."""
        self.manifest: Manifest = read_manifest(self.path)
        self.header = self.manifest.header
        """Samples, chunk size, schema, classes."""
        self.id = self.manifest.data_set_id.hex()
        """Identity of the data set: 32 hexadecimal digits."""
        self.mean_bytes = self.manifest.mean_bytes
        """Mean size of a stored sample."""
        self.share: Share | None = read_share(self.path, self.manifest)  # None: this is the whole data set
        self._rows = open_array(self.path, SAMPLES_NAME, self.header)
        self._place = open_array(self.path, PLACE_NAME, self.header)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location,)

    def __len__(self) -> int:
        return self.header.samples

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {codec}" for name, codec in self.schema.items())
        return f"{type(self).__name__}({self.name!r}, {counted(len(self), 'sample')}, {{{fields}}})"

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec, in storage order."""
        return dict(self.header.schema.fields)

    @property
    def classes(self) -> list[str] | None:
        """Names of the labels, by label; None where labels have no names."""
        return None if self.header.classes is None else list(self.header.classes)

    @cached_property
    def chunk_rows(self) -> NDArray[np.void]:
        """File size and checksum of each chunk, shape (chunks,)."""
        return open_array(self.path, CHUNKS_NAME, self.header).all()

    @property
    def chunks_here(self) -> range:
        """Numbers of the chunks in this folder: all of them, unless it is a share."""
        return range(self.header.chunks) if self.share is None else self.share.chunks

    def here(self, chunks: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Which of these chunks are in this folder. Looks at no file."""
        return np.ones(len(chunks), np.bool_) if self.share is None else self.share.here(chunks)

    def column(self, name: str) -> NDArray[Any]:
        """An `int` or `float` field of all samples by index, shape (len,), read-only; 8 bytes of memory a sample.

        `brand verify` compares the column with the samples; this method does not. Raises `SchemaError` for other
        fields, `FormatError`.
        """
        codec = self.header.schema.codec(name)
        if codec not in ("int", "float"):
            fixed = ", ".join(n for n, _ in self.header.schema.fixed) or "none"
            raise SchemaError(f"field {name!r} ({codec}) is not kept as a column; columns: {fixed}")
        found = open_array(self.path, column_name(name), self.header).all()
        found.flags.writeable = False
        return found

    def chunk_of(self, index: int) -> int:
        """Number of the chunk that holds a sample. Raises the errors of `places`."""
        return int(self.places(np.array([index]))[0]) // self.header.chunk_size

    def places(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Places of samples. Raises `FormatError`; IndexError for an index that the data set does not have."""
        return self.locate(indices)[0]

    def locate(self, indices: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Places of samples, and their rows of the index. Raises the errors of `places`."""
        places = self._place.take(indices).astype(np.int64)
        if len(places) and int(places.view(np.uint64).max()) >= len(self):
            worst = int(places.view(np.uint64).argmax())
            raise blame.place_out_of_range(self.location, int(indices[worst]), int(places[worst]), len(self))
        rows = self._rows.take(places)
        if not np.array_equal(rows["index"], indices):
            position = int(np.flatnonzero(rows["index"] != indices)[0])
            raise blame.halves_disagree(self.location, int(indices[position]), int(rows["index"][position]))
        return places, rows

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """Rows of the index for the places `first` to `end` - 1. Raises `FormatError`."""
        return self._rows.run(first, end)

    def rows_at(self, places: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """Rows of the index for these places. Raises `FormatError`."""
        return self._rows.take(places)

    def indices(self, places: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Public indices of the samples at these places. Raises the errors of `agreed_rows_at`."""
        found: NDArray[np.int64] = self.agreed_rows_at(places)["index"].astype(np.int64)
        return found

    def agreed_rows_at(self, places: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """As `rows_at`. Raises `FormatError`, also where `place.npy` disagrees."""
        rows = self.rows_at(places)
        found = rows["index"].astype(np.int64)
        wrong = np.flatnonzero(~self.are_at(found, places))
        if len(wrong):
            raise blame.halves_disagree(self.location, int(found[wrong[0]]), int(places[wrong[0]]))
        return rows

    def are_at(self, indices: NDArray[np.int64], places: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Which of `indices` the index puts at these places. They may be any numbers. Raises `FormatError`."""
        there = indices.view(np.uint64) < len(self)
        found: NDArray[np.bool_] = there & (self._place.take(np.where(there, indices, 0)) == places)
        return found
