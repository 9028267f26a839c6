"""Which files are the index of a data set, and do they agree with the chunks?

The index has files of its own (`OwnIndex`), or is that of all segments of a collection (`joined`). `Catalogue` asks an
`Index` and does not depend on the kind. `Tables` compares an index with the tables of the chunks.
"""

from __future__ import annotations

import threading
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError
from brand.formats.arrays import ArrayFile
from brand.formats.constants import (
    CHUNKS_NAME,
    MAX_DICTIONARY,
    MAX_HEADER,
    PLACE_NAME,
    PREAMBLE_SIZE,
    ROW,
    SAMPLES_NAME,
    column_name,
)
from brand.formats.header import Header
from brand.formats.index import open_array
from brand.formats.manifest import Manifest, Share, read_manifest, read_share
from brand.storage.io.files import ChunkReader, Range
from brand.storage.io.fronts import front_of
from brand.storage.io.location import Location

BLOCK: Final = 4096
"""Rows that are compared at a time: 128 KiB, one cheap read."""
AWAIT_S: Final = 1.0
"""A thread does not wait longer for another one that compares its block, in seconds: it compares the block itself."""
_LARGEST_FRONT: Final = PREAMBLE_SIZE + MAX_HEADER + MAX_DICTIONARY


class Tables:
    """Compares `rows`, the index of the data set at `location`, with the tables of its chunks.

    `first_chunk`: the number that a `reader` gives to chunk 0 of the data set, if the data set is a segment of a
    collection. Any number of threads may use a `Tables`: a block that one thread compares is awaited by the others.

    A sample's checksum proves its bytes, not its index. The chunk's table has the sample's index, and
    `index/samples.npy` repeats it. So each process compares the rows that it uses with the tables, a block of `BLOCK`
    rows at a time, each block once. Blocks are read together, like samples. If the two differ, the whole front of the
    chunk is read and checked. If the front is right, the index is wrong. If the front is damaged, there is nothing to
    compare with, and the index is trusted. The index of a data set in an object store was checked as a whole when it
    was copied: it is not compared.
    """

    def __init__(self, header: Header, rows: ArrayFile, location: Location, first_chunk: int = 0) -> None:
        self._header, self._rows, self._location, self._first_chunk = header, rows, location, first_chunk
        self._blocks = -(-header.chunk_size // BLOCK)
        """Number of blocks of a chunk."""
        self._same = np.zeros(header.chunks * self._blocks, np.bool_)
        """Blocks that need no further comparison, shape (all blocks,)."""
        self._under_way: dict[int, threading.Lock] = {}
        """Blocks that threads compare now, each with a lock that its thread holds. Only steps that no thread interrupts
        change it: a lock around it could be held by another thread when a process is forked."""

    def differing(self, places: NDArray[np.int64], reader: ChunkReader) -> NDArray[np.intp]:
        """Return the positions in `places` whose rows in the index differ from their chunks' tables.

        Raises `FormatError` if the index cannot be read.
        """
        if self._location.in_store:  # the index was checked as a whole
            return np.empty(0, np.intp)
        chunks = places // self._header.chunk_size
        blocks = chunks * self._blocks + (places - chunks * self._header.chunk_size) // BLOCK
        same = self._same[blocks]
        if same.all():
            return np.empty(0, np.intp)
        new = blocks[~same]
        new = np.unique(new[np.diff(new, prepend=-1) != 0])  # many neighbours are in one block
        # Stripes of one chunk may be read at the same time, and each read of a table is an operation of the storage.
        lock = threading.Lock()
        with lock:
            held = [self._under_way.setdefault(block, lock) for block in new.tolist()]
            own = np.array([each is lock for each in held])
            try:
                wrong = [self._differing(new[own & ~self._same[new]], reader)]  # another thread may have ended just now
            finally:
                for block in new[own].tolist():
                    self._under_way.pop(block, None)
        for other in {id(each): each for each in held if each is not lock}.values():
            if other.acquire(timeout=AWAIT_S):
                other.release()
        late = new[~own & ~self._same[new]]
        wrong.append(self._differing(late, reader))
        differing = np.concatenate(wrong)
        return np.flatnonzero(np.isin(places, differing)) if len(differing) else differing

    def _differing(self, blocks: NDArray[np.int64], reader: ChunkReader) -> NDArray[np.int64]:
        """Return the places in these blocks whose rows in the index are wrong."""
        tables = self._read(blocks, reader) if len(blocks) else []
        wrong = [self._compare(int(block), table) for block, table in zip(blocks, tables, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *wrong])

    def _span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        chunks = blocks // self._blocks
        slots = blocks % self._blocks * BLOCK
        samples = np.minimum(self._header.chunk_size, self._header.samples - chunks * self._header.chunk_size)
        return chunks, slots, np.minimum(BLOCK, samples - slots)

    def _read(self, blocks: NDArray[np.int64], reader: ChunkReader) -> list[NDArray[np.void] | None]:
        """Return the rows of these blocks in the chunks' tables, unchecked; None if they cannot be read."""
        chunks, slots, counts = self._span(blocks)
        firsts = chunks * self._header.chunk_size
        samples = np.minimum(self._header.chunk_size, self._header.samples - firsts)
        # A table ends where the chunk's first sample begins.
        starts = self._rows.take(firsts)["offset"].astype(np.int64) - ROW.itemsize * samples
        found: list[NDArray[np.void] | None] = [None] * len(blocks)
        ranges: dict[int, Range] = {}
        for number in np.flatnonzero((starts >= PREAMBLE_SIZE) & (starts <= _LARGEST_FRONT)).tolist():
            table = found[number] = np.empty(int(counts[number]), ROW)
            offset = int(starts[number]) + ROW.itemsize * int(slots[number])
            ranges[number] = (self._first_chunk + int(chunks[number]), offset, table.view(np.uint8).data)
        try:
            reader.read_into(list(ranges.values()))
        except OSError:
            for number, wanted in ranges.items():
                try:
                    reader.read_into([wanted])
                except OSError:
                    found[number] = None
        return found

    def _compare(self, block: int, table: NDArray[np.void] | None) -> NDArray[np.int64]:
        """Return the places of a block whose rows in the index are wrong."""
        (chunk,), (slot,), (count,) = (values.tolist() for values in self._span(np.array([block])))
        first = chunk * self._header.chunk_size + slot
        known = self._rows.run(first, first + count)
        if table is None or not np.array_equal(table.view(np.uint8), known.view(np.uint8)):
            table = self._whole_table(chunk)
            if table is not None:
                wrong = np.arange(count, dtype=np.int64)
                if len(table) >= slot + count:  # else the file is another chunk
                    wrong = wrong[table[slot : slot + count] != known]
                if len(wrong):
                    return wrong + np.int64(first)
        self._same[block] = True
        return np.empty(0, np.int64)

    def _whole_table(self, chunk: int) -> NDArray[np.void] | None:
        """Return the table of a chunk whose front is right; None if the front is damaged or cannot be read."""
        try:
            return front_of(self._location, chunk).rows
        except (FormatError, OSError):
            return None


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
    """The index of a data set that is not a collection. `first_chunk`: see `Tables`.

    It returns the files themselves, so reads of a data set that is not a collection have no extra layer.
    """

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
        return open_array(self.path, CHUNKS_NAME, self.manifest.header).all()

    def column(self, name: str) -> NDArray[Any]:
        return open_array(self.path, column_name(name), self.manifest.header).all()

    def home(self, chunk: int) -> tuple[Location, int, Manifest]:
        return self._location, chunk, self.manifest

    def holder(self, index: int) -> Location:  # noqa: ARG002 - all samples are here
        return self._location
