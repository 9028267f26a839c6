"""How is the front of a chunk read from storage and checked, and does it belong to this chunk?"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import numpy as np

from brand.errors import ForeignFileError, FormatError, MissingFileError, UnreadableError
from brand.formats.chunk import ChunkFront, read_front
from brand.formats.index import gone
from brand.formats.manifest import Manifest
from brand.storage.io.location import Location

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

DICTIONARY_TRIES: Final = 8
"""Maximum chunks that are searched for the dictionary."""


def opened(location: Location, number: int) -> BinaryIO:
    """Return a chunk as a file that reads no more than its caller asks for. Raises OSError."""
    return cast(BinaryIO, _ChunkFile(location, number))


class _ChunkFile(io.RawIOBase):
    """See `opened`."""

    def __init__(self, location: Location, number: int) -> None:
        self._reader = location.reader()
        self._number, self._size, self._at = number, location.chunk_bytes(number), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read up to the size of the buffer, or to the end of the file."""
        part = memoryview(buffer)[: max(0, self._size - self._at)]
        self._reader.read_into([(self._number, self._at, part)])
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        self._reader.close()
        super().close()


def front_of(location: Location, number: int) -> ChunkFront:
    """Return the front in the chunk file of this number; it may have another number. Raises `FormatError`, OSError."""
    with opened(location, number) as file:
        return read_front(file, location.chunk_file(number), number)


def open_front(location: Location, number: int) -> ChunkFront:
    """Read and check a chunk's front and its number. Raises a `FormatError` that names the fault."""
    path = location.chunk_file(number)
    try:
        front = front_of(location, number)
    except FileNotFoundError:
        raise missing_chunk(path, number) from None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, chunk=number) from error
    if front.preamble.number != number:
        found = front.preamble.number
        raise ForeignFileError(
            "a chunk with the file name of another chunk", path=path, chunk=number, expected=number, found=found
        )
    return front


def open_chunk(location: Location, number: int, manifest: Manifest, known: np.void | None) -> ChunkFront:
    """Read and check a chunk's front, and that it is chunk `number` of this data set.

    `known` is the chunk's row in the index; None: the index cannot be read. Raises a `FormatError` that names the
    fault.
    """
    front, path = open_front(location, number), location.chunk_file(number)
    preamble = front.preamble
    if preamble.data_set_id != manifest.data_set_id:
        expected, found = manifest.data_set_id.hex(), preamble.data_set_id.hex()
        raise ForeignFileError("a chunk of another data set", path=path, chunk=number, expected=expected, found=found)
    if preamble.dictionary_size != manifest.dictionary_size:
        expected, found = str(manifest.dictionary_size), str(preamble.dictionary_size)
        raise ForeignFileError("size of the dictionary", path=path, chunk=number, expected=expected, found=found)
    if front.header != manifest.header:
        raise ForeignFileError(
            "the header differs from the manifest's", path=path, chunk=number, hint="Run `brand reindex`"
        )
    facts = "{} bytes, checksum {:016x}"
    found = facts.format(preamble.file_size, preamble.checksum)
    expected = found if known is None else facts.format(int(known["file_size"]), int(known["checksum"]))
    if found != expected:
        what, hint = "a chunk of another conversion, or the index is stale", "Run `brand reindex`"
        raise ForeignFileError(what, path=path, chunk=number, expected=expected, found=found, hint=hint)
    return front


def dictionary_in(chunks: Sequence[int], front: Callable[[int], ChunkFront]) -> bytes:
    """Return the compression dictionary, from the first of these chunks whose front is right.

    `front` reads the front of a chunk. Raises the `FormatError` of the last chunk that was tried.
    """
    *others, last = chunks[:DICTIONARY_TRIES]
    for number in others:
        try:
            return front(number).dictionary
        except FormatError:  # each chunk has the dictionary, so another one may still give it
            continue
    return front(last).dictionary


def file_size(location: Location, number: int) -> int:
    """Return the size of a chunk's file in bytes. Raises `FormatError` if the file is missing or cannot be read."""
    try:
        return location.chunk_bytes(number)
    except FileNotFoundError:
        raise missing_chunk(location.chunk_file(number), number) from None
    except OSError as error:
        path = location.chunk_file(number)
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, chunk=number) from error


def missing_chunk(path: str, number: int, sample: int | None = None) -> MissingFileError:
    hint = ("" if "://" in path else gone(Path(path).parent.parent)) or "Copy it again or convert again"
    return MissingFileError("the chunk is missing", path=path, chunk=number, sample=sample, hint=hint)
