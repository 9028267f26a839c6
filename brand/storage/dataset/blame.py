"""If a read fails, which error names the file, chunk and sample at fault?

These functions make the errors; the caller raises them.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
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
    TruncatedError,
    UnreadableError,
)
from brand.formats.constants import PLACE_NAME, SAMPLES_NAME
from brand.formats.manifest import Share
from brand.formats.publish import remedy_for
from brand.storage.io.files import ChunkReader
from brand.storage.io.fronts import missing_chunk
from brand.storage.io.location import Location

_DAMAGED: Final = "Run `brand verify` to list all damaged samples"
_REINDEX: Final = "Run `brand reindex`"
_ELSEWHERE: Final = (
    "Train over all nodes, so that each serves its partition to the others, or read the undivided data set"
)


def place_out_of_range(location: Location, sample: int, place: int, samples: int) -> LayoutError:
    """Return the error for an index that gives a sample a place >= `samples`, the number of places of the data set."""
    path = location.local / PLACE_NAME
    what, expected = "a place out of range", f"< {samples}"
    return LayoutError(what, path=path, sample=sample, expected=expected, found=place, hint=_REINDEX)


def halves_disagree(location: Location, sample: int, found: int) -> LayoutError:
    """Return the error for an entry of `place.npy` that leads to another sample's row of `samples.npy`."""
    what, path = "the two halves of the index disagree", location.local / PLACE_NAME
    return LayoutError(what, path=path, sample=sample, expected=sample, found=found, hint=_REINDEX)


def outside_its_chunk(location: Location, chunk: int, row: np.void, room: int) -> OversizedError:
    """Return the error for an index that gives a sample a range outside its chunk, a file of `room` bytes."""
    what, path, sample = "the index places a sample outside its chunk", location.local / SAMPLES_NAME, int(row["index"])
    expected, found = f"end <= {room}", int(row["offset"]) + int(row["size"])
    return OversizedError(what, path=path, chunk=chunk, sample=sample, expected=expected, found=found, hint=_REINDEX)


def elsewhere(location: Location, share: Share, chunk: int, sample: int) -> ElsewhereError:
    """Return the error for an intact sample in a chunk of another node, which this folder does not have."""
    node = int(share.owners(np.array([chunk]))[0])
    what = f"it is in the partition of node {node}, and this is the partition of node {share.node}"
    return ElsewhereError(what, path=location.local, chunk=chunk, sample=sample, node=node, hint=_ELSEWHERE)


def unreadable(
    location: Location, reader: ChunkReader, error: OSError, chunks: NDArray[np.integer[Any]], rows: NDArray[np.void]
) -> FormatError:
    """Return the error of a failed read. It names the first sample of the faulty chunk that cannot be read alone."""
    number = next(n for n in np.unique(chunks).tolist() if location.chunk_file(n) == error.filename)
    path, suspects = str(error.filename), rows[chunks == number]
    if isinstance(error, FileNotFoundError):
        return missing_chunk(error.filename, number, int(suspects["index"][0]))
    alone = (row for row in suspects if not _readable(reader, number, row))
    sample = int(next(alone, suspects[0])["index"])
    kind = TruncatedError if error.errno == errno.ENODATA else UnreadableError
    hint = remedy_for(error, _DAMAGED)
    return kind(f"cannot be read: {error.strerror}", path=path, chunk=number, sample=sample, hint=hint)


def changed(location: Location, number: int, row: np.void, stored: memoryview) -> ChecksumError:
    what, path, sample = "the sample's bytes have changed", location.chunk_file(number), int(row["index"])
    expected, found = f"{int(row['checksum']):016x}", xxhash.xxh3_64_hexdigest(stored)
    return ChecksumError(what, path=path, chunk=number, sample=sample, expected=expected, found=found, hint=_DAMAGED)


def other_table(location: Location, number: int, sample: int) -> LayoutError:
    """Return the error for a sample about which the index and the chunk's own table differ."""
    what, path = "the index differs from the chunk's table", location.chunk_file(number)
    return LayoutError(what, path=path, chunk=number, sample=sample, hint=_REINDEX)


def no_dictionary(location: Location, chunks: Sequence[int], error: ValueError) -> LayoutError:
    return LayoutError(str(error), path=location.chunk_file(chunks[0]), chunk=chunks[0])


def not_decoded(location: Location, number: int, sample: int, what: str, hint: str) -> DecodeError:
    """Return the error for a sample that cannot be decoded although its checksum is right."""
    return DecodeError(what, path=location.chunk_file(number), chunk=number, sample=sample, hint=hint)


def _readable(reader: ChunkReader, number: int, row: np.void) -> bool:
    try:
        reader.read_into([(number, int(row["offset"]), memoryview(bytearray(int(row["size"]))))])
    except OSError:
        return False
    return True
