"""Which facts describe a data set, and where is each of its samples?

    indices -> places (index/place.npy) -> rows (index/samples.npy)

Opening reads nothing of the index, so it takes the same time and memory for any number of samples. A version of a
collection is also a data set (`joined`): there, some places have no sample, and some indices are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import DeletedError, NoLabelsError, SchemaError, counted
from brand.formats.header import ELEMENTS
from brand.formats.manifest import Manifest, Share
from brand.formats.version import Overlay, Version
from brand.storage.dataset import blame
from brand.storage.dataset.indexes import Index, OwnIndex
from brand.storage.dataset.joined import JoinedIndex
from brand.storage.io.location import Where, located

ROWS_AT_ONCE: Final = 1 << 16
"""Rows of the index that are read at a time."""
_FEW: Final = 32
"""If fewer than one in `_FEW` samples are chosen, the place of each is looked up."""


class Catalogue:
    """Facts, index and columns of a data set. Picklable: each process opens the files again."""

    def __init__(self, where: Where) -> None:
        self.location = located(where)
        self.name = self.location.name
        """Name for users and for other processes: a path, or a URL."""
        self.path = self.location.local
        """Folder of this machine that has the manifest and the index."""
        self.version: Version | None = self.location.version
        """The version of a collection; None for any other data set."""
        self._index: Index = (
            OwnIndex(self.location) if self.version is None else JoinedIndex(self.location, self.version)
        )
        self.manifest: Manifest = self._index.manifest
        self.header = self.manifest.header
        """Places (`samples`), chunk size, schema, classes."""
        self.id = self.manifest.data_set_id.hex()
        """Identity of the data set: 32 hexadecimal digits."""
        self.mean_bytes = self.manifest.mean_bytes
        """Mean size of a stored sample."""
        self.share: Share | None = self._index.share  # None: this is the whole data set
        self._rows, self._place = self._index.rows, self._index.place
        self._columns: dict[str, NDArray[Any]] = {}
        """Overlays that samples were read with."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location,)

    def __len__(self) -> int:
        return self._index.samples

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.facts})"

    @property
    def facts(self) -> str:
        """Name, number of samples and fields, as `repr` shows them."""
        fields = ", ".join(f"{name}: {codec}" for name, codec in self.schema.items())
        return f"{self.name!r}, {counted(len(self), 'sample')}, {{{fields}}}"

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec, in storage order, followed by the overlays of a collection."""
        return dict(self.header.schema.fields) | {name: each.codec for name, each in self._overlays.items()}

    @property
    def _overlays(self) -> Mapping[str, Overlay]:
        return {} if self.version is None else self.version.overlays

    def overlaid(self, indices: NDArray[np.int64], names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Return the overlays of samples, by name; `names`: only these. Empty for a data set that is not a collection.

        Raises `FormatError`.
        """
        found = {}
        for name in self._overlays:
            if names is None or name in names:
                if name not in self._columns:
                    self._columns[name] = self.column(name)
                found[name] = self._columns[name][indices]
        return found

    @property
    def classes(self) -> list[str] | None:
        """Names of the labels, by label; None if the labels have no names."""
        return None if self.header.classes is None else list(self.header.classes)

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the values of fields, by field, or path inside a `json` field."""
        labels = {} if self.header.classes is None else {"label": self.header.classes}
        return {**labels, **self.header.field_classes}

    def classes_of(self, field: str) -> list[str]:
        """See `Reader.classes_of`."""
        named = self.names
        if field not in named:
            there = ", ".join(named) or "none"
            raise NoLabelsError(f"the values of field {field!r} have no names; fields with names: {there}")
        return list(named[field])

    @cached_property
    def chunk_rows(self) -> NDArray[np.void]:
        """File size and checksum of each chunk, shape (chunks,)."""
        return self._index.chunk_rows()

    @property
    def deleted(self) -> NDArray[np.int64] | None:
        """Indices of the samples that were deleted, ascending; None if there are no deleted samples and no holes."""
        return self._index.deleted

    @property
    def samples_present(self) -> int:
        return len(self) - (0 if self.deleted is None else len(self.deleted))

    def present(self) -> NDArray[np.int64]:
        """Return the indices of the samples that were not deleted, ascending."""
        every = np.arange(len(self))
        return every if self.deleted is None else np.delete(every, self.deleted)

    def drawn(self) -> NDArray[np.bool_] | None:
        """Return which places have a sample that is not deleted, shape (`header.samples`,); None: all."""
        return self._index.drawn()

    @property
    def chunks_here(self) -> range:
        """Numbers of the chunks in this folder: all chunks, unless the folder is a partition."""
        return range(self.header.chunks) if self.share is None else self.share.chunks

    def here(self, chunks: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which of these chunks are in this folder, without a look at any file."""
        return np.ones(len(chunks), np.bool_) if self.share is None else self.share.here(chunks)

    def column(self, name: str) -> NDArray[Any]:
        """See `Reader.column`."""
        codec = self.schema.get(name)
        if codec not in ("int", "float"):
            wrong = f"no field {name!r}" if codec is None else f"field {name!r} ({codec}) is not stored as a column"
            columns = ", ".join(name for name, codec in self.schema.items() if codec in ("int", "float")) or "none"
            raise SchemaError(f"{wrong}; columns: {columns}")
        return self.stored_column(name)

    def counts(self, name: str) -> NDArray[np.int64]:
        """Return the number of elements of a list field, by index, shape (len,); 0 for deleted samples.

        Reads no chunk. Raises `SchemaError` if the field holds no lists.
        """
        codec = self.schema.get(name)
        if codec not in ELEMENTS:
            there = ", ".join(name for name, codec in self.schema.items() if codec in ELEMENTS) or "none"
            wrong = f"no field {name!r}" if codec is None else f"field {name!r} ({codec}) holds no lists"
            raise SchemaError(f"{wrong}; fields of lists: {there}")
        found: NDArray[np.int64] = np.maximum(self.stored_column(name), 0)
        return found

    def stored_column(self, name: str) -> NDArray[Any]:
        """Return a column by the name of its field: that of a list has its numbers of elements."""
        found = self._index.column(name)
        found.flags.writeable = False
        return found

    def chunk_of(self, index: int) -> int:
        """Return the number of the chunk that holds a sample. Raises the errors of `places`."""
        return int(self.places(np.array([index]))[0]) // self.header.chunk_size

    def places(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Return the places of samples. Raises `FormatError`, `DeletedError`; IndexError for an index out of range."""
        return self.locate(indices)[0]

    def places_of(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which places have these samples, each given once, shape (`header.samples`,). Errors as of `places`."""
        if len(indices) * _FEW > self.header.samples:
            # To read the index in its order takes less time than to take many of its rows in the order of the indices.
            found = self._scanned_places(indices)
            if np.count_nonzero(found) == len(indices):
                return found
        found = np.zeros(self.header.samples, np.bool_)
        found[self.places(indices)] = True  # or say what is wrong with the index
        return found

    def _scanned_places(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which places have these samples by the rows of the index. Raises `FormatError`, `DeletedError`."""
        self._check_present(indices)
        wanted, found = np.zeros(len(self), np.bool_), np.zeros(self.header.samples, np.bool_)
        wanted[indices] = True
        for first in range(0, len(found), ROWS_AT_ONCE):
            index = self._rows.run(first, min(first + ROWS_AT_ONCE, len(found)))["index"]
            known = index < len(wanted)
            found[first : first + len(index)] = known & wanted[np.where(known, index, 0)]
        drawn = self.drawn()
        return found if drawn is None else found & drawn

    def locate(self, indices: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Return the places of samples, and their rows of the index. Raises the errors of `places`."""
        places = self._place.take(indices).astype(np.int64)
        if self._index.deleted is not None:
            self._check_present(indices)
        if len(places) and int(places.view(np.uint64).max()) >= self.header.samples:
            worst = int(places.view(np.uint64).argmax())
            holder = self._index.holder(int(indices[worst]))
            raise blame.place_out_of_range(holder, int(indices[worst]), int(places[worst]), self.header.samples)
        rows = self._rows.take(places)
        if not np.array_equal(rows["index"], indices):
            position = int(np.flatnonzero(rows["index"] != indices)[0])
            holder = self._index.holder(int(indices[position]))
            raise blame.halves_disagree(holder, int(indices[position]), int(rows["index"][position]))
        return places, rows

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """Return the rows of the index for the places `first` to `end` - 1. Raises `FormatError`."""
        return self._rows.run(first, end)

    def rows_at(self, places: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """Return the rows of the index for these places. Raises `FormatError`."""
        return self._rows.take(places)

    def indices(self, places: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Return the public indices of the samples at these places. Raises the errors of `agreed_rows_at`."""
        found: NDArray[np.int64] = self.agreed_rows_at(places)["index"].astype(np.int64)
        return found

    def scanned_indices(self, places: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Return the same for many ascending places, in one pass over the index. Errors as of `indices`."""
        found = np.empty(len(places), np.int64)
        for first in range(0, self.header.samples, ROWS_AT_ONCE):
            index = self._rows.run(first, min(first + ROWS_AT_ONCE, self.header.samples))["index"]
            start, end = np.searchsorted(places, (first, first + len(index))).tolist()
            found[start:end] = index[places[start:end] - first]
        if len(found) and not 0 <= int(found.min()) <= int(found.max()) < len(self):
            return self.indices(places)  # it says what is wrong with the index
        return found

    def agreed_rows_at(self, places: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """Return the same as `rows_at`. Raises `FormatError`, also if `place.npy` disagrees."""
        rows = self.rows_at(places)
        found = rows["index"].astype(np.int64)
        wrong = np.flatnonzero(~self.are_at(found, places))
        if len(wrong):
            holder = self._index.holder(int(found[wrong[0]]))
            raise blame.halves_disagree(holder, int(found[wrong[0]]), int(places[wrong[0]]))
        return rows

    def are_at(self, indices: NDArray[np.int64], places: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which of `indices` the index puts at these places. Any numbers are allowed. Raises `FormatError`."""
        there = indices.view(np.uint64) < len(self)
        found: NDArray[np.bool_] = there & (self._place.take(np.where(there, indices, 0)) == places)
        return found

    def _check_present(self, indices: NDArray[np.integer[Any]]) -> None:
        deleted = self._index.deleted
        if deleted is None or not len(deleted):
            return
        found = deleted[np.minimum(np.searchsorted(deleted, indices), len(deleted) - 1)]
        if (found == indices).any():
            raise DeletedError(self.name, int(found[found == indices][0]))
