"""Which files are the index of a data set? Its own files, or those of all segments of a collection (`joined`).

`Catalogue` asks an `Index` and does not depend on the kind. An `OwnIndex` returns the files themselves, so reads of a
data set that is not a collection have no extra layer.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.formats.constants import CHUNKS_NAME, PLACE_NAME, SAMPLES_NAME, column_name
from brand.formats.index import open_array
from brand.formats.manifest import Manifest, Share, read_manifest, read_share
from brand.storage.dataset.tables import Tables
from brand.storage.io.files import ChunkReader
from brand.storage.io.location import Location


class Elements(Protocol):
    """An array in files, with the methods of an `ArrayFile`. They raise `FormatError`."""

    def __len__(self) -> int: ...

    def run(self, first: int, end: int) -> NDArray[Any]:
        """Return the elements `first` to `end` - 1, or as many of them as there are."""

    def all(self) -> NDArray[Any]:
        """Return all elements."""

    def take(self, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the elements with these numbers, in that order."""


class Compared(Protocol):
    """Compares the index with the chunks' own tables (`Tables`)."""

    def differing(self, places: NDArray[np.int64], reader: ChunkReader) -> NDArray[np.intp]:
        """Return the positions in `places` whose rows in the index differ from their chunks' tables."""


class Index(Protocol):
    """The index of a data set."""

    manifest: Manifest
    """Facts about the data set. `header.samples` counts places."""

    @property
    def share(self) -> Share | None:
        """The partition that is in this folder; None: all chunks."""

    samples: int
    """Number of public indices."""

    @property
    def rows(self) -> Elements:
        """A row for each place."""

    @property
    def place(self) -> Elements:
        """The place of each index."""

    @property
    def tables(self) -> Compared:
        """Comparison of the index with the chunks' own tables."""

    @property
    def deleted(self) -> NDArray[np.int64] | None:
        """Indices whose samples were deleted, ascending; None: there are none, and each place has a sample."""

    def drawn(self) -> NDArray[np.bool_] | None:
        """Return which places have a sample that is not deleted, shape (places,); None: all."""

    def chunk_rows(self) -> NDArray[np.void]:
        """Return the file size and checksum of each chunk."""

    def column(self, name: str) -> NDArray[Any]:
        """Return an `int` or `float` field of all samples, by index."""

    def home(self, chunk: int) -> tuple[Location, int, Manifest]:
        """Return the data set that a chunk belongs to: its location, the chunk's number there, and the manifest."""

    def holder(self, index: int) -> Location:
        """Return the folder of the index files that describe this sample."""


class OwnIndex:
    """The index of a data set that is not a collection. `first_chunk`: see `Tables`."""

    deleted = None

    def __init__(self, location: Location, first_chunk: int = 0) -> None:
        self._location, self.path = location, location.local
        self.manifest = read_manifest(self.path)
        self.share = read_share(self.path, self.manifest)
        header = self.manifest.header
        self.samples = header.samples
        self.rows = open_array(self.path, SAMPLES_NAME, header)
        self.place = open_array(self.path, PLACE_NAME, header)
        self.tables = Tables(header, self.rows, location, first_chunk)

    def drawn(self) -> None:
        """See `Index`."""

    def chunk_rows(self) -> NDArray[np.void]:
        """See `Index`."""
        return open_array(self.path, CHUNKS_NAME, self.manifest.header).all()

    def column(self, name: str) -> NDArray[Any]:
        """See `Index`."""
        return open_array(self.path, column_name(name), self.manifest.header).all()

    def home(self, chunk: int) -> tuple[Location, int, Manifest]:
        """See `Index`."""
        return self._location, chunk, self.manifest

    def holder(self, index: int) -> Location:  # noqa: ARG002 - all samples are here
        """See `Index`."""
        return self._location
