"""The samples of a chunk file: checked stored bytes, and the records and values that they unpack to.

`read_records` passes over a whole chunk. It reads blocks of up to `BLOCK_BYTES` (or one sample, if that is larger), so
memory does not depend on the chunk's size. `StoredSamples` are any samples in one memory, checked and decoded together.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import ChecksumError, DecodeError, FormatError, LayoutError
from brand.formats.chunk import ChunkFront
from brand.formats.compression import Decompressor
from brand.formats.noticed import Counts, added, has_media, look
from brand.formats.record import RecordDecoder, Records, column_dtype, fixed_dtype, stored_columns
from brand.formats.values import Buffer

Unpack = Callable[[Buffer, int], Buffer]

BLOCK_BYTES: Final = 8 << 20


def cut_blocks(sizes: NDArray[np.integer], limit: int = BLOCK_BYTES) -> list[tuple[int, int]]:
    """Yield (start, end) of consecutive runs of at most `limit` bytes; an item above it is a run of its own. Pure."""
    ends = np.cumsum(sizes, dtype=np.int64)
    blocks, start, before = [], 0, 0
    while start < len(sizes):
        end = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        blocks.append((start, end))
        start, before = end, int(ends[end - 1])
    return blocks


def read_records(file: BinaryIO, front: ChunkFront, path: str | Path) -> Iterator[tuple[np.void, Buffer | FormatError]]:
    """Yield (row, record) for each sample in storage order. For a damaged record, yield the error in its place.

    Raises `LayoutError` if the chunk's dictionary is damaged.
    """
    rows, number = front.rows, front.preamble.number
    try:
        unpack = Decompressor(front.dictionary).unpack
    except ValueError as error:
        raise LayoutError(str(error), path=path, chunk=number) from error
    for start, end in cut_blocks(rows["size"]):
        first = int(rows["offset"][start])
        block = _read_block(file, first, int(rows["offset"][end - 1]) + int(rows["size"][end - 1]) - first)
        for row in rows[start:end]:
            at = int(row["offset"]) - first
            stored = block[at : at + int(row["size"])]
            yield row, _check(stored, row, number, path, unpack)


def read_facts(file: BinaryIO, front: ChunkFront, path: str | Path) -> tuple[NDArray[np.void], Counts]:
    """Return the columns of all samples of a chunk, one structured row each, and the counts of `look`.

    Raises the `FormatError` of the first damaged sample.
    """
    schema = front.header.schema
    size = fixed_dtype(schema).itemsize
    heads, counts, with_lists = [], list[Counts](), schema.columns != schema.fixed
    for row, record in read_records(file, front, path):
        if isinstance(record, FormatError):
            raise record
        if len(record) < size:
            what = f"a record of {len(record)} bytes is too short for {size} bytes of numbers"
            raise DecodeError(what, path=path, chunk=front.preamble.number, sample=int(row["index"]))
        if with_lists:
            try:
                heads.append(stored_columns(schema, Records.of([record])).tobytes())
            except ValueError as error:
                raise DecodeError(
                    str(error), path=path, chunk=front.preamble.number, sample=int(row["index"])
                ) from error
        else:
            heads.append(bytes(record[:size]))
        if has_media(schema):
            with suppress(ValueError):  # `brand verify` reports a record that does not fit its schema
                counts.append(look(schema, Records.of([record]), row["index"][None]))
    columns = np.frombuffer(b"".join(heads), column_dtype(schema)) if schema.columns else np.empty(len(heads), [])
    return columns, added(*counts)


def _read_block(file: BinaryIO, offset: int, size: int) -> memoryview:
    """Return the bytes of a range, fewer if the file ends, in fresh memory."""
    block = np.empty(size, np.uint8).data
    file.seek(offset)
    return block[: cast(io.RawIOBase, file).readinto(block)]


def _check(stored: memoryview, row: np.void, number: int, path: str | Path, unpack: Unpack) -> Buffer | FormatError:
    expected, sample = int(row["checksum"]), int(row["index"])
    if xxhash.xxh3_64_intdigest(stored) != expected:
        what, told, found = "the sample's bytes have changed", f"{expected:016x}", xxhash.xxh3_64_hexdigest(stored)
        return ChecksumError(what, path=path, chunk=number, sample=sample, expected=told, found=found)
    try:
        return unpack(stored, int(row["raw_size"]))
    except ValueError as error:
        return DecodeError(str(error), path=path, chunk=number, sample=sample)


@dataclass(frozen=True, slots=True)
class StoredSamples:
    """Samples as they are stored, not yet unpacked."""

    memory: NDArray[np.uint8]
    starts: NDArray[np.int64]
    """Offset of each sample in `memory`."""
    rows: NDArray[np.void]
    """The samples' rows of the index, of dtype `ROW`: size, raw size, checksum, index."""

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, which: NDArray[Any] | slice) -> StoredSamples:
        """Return some of the samples; `which` holds their positions, or is a mask or a slice."""
        return StoredSamples(self.memory, self.starts[which], self.rows[which])

    def records(self) -> Records:
        """Return the stored bytes of the samples."""
        return Records(self.memory, self.starts, self.rows["size"].astype(np.int64))

    def pieces(self) -> list[Buffer]:
        return self.records().pieces()

    def right(self) -> NDArray[np.bool_]:
        """Return whether each sample has the recorded checksum, shape (samples,)."""
        right: NDArray[np.bool_] = self.records().checksums() == self.rows["checksum"]
        return right

    def view(self, number: int) -> memoryview:
        """Return the stored bytes of one sample."""
        start = int(self.starts[number])
        return self.memory.data[start : start + int(self.rows["size"][number])]

    def columns(self, decode: RecordDecoder, decompressor: Decompressor) -> list[NDArray[Any] | list[Any]]:
        """Return the fields that `decode` makes: numbers as arrays, other fields as lists.

        Raises ValueError or RecursionError if a sample does not unpack or decode.
        """
        return decode.columns(decompressor.unpack_all(self.records(), self.rows["raw_size"].astype(np.int64)))
