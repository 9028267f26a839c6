"""A data set opened for reading: how do indices become checked records?

    indices -> places (index/place.npy) -> rows (index/samples.npy) -> ranges (`cut_ranges`, pure) -> bytes -> checksum
    -> the chunk's own table (`Tables`) -> record

Opening reads nothing of the index, so it takes the same time and memory for any number of samples. Reads have no side
effect. One object may be used by several threads and across `fork`: each thread has its descriptors and decompressors.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import (
    ChecksumError,
    DecodeError,
    ElsewhereError,
    FormatError,
    LayoutError,
    OversizedError,
    SchemaError,
    UnreadableError,
)
from brand.formats.chunk import Front
from brand.formats.compression import Decompressor
from brand.formats.constants import CHUNKS_NAME, PLACE_NAME, SAMPLES_NAME, chunk_name, column_name
from brand.formats.header import Header
from brand.formats.index import open_array
from brand.formats.manifest import Manifest, read_manifest
from brand.formats.record import RecordDecoder
from brand.formats.share import Share, read_share
from brand.formats.stored import Stored
from brand.storage.cuts import cut_ranges
from brand.storage.files import RangeReader
from brand.storage.fronts import file_size, missing_chunk, open_chunk
from brand.storage.tables import Tables

SCRATCH_BYTES: Final = 32 << 20
"""Largest scratch memory that a thread keeps."""

_DICTIONARY_TRIES: Final = 8
_DAMAGED: Final = "Run `brand verify` to see all that is damaged"
_REINDEX: Final = "Run `brand reindex`"
_ELSEWHERE: Final = "Train over all nodes, where each serves its share to the others, or read the undivided data set"


class StoredDataSet:
    """Exact, checked reads from a data set on storage. Picklable; opens its files anew in each process."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()  # stays right when the working folder changes
        self.manifest: Manifest = read_manifest(self.path)
        self.share: Share | None = read_share(self.path, self.manifest)  # None: this is the whole data set
        self._base = f"{self.path}/"
        self._rows = open_array(self.path, SAMPLES_NAME, self.header)
        self._place = open_array(self.path, PLACE_NAME, self.header)
        self._tables = Tables(self.header, self._rows, self.chunk_file)
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def __len__(self) -> int:
        return self.header.samples

    @property
    def header(self) -> Header:
        """Samples, chunk size, schema, classes."""
        return self.manifest.header

    @property
    def id(self) -> str:
        """Identity of the data set: 32 hexadecimal digits."""
        return self.manifest.data_set_id.hex()

    @property
    def mean_bytes(self) -> float:
        """Mean size of a stored sample."""
        return self.manifest.mean_bytes

    @cached_property
    def chunk_rows(self) -> NDArray[np.void]:
        """File size and checksum of each chunk."""
        return open_array(self.path, CHUNKS_NAME, self.header).all()

    def place(self, index: int) -> int:
        """Where a sample is stored. Raises `FormatError`."""
        return int(self.places(np.array([index]))[0])

    def places(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Where samples are stored. Raises `FormatError`; IndexError for an index that the data set does not have."""
        return self._locate(indices)[0]

    def _locate(self, indices: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Places of samples, and their rows."""
        places = self._place.take(indices).astype(np.int64)
        if len(places) and int(places.view(np.uint64).max()) >= len(self):
            worst = int(places.view(np.uint64).argmax())
            raise LayoutError(
                "a place out of range",
                path=self.path / PLACE_NAME,
                sample=int(indices[worst]),
                expected=f"< {len(self)}",
                found=int(places[worst]),
                hint=_REINDEX,
            )
        rows = self._rows.take(places)
        if not np.array_equal(rows["index"], indices):
            position = int(np.flatnonzero(rows["index"] != indices)[0])
            raise self._contradiction(int(indices[position]), int(rows["index"][position]))
        return places, rows

    def chunk_of(self, index: int) -> int:
        """Number of the chunk that holds a sample."""
        return self.place(index) // self.header.chunk_size

    def chunk_path(self, number: int) -> Path:
        """Where a chunk lies."""
        return Path(self.chunk_file(number))

    def chunk_file(self, number: int) -> str:
        """The same as text, at a tenth of the price."""
        return f"{self._base}{chunk_name(number)}"

    @property
    def chunks_here(self) -> range:
        """Numbers of the chunks that are in this folder: all of them, unless it is a share."""
        return range(self.header.chunks) if self.share is None else self.share.chunks

    def here(self, chunks: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Which of these chunks are in this folder. Looks at no file."""
        return np.ones(len(chunks), np.bool_) if self.share is None else self.share.here(chunks)

    def column(self, name: str) -> NDArray[Any]:
        """An `int` or `float` field of all samples by index, shape (len,), read-only; 8 bytes of memory a sample.

        `brand verify` compares it with the samples; reading does not. Raises `SchemaError` for other fields,
        `FormatError`.
        """
        codec = self.header.schema.codec(name)
        if codec not in ("int", "float"):
            fixed = ", ".join(n for n, _ in self.header.schema.fixed) or "none"
            raise SchemaError(f"field {name!r} ({codec}) is not kept as a column; columns: {fixed}")
        found = open_array(self.path, column_name(name), self.header).all()
        found.flags.writeable = False
        return found

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """Rows of the index for the places `first` to `end` - 1. Raises `FormatError`."""
        return self._rows.run(first, end)

    def rows_at(self, places: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """Rows of the index for these places. Raises `FormatError`."""
        return self._rows.take(places)

    def samples(self, indices: NDArray[np.integer[Any]], decode: RecordDecoder) -> list[dict[str, Any]]:
        """The samples with these indices (each 0 <= i < len), in that order, as `decode` makes them.

        Raises `FormatError`, and `ElsewhereError` where one is in the share of another node.
        """
        return self.decoded(self._stored(indices), decode) if len(indices) else []

    def decoded(self, stored: Stored, decode: RecordDecoder) -> list[dict[str, Any]]:
        """Samples that were checked, as `decode` makes them. Raises `FormatError`."""
        columns = self.columns(stored, decode)
        if not columns:
            return [{} for _ in range(len(stored))]
        lists = [column if isinstance(column, list) else column.tolist() for column in columns]
        return [dict(zip(decode.names, values, strict=True)) for values in zip(*lists, strict=True)]

    def columns(self, stored: Stored, decode: RecordDecoder) -> list[NDArray[Any] | list[Any]]:
        """The fields that `decode` makes of samples that were checked: numbers as arrays, others as lists.

        Raises `FormatError`.
        """
        unpack = self._tools.decompressor.unpack
        try:
            return stored.columns(decode, self._tools.decompressor)
        except (ValueError, RecursionError):
            for number, row in enumerate(stored.rows):
                try:
                    decode(unpack(stored.view(number), int(row["raw_size"])))
                except (ValueError, RecursionError) as error:
                    raise self.decode_error(str(error), int(row["index"])) from error
            raise

    def indices(self, places: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Public indices of the samples at these places. Raises `FormatError`, also for an index that is no inverse."""
        found: NDArray[np.int64] = self._rows.take(places)["index"].astype(np.int64)
        wrong = np.flatnonzero(~self.are_at(found, places))
        if len(wrong):
            raise self._contradiction(int(found[wrong[0]]), int(places[wrong[0]]))
        return found

    def are_at(self, indices: NDArray[np.int64], places: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Which samples the index puts at these places; an index may be any number. Raises `FormatError`."""
        there = indices.view(np.uint64) < len(self)
        found: NDArray[np.bool_] = there & (self._place.take(np.where(there, indices, 0)) == places)
        return found

    def stored_bytes(self, places: NDArray[np.integer[Any]]) -> list[bytes | None]:
        """The samples at these places as they are stored, checked; None for each that cannot be read."""
        try:
            stored = self._stored(self.indices(places))
            return [bytes(stored.view(number)) for number in range(len(places))]
        except (FormatError, ElsewhereError):
            if len(places) == 1:
                return [None]
        return [found for place in places for found in self.stored_bytes(np.array([place]))]

    def sample(self, index: int) -> dict[str, Any]:
        """All fields of one sample, images and audio as bytes. Raises `FormatError`, `ElsewhereError`, IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index}: this data set has samples 0 to {len(self) - 1}")
        return self.samples(np.array([index]), RecordDecoder(self.header.schema))[0]

    def decode_error(self, what: str, index: int, hint: str = "") -> DecodeError:
        """An error about a sample whose bytes are right and still do not decode."""
        chunk = self.chunk_of(index)
        return DecodeError(what, path=self.chunk_path(chunk), chunk=chunk, sample=index, hint=hint)

    def open_chunk(self, number: int) -> Front:
        """Read and check a chunk's front, and that it is the one that the index knows. Raises `FormatError`."""
        return open_chunk(self.chunk_path(number), number, self.manifest, self.chunk_rows[number])

    def check_file_size(self, number: int) -> None:
        """Has a chunk's file the size that the index says? Looks at the folder only. Raises `FormatError`."""
        if file_size(self.chunk_path(number), number) != int(self.chunk_rows["file_size"][number]):
            self.open_chunk(number)  # raises the error that tells which of the two is wrong

    def _stored(self, indices: NDArray[np.integer[Any]]) -> Stored:
        """Checked samples, which lie in this thread's scratch memory until its next read."""
        places, rows = self._locate(indices)
        chunks = places // self.header.chunk_size
        if self.share is not None:
            self._check_here(self.share, chunks, indices)
        self._check_sizes(chunks, rows)
        stored = Stored(*self._read(chunks, rows), rows)
        for position in np.flatnonzero(~stored.right()).tolist():
            self._explain(int(chunks[position]), rows[position], stored.view(position))
        self.check_tables(places)
        return stored

    def check_tables(self, places: NDArray[np.int64], *, close: bool = False) -> None:
        """Are the rows of the index for these places those of their chunks' own tables? Looks once at each.

        `close`: keep no chunk open after it. Raises `FormatError` where they are not.
        """
        differing = self._tables.differing(places, self._tools.reader)
        if close:
            self._tools.reader.close()
        for position in differing.tolist():
            place = int(places[position])
            number, sample = place // self.header.chunk_size, int(self.rows(place, place + 1)["index"][0])
            self._explain_front(number, sample)
            what = "the index differs from the chunk's table"
            raise LayoutError(what, path=self.chunk_path(number), chunk=number, sample=sample, hint=_REINDEX)

    def _contradiction(self, expected: int, found: int) -> LayoutError:
        """The error for a sample that `place.npy` and `samples.npy` disagree about."""
        what, path = "the two halves of the index disagree", self.path / PLACE_NAME
        return LayoutError(what, path=path, sample=expected, expected=expected, found=found, hint=_REINDEX)

    def _read(self, chunks: NDArray[np.int64], rows: NDArray[np.void]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """This thread's scratch memory, with the stored bytes of each row, and where they begin."""
        cut = cut_ranges(chunks, rows)
        ends = np.cumsum(cut.sizes, dtype=np.int64)
        begins = ends - cut.sizes
        scratch = self._tools.scratch(int(ends[-1]))
        files = {chunk: self.chunk_file(chunk) for chunk in set(cut.chunks)}
        ranges = []
        for chunk, offset, begin, end in zip(cut.chunks, cut.offsets, begins.tolist(), ends.tolist(), strict=True):
            ranges.append((files[chunk], offset, scratch[begin:end]))
        try:
            self._tools.reader.read_into(ranges)
        except OSError as error:
            number = int(Path(error.filename).stem)
            raise self._unreadable(error, number, rows[chunks == number]) from error
        return np.frombuffer(scratch, np.uint8), begins[cut.range_of] + cut.starts

    def _unreadable(self, error: OSError, number: int, rows: NDArray[np.void]) -> FormatError:
        """Why a chunk cannot be read: names the first of these samples of it that cannot be read alone either."""
        path, sample = self.chunk_path(number), int(rows["index"][0])
        if isinstance(error, FileNotFoundError):
            return missing_chunk(path, number, sample)
        for row in rows:
            buffer = memoryview(bytearray(int(row["size"])))
            try:
                self._tools.reader.read_into([(str(path), int(row["offset"]), buffer)])
            except OSError:
                sample = int(row["index"])
                break
        what = f"cannot be read: {error.strerror}"
        return UnreadableError(what, path=path, chunk=number, sample=sample, hint=_DAMAGED)

    def _check_here(self, share: Share, chunks: NDArray[np.int64], indices: NDArray[np.integer[Any]]) -> None:
        """A sample of another node's chunk cannot be read from this folder, and nothing is wrong with it."""
        here = share.here(chunks)
        if here.all():
            return
        position = int(np.flatnonzero(~here)[0])
        node = int(share.owners(chunks[[position]])[0])
        what = f"it is in the share of node {node}, and this is the share of node {share.node}"
        chunk, sample = int(chunks[position]), int(indices[position])
        raise ElsewhereError(what, path=self.path, chunk=chunk, sample=sample, node=node, hint=_ELSEWHERE)

    def _check_sizes(self, chunks: NDArray[np.int64], rows: NDArray[np.void]) -> None:
        """No allocation by an unchecked length: each range must lie inside its chunk as the index knows it, and a chunk
        have the size that the index says where much is about to be allocated.
        """
        if rows["size"].sum(dtype=np.uint64) > SCRATCH_BYTES:
            for number in np.unique(chunks).tolist():
                self.check_file_size(number)
        room = self.chunk_rows["file_size"][chunks]
        faults = (rows["offset"] > room) | (rows["size"] > room - rows["offset"]) | (rows["size"] > rows["raw_size"])
        if faults.any():
            position = int(np.flatnonzero(faults)[0])
            raise OversizedError(
                "the index places a sample outside its chunk",
                path=self.path / SAMPLES_NAME,
                chunk=int(chunks[position]),
                sample=int(rows["index"][position]),
                expected=f"end <= {int(room[position])}",
                found=int(rows["offset"][position]) + int(rows["size"][position]),
                hint=_REINDEX,
            )

    def _explain(self, number: int, row: np.void, stored: memoryview) -> None:
        """A sample's checksum failed: raise the error that says why, looking closer at its chunk first."""
        self._explain_front(number, int(row["index"]))
        raise ChecksumError(
            "the sample's bytes have changed",
            path=self.chunk_path(number),
            chunk=number,
            sample=int(row["index"]),
            expected=f"{int(row['checksum']):016x}",
            found=xxhash.xxh3_64_hexdigest(stored),
            hint=_DAMAGED,
        )

    def _explain_front(self, number: int, index: int) -> None:
        """Raise the error of a chunk's front, if it has one, about a sample that is not as the index says."""
        try:
            self.open_chunk(number)
        except FormatError as error:
            raise error.of_sample(index) from error.__cause__

    def _dictionary(self) -> bytes:
        """The compression dictionary: every chunk has it, so a damaged one is no reason to go without."""
        *others, last = self.chunks_here[:_DICTIONARY_TRIES]
        for number in others:
            try:
                return self.open_chunk(number).dictionary
            except FormatError:
                continue
        return self.open_chunk(last).dictionary

    @property
    def _tools(self) -> _Tools:
        """This thread's reader, decompressor and scratch memory."""
        if not hasattr(self._local, "tools"):
            dictionary = self._dictionary() if self.manifest.dictionary_size else b""
            try:
                self._local.tools = _Tools(RangeReader(), Decompressor(dictionary))
            except ValueError as error:
                first = self.chunks_here[0]
                raise LayoutError(str(error), path=self.chunk_path(first), chunk=first) from error
        tools: _Tools = self._local.tools
        return tools


@dataclass
class _Tools:
    """What one thread reads with."""

    reader: RangeReader
    decompressor: Decompressor
    _memory: memoryview = field(default_factory=lambda: memoryview(bytearray()))

    def scratch(self, size: int) -> memoryview:
        """Memory to read into.

        It is used again, up to `SCRATCH_BYTES`, as fresh pages cost more than the read itself.
        """
        if size > SCRATCH_BYTES:
            return memoryview(bytearray(size))
        if size > len(self._memory):
            self._memory = memoryview(bytearray(min(SCRATCH_BYTES, 2 * size)))
        return self._memory
