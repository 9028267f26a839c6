"""A data set opened for reading: how do indices become checked records?

    indices -> places -> rows (`Catalogue`) -> ranges (`cut_ranges`, pure) -> bytes -> checksum
    -> the chunk's own table (`Tables`) -> record

Reads have no side effect. Several threads may use one object, also across `fork`: each thread has its own readers and
decompressors. `blame` makes the errors of failed reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.errors import DecodeError, ElsewhereError, FormatError
from brand.formats.chunk import ChunkFront
from brand.formats.compression import Decompressor
from brand.formats.contents import StoredSamples
from brand.formats.record import RecordDecoder
from brand.storage.dataset import blame
from brand.storage.dataset.catalogue import Catalogue
from brand.storage.io.fronts import dictionary_in, file_size, open_chunk
from brand.storage.io.location import Location, Where

SCRATCH_BYTES: Final = 32 << 20
"""Maximum scratch memory that a thread retains between reads."""


class StoredDataSet(Catalogue):
    """Checked random access to a data set on storage. Picklable: each process opens the files again."""

    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self._tables = self._index.tables
        self._tools = _Tools(self.location)

    def sample(self, index: int) -> dict[str, Any]:
        return self.samples(np.array([index]))[0]

    def samples(
        self, indices: Sequence[int] | NDArray[np.integer[Any]], decode: RecordDecoder | None = None
    ) -> list[dict[str, Any]]:
        """See `Reader.samples`. `decode` decodes the samples, without the overlays of a collection."""
        wanted = np.asarray(indices)
        if len(wanted) and wanted.dtype.kind not in "iu":
            raise TypeError(f"indices are whole numbers, not {wanted.dtype}")
        outside = wanted[(wanted < 0) | (wanted >= len(self))]
        if len(outside):
            raise IndexError(f"sample {outside[0]}: this data set has samples 0 to {len(self) - 1}")
        if not len(wanted):
            return []
        if decode is not None:
            return self.decoded(self._stored(wanted), decode)
        found = self.decoded(self._stored(wanted), RecordDecoder(self.header.schema))
        for name, values in self.overlaid(wanted).items():
            for sample, value in zip(found, values.tolist(), strict=True):
                sample[name] = value
        return found

    def decoded(self, stored: StoredSamples, decode: RecordDecoder) -> list[dict[str, Any]]:
        """Return checked samples, decoded by `decode`. Raises `FormatError`."""
        columns = self.columns(stored, decode)
        if not columns:
            return [{} for _ in range(len(stored))]
        lists = [column if isinstance(column, list) else column.tolist() for column in columns]
        return [dict(zip(decode.names, values, strict=True)) for values in zip(*lists, strict=True)]

    def columns(self, stored: StoredSamples, decode: RecordDecoder) -> list[NDArray[Any] | list[Any]]:
        """Return fields of checked samples, by `decode`: numbers as arrays, others as lists. Raises `FormatError`."""
        decompressor = self._decompressor
        try:
            return stored.columns(decode, decompressor)
        except (ValueError, RecursionError):
            # Decode one by one, to name the sample at fault.
            for number, row in enumerate(stored.rows):
                try:
                    decode(decompressor.unpack(stored.view(number), int(row["raw_size"])))
                except (ValueError, RecursionError) as error:
                    raise self.decode_error(str(error), int(row["index"])) from error
            raise

    def stored_bytes(self, places: NDArray[np.integer[Any]], *, raising: bool = False) -> list[bytes | None]:
        """Return the stored bytes of the samples at these places, checked; None for a sample that cannot be read.

        `raising`: raise the error of the first sample that cannot be read.
        """
        try:
            stored = self._stored(self.indices(places))
            return [bytes(stored.view(number)) for number in range(len(places))]
        except (FormatError, ElsewhereError):
            if raising:
                raise
            if len(places) == 1:
                return [None]
        # Read one by one, so that only the faulty samples are None.
        return [found for place in places for found in self.stored_bytes(np.array([place]))]

    @property
    def dictionary(self) -> bytes:
        """The compression dictionary; empty if there is none. Raises `FormatError`."""
        return _dictionary_of(self)

    def decode_error(self, what: str, index: int, hint: str = "") -> DecodeError:
        """Return the error for a sample that cannot be decoded although its checksum is right."""
        return blame.not_decoded(self.location, self.chunk_of(index), index, what, hint)

    def open_chunk(self, number: int) -> ChunkFront:
        """Read a chunk's front, and check that it is whole and the one that the index lists. Raises `FormatError`."""
        location, own, manifest = self._index.home(number)
        return open_chunk(location, own, manifest, self.chunk_rows[number])

    def check_file_size(self, number: int) -> None:
        """Check that a chunk's file has the size that the index records. Reads nothing. Raises `FormatError`."""
        if file_size(self.location, number) != int(self.chunk_rows["file_size"][number]):
            self.open_chunk(number)  # raises the error that names the wrong one of the two

    def check_tables(self, places: NDArray[np.int64], *, close: bool = False) -> None:
        """Check that the rows of the index for these places agree with their chunks' own tables, once for each row.

        `close`: leave no chunk open afterwards. Raises `FormatError` if they differ.
        """
        differing = self._tables.differing(places, self._tools.reader)
        if close:
            self._tools.reader.close()
        for position in differing.tolist():
            place = int(places[position])
            number, sample = place // self.header.chunk_size, int(self.rows(place, place + 1)["index"][0])
            self._check_front(number, sample)
            raise blame.other_table(self.location, number, sample)

    def are_inside(self, chunks: NDArray[np.integer[Any]], rows: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return which of these rows of the index give a range inside their chunk's file, and a possible size."""
        room = self.chunk_rows["file_size"][chunks]
        # A difference, because the sum of two damaged numbers may overflow.
        inside: NDArray[np.bool_] = (rows["offset"] <= room) & (rows["size"] <= room - rows["offset"])
        # A sample that compression would enlarge is stored raw.
        inside &= rows["size"] <= rows["raw_size"]
        return inside

    def _stored(self, indices: NDArray[np.integer[Any]]) -> StoredSamples:
        """Read samples and check them. They are in this thread's scratch memory, valid until its next read."""
        return self.stored_at(*self.locate(indices))

    def stored_at(self, places: NDArray[np.int64], rows: NDArray[np.void]) -> StoredSamples:
        """Do the work of `_stored` for samples of which the caller has the places, and the rows of the index."""
        chunks = places // self.header.chunk_size
        self._check_rows(chunks, rows)
        stored = StoredSamples(*self._read(chunks, rows), rows)
        for position in np.flatnonzero(~stored.right()).tolist():
            number, row = int(chunks[position]), rows[position]
            self._check_front(number, int(row["index"]))
            raise blame.changed(self.location, number, row, stored.view(position))
        self.check_tables(places)
        return stored

    def _check_rows(self, chunks: NDArray[np.int64], rows: NDArray[np.void]) -> None:
        """Check that each sample is in a chunk of this folder, and that its range is inside the chunk.

        No allocation relies on an unchecked length: before a large one, each chunk's file must have the size that the
        index records. Raises `FormatError`, `ElsewhereError`.
        """
        if self.share is not None and not (here := self.share.here(chunks)).all():
            position = int(np.flatnonzero(~here)[0])
            raise blame.elsewhere(self.location, self.share, int(chunks[position]), int(rows["index"][position]))
        if rows["size"].sum(dtype=np.uint64) > SCRATCH_BYTES:
            for number in np.unique(chunks).tolist():
                self.check_file_size(number)
        inside = self.are_inside(chunks, rows)
        if not inside.all():
            position = int(np.flatnonzero(~inside)[0])
            number = int(chunks[position])
            room = int(self.chunk_rows["file_size"][number])
            raise blame.outside_its_chunk(self.location, number, rows[position], room)

    def _read(self, chunks: NDArray[np.int64], rows: NDArray[np.void]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return this thread's scratch memory with the stored bytes of each row, and the offset of each row's bytes."""
        cut = cut_ranges(chunks, rows)
        ends = np.cumsum(cut.sizes, dtype=np.int64)
        begins = ends - cut.sizes
        scratch = self._tools.scratch(int(ends[-1]))
        buffers = [scratch[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        try:
            self._tools.reader.read_into(list(zip(cut.chunks, cut.offsets, buffers, strict=True)))
        except OSError as error:
            raise blame.unreadable(self.location, self._tools.reader, error, chunks, rows) from error
        return np.frombuffer(scratch, np.uint8), begins[cut.range_of] + cut.starts

    def _check_front(self, number: int, sample: int) -> None:
        """Raise the error of a chunk's front, if it has one, after a sample has differed from the index."""
        try:
            self.open_chunk(number)
        except FormatError as error:
            raise error.of_sample(sample) from error.__cause__

    @property
    def _decompressor(self) -> Decompressor:
        """The decompressor of the current thread. Raises `FormatError`."""
        try:
            return self._tools.decompressor(partial(_dictionary_of, self))
        except ValueError as error:
            raise blame.no_dictionary(self.location, self.chunks_here, error) from error


def _dictionary_of(data: StoredDataSet) -> bytes:
    if not data.manifest.dictionary_size:
        return b""
    copied = data.location.dictionary()
    return dictionary_in(data.chunks_here, data.open_chunk) if copied is None else copied


class CoveringRanges(NamedTuple):
    """Ranges that cover some samples, and the position of each sample in them."""

    chunks: list[int]
    offsets: list[int]
    sizes: list[int]
    range_of: list[int]
    """For each sample, the number of its range in the lists above."""
    starts: list[int]
    """For each sample, its offset in its range."""


def cut_ranges(chunks: NDArray[np.integer[Any]], rows: NDArray[np.void]) -> CoveringRanges:
    """Return one range for each run of adjacent samples of a chunk. A sample that occurs twice is read once. Pure."""
    offsets, sizes = rows["offset"].astype(np.int64), rows["size"].astype(np.int64)
    order = np.lexsort((offsets, chunks))
    chunk, start = chunks[order], offsets[order]
    end = start + sizes[order]
    joins = (chunk[1:] == chunk[:-1]) & ((start[1:] == end[:-1]) | (start[1:] == start[:-1]))
    first = np.concatenate(([True], ~joins))
    heads = np.flatnonzero(first)
    range_sorted = np.cumsum(first) - 1
    range_of, within = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    range_of[order] = range_sorted
    within[order] = start - start[heads][range_sorted]
    lengths = np.maximum.reduceat(end, heads) - start[heads]
    return CoveringRanges(
        chunk[heads].tolist(), start[heads].tolist(), lengths.tolist(), range_of.tolist(), within.tolist()
    )


class _Tools(threading.local):
    """The reader, decompressor and scratch memory of one thread."""

    def __init__(self, location: Location) -> None:
        self.reader = location.reader()
        self._decompressor: Decompressor | None = None
        self._memory = memoryview(bytearray())

    def decompressor(self, dictionary: Callable[[], bytes]) -> Decompressor:
        """Return the thread's decompressor. Calls `dictionary` once. Raises ValueError if its result is invalid."""
        if self._decompressor is None:
            self._decompressor = Decompressor(dictionary())
        return self._decompressor

    def scratch(self, size: int) -> memoryview:
        """Return at least `size` bytes of memory to read into.

        Memory of up to `SCRATCH_BYTES` is reused, because fresh pages cost more than the read itself.
        """
        if size > SCRATCH_BYTES:
            return memoryview(bytearray(size))
        if size > len(self._memory):
            self._memory = memoryview(bytearray(min(SCRATCH_BYTES, 2 * size)))
        return self._memory
