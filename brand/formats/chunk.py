"""The front of a chunk file: preamble, header, dictionary and table (docs/reference/format.md, section 2).

    0               64            64+H          64+H+D        64+H+D+32n                            F
    | preamble (64) | header (H)  | dictionary  | table (32n) | sample 0 | sample 1 |...| sample n-1|

`pack_front` makes it. `read_front` reads and checks it: afterwards every row of the table is inside the file, in order
and without gaps.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import ChecksumError, ForeignFileError, FormatError, LayoutError, OversizedError, TruncatedError
from brand.formats.constants import (
    MAGIC,
    MAX_CHUNK_SAMPLES,
    MAX_DICTIONARY,
    MAX_HEADER,
    PREAMBLE_CHECKSUM_AT,
    PREAMBLE_SIZE,
    ROW,
    VERSION_MAJOR,
    VERSION_MINOR,
)
from brand.formats.header import Header, check_major, unpack_header

_PREAMBLE: Final = struct.Struct("<8sHHIIIQQ16sQ")
_REBUILD: Final = "The file is damaged: copy it again or convert again"


@dataclass(frozen=True)
class Preamble:
    """The first 64 bytes of a chunk file, checked against the format's limits only."""

    header_size: int
    dictionary_size: int
    samples: int
    number: int
    file_size: int
    data_set_id: bytes
    checksum: int

    @property
    def front_size(self) -> int:
        """Bytes before the first sample."""
        return front_size(self.header_size, self.dictionary_size, self.samples)


@dataclass(frozen=True)
class ChunkFront:
    """All sections of a chunk file except the samples, checked."""

    preamble: Preamble
    header: Header
    dictionary: bytes
    rows: NDArray[np.void]
    """The table: one `ROW` a sample, in storage order."""


def front_size(header_size: int, dictionary_size: int, samples: int) -> int:
    """Return the number of bytes before the first sample of a chunk."""
    return PREAMBLE_SIZE + header_size + dictionary_size + ROW.itemsize * samples


def pack_front(
    header: bytes,
    dictionary: bytes,
    rows: NDArray[np.void],
    *,
    number: int,
    data_set_id: bytes,
    minor: int = VERSION_MINOR,
) -> bytes:
    """Return the bytes before the first sample; `rows` must hold final offsets. `minor` is `Header.minor`."""
    sizes = len(header), len(dictionary), len(rows)
    file_size = int(rows["offset"][-1]) + int(rows["size"][-1])
    preamble = _PREAMBLE.pack(MAGIC, VERSION_MAJOR, minor, *sizes, number, file_size, data_set_id, 0)
    rest = header + dictionary + rows.tobytes()
    digest = xxhash.xxh3_64(preamble[:PREAMBLE_CHECKSUM_AT])
    digest.update(rest)
    return preamble[:PREAMBLE_CHECKSUM_AT] + struct.pack("<Q", digest.intdigest()) + rest


def pack_claim(data_set_id: bytes) -> bytes:
    """Return a preamble alone, which replaces chunk 0 in a store until that is written.

    Stores have no folders, so this object marks a place as taken by a data set that is not finished.
    """
    return _PREAMBLE.pack(MAGIC, VERSION_MAJOR, VERSION_MINOR, 0, 0, 0, 0, 0, data_set_id, 0)


def claimed_by(head: bytes) -> bytes | None:
    """Return the identity of the data set whose chunk, or claim, begins with these bytes; None for other bytes."""
    try:
        return parse_preamble(head, Path()).data_set_id
    except FormatError:
        return None


def parse_preamble(data: bytes, path: str | Path, number: int | None = None) -> Preamble:
    """Read the first 64 bytes. Raises `TruncatedError`, `LayoutError` (no chunk), `VersionError`, `OversizedError`."""
    if len(data) < PREAMBLE_SIZE:
        raise TruncatedError(
            "too short for a chunk file", path=path, chunk=number, expected=f">= {PREAMBLE_SIZE} bytes", found=len(data)
        )
    magic, major, _, header_size, dictionary_size, samples, told, file_size, data_set_id, checksum = _PREAMBLE.unpack(
        data[:PREAMBLE_SIZE]
    )
    if magic != MAGIC:
        raise ForeignFileError(
            "not a chunk file", path=path, chunk=number, expected=MAGIC.hex(" "), found=magic.hex(" ")
        )
    check_major(major, path, number)
    for what, value, limit in (
        ("size of the header", header_size, MAX_HEADER),
        ("size of the dictionary", dictionary_size, MAX_DICTIONARY),
        ("number of samples", samples, MAX_CHUNK_SAMPLES),
    ):
        if value > limit:
            raise OversizedError(what, path=path, chunk=number, expected=f"<= {limit}", found=value, hint=_REBUILD)
    return Preamble(header_size, dictionary_size, samples, told, file_size, data_set_id, checksum)


def read_front(file: BinaryIO, path: str | Path, number: int | None = None) -> ChunkFront:
    """Read and check the front of an open chunk file. Raises a `FormatError` that names the fault."""
    file.seek(0, 2)
    actual = file.tell()
    file.seek(0)
    start = file.read(PREAMBLE_SIZE)
    preamble = parse_preamble(start, path, number)
    _check_length(preamble, actual, path)
    rest = file.read(preamble.front_size - PREAMBLE_SIZE)
    digest = xxhash.xxh3_64(start[:PREAMBLE_CHECKSUM_AT])
    digest.update(rest)
    if digest.intdigest() != preamble.checksum:
        what, expected, found = "checksum of header and table", f"{preamble.checksum:016x}", digest.hexdigest()
        raise ChecksumError(what, path=path, chunk=preamble.number, expected=expected, found=found, hint=_REBUILD)
    header_end = preamble.header_size
    dictionary_end = header_end + preamble.dictionary_size
    header = unpack_header(rest[:header_end], path)
    rows = np.frombuffer(rest, ROW, offset=dictionary_end)
    _check_place(preamble, header, path)
    _check_rows(rows, preamble, header, path)
    return ChunkFront(preamble, header, rest[header_end:dictionary_end], rows)


def _check_length(preamble: Preamble, actual: int, path: str | Path) -> None:
    kind: type[FormatError]
    if actual < preamble.file_size:
        kind, fault = TruncatedError, "the file is shorter than its preamble says"
    elif actual > preamble.file_size:
        kind, fault = OversizedError, "the file is longer than its preamble says"
    elif preamble.samples < 1 or preamble.front_size > actual:
        kind, fault = LayoutError, "header and table do not fit the file"
    else:
        return
    expected = f"{preamble.file_size} bytes"
    raise kind(fault, path=path, chunk=preamble.number, expected=expected, found=actual, hint=_REBUILD)


def _check_place(preamble: Preamble, header: Header, path: str | Path) -> None:
    if preamble.number >= header.chunks or preamble.samples != header.chunk_samples(preamble.number):
        raise LayoutError(
            f"chunk {preamble.number} with {preamble.samples} samples cannot belong to a data set"
            f" of {header.samples} samples in chunks of {header.chunk_size}",
            path=path,
            chunk=preamble.number,
        )


def _check_rows(rows: NDArray[np.void], preamble: Preamble, header: Header, path: str | Path) -> None:
    ends = rows["offset"].astype(np.uint64) + rows["size"]
    starts = np.concatenate(([np.uint64(preamble.front_size)], ends[:-1]))
    faults = (rows["offset"] != starts) | (rows["size"] > rows["raw_size"]) | (rows["index"] >= header.samples)
    if faults.any():
        slot = int(np.flatnonzero(faults)[0])
        row = rows[slot]
        raise LayoutError(
            f"row {slot} of the table overlaps, leaves a gap or is out of range",
            path=path,
            chunk=preamble.number,
            sample=int(row["index"]),
            expected=f"offset {int(starts[slot])}",
            found=f"offset {int(row['offset'])}, size {int(row['size'])}, raw size {int(row['raw_size'])}",
        )
    if int(ends[-1]) != preamble.file_size:
        what, expected, found = "the samples do not end where the file ends", preamble.file_size, int(ends[-1])
        raise LayoutError(what, path=path, chunk=preamble.number, expected=expected, found=found)
