"""How does a pass over a whole data set read its files from front to back, and from a store at full bandwidth?

Files of a folder are read as always: the kernel reads ahead. From a store, large ranges are requested in advance
(`brand.stores.ahead`). `front_to_back` is for the chunks, `blocks_of` for index, columns and companions.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brand.formats.constants import CHUNKS_NAME, chunk_name
from brand.formats.index import open_array
from brand.formats.manifest import read_manifest
from brand.storage.io.files import ChunkReader, Range
from brand.storage.io.location import Location
from brand.storage.io.remote import Remote
from brand.storage.io.vectored import VectorReader
from brand.stores.ahead import RANGE_BYTES, ReadAhead
from brand.stores.traffic import Traffic

_BLOCK: Final = 1 << 20


@contextmanager
def front_to_back(location: Location, chunks: Sequence[int]) -> Iterator[Location]:
    """Yield a location of the same data set for reads of these chunks in this rising order, each from front to back.

    There, the size of a chunk is the one that the store reports, not the one in the index.
    """
    if not isinstance(location, Remote):
        yield location
        return
    rows = open_array(location.local, CHUNKS_NAME, read_manifest(location.local).header)
    objects = ((number, chunk_name(number), int(rows.run(number, number + 1)["file_size"][0])) for number in chunks)
    with closing(ReadAhead(location.store, objects)) as ahead:
        yield _Ahead(location, ahead)


def blocks_of(location: Location, name: str, size: int) -> Iterator[memoryview]:
    """Yield the contents of a file that is not a chunk, in blocks; each is valid until the next. Raises OSError.

    `size`: its expected size. An object of a store that is larger is not read.
    """
    if not isinstance(location, Remote):
        with (location.local / name).open("rb") as file:
            while block := file.read(_BLOCK):
                yield memoryview(block)
        return
    with closing(ReadAhead(location.store, [(0, name, size)])) as ahead:
        told = ahead.size(0, name)
        if told is not None and told > size:
            what = f"the object has {told:,} bytes, and {size:,} were written"
            raise OSError(errno.EFBIG, what, file_of(location, name))
        buffer = memoryview(bytearray(min(RANGE_BYTES, size)))
        for at in range(0, size, RANGE_BYTES):
            part = buffer[: size - at]
            ahead.read_into(0, name, at, part)
            yield part


def file_of(location: Location, name: str) -> str | Path:
    """Return the path or the URL of a file that is not a chunk, for messages."""
    return f"{location.name}/{name}" if location.in_store else location.local / name


@dataclass(frozen=True)
class _Ahead:
    """See `front_to_back`. A `Location`, for one thread."""

    inner: Remote
    ahead: ReadAhead

    in_store = True
    version = None

    @property
    def name(self) -> str:
        """See `Location`."""
        return self.inner.name

    @property
    def traffic(self) -> Traffic:
        """See `Location`."""
        return self.inner.traffic

    @property
    def local(self) -> Path:
        """See `Location`."""
        return self.inner.local

    def chunk_file(self, number: int) -> str:
        """See `Location`."""
        return self.inner.chunk_file(number)

    def chunk_bytes(self, number: int) -> int:
        """See `Location`."""
        told = self.ahead.size(number, chunk_name(number))
        return self.inner.chunk_bytes(number) if told is None else told

    def dictionary(self) -> bytes:
        """See `Location`."""
        return self.inner.dictionary()

    def reader(self) -> ChunkReader:
        """See `Location`."""
        return _AheadReader(self.ahead)

    def vector_reader(self, *, page_cache: bool) -> VectorReader:
        """See `Location`."""
        return self.inner.vector_reader(page_cache=page_cache)


class _AheadReader:
    """A `ChunkReader` of chunks that are read in their order."""

    def __init__(self, ahead: ReadAhead) -> None:
        self._ahead = ahead

    def read_into(self, ranges: Sequence[Range]) -> None:
        """See `ChunkReader`."""
        for number, offset, buffer in ranges:
            self._ahead.read_into(number, chunk_name(number), offset, buffer)

    def close(self) -> None:
        """Do nothing: `front_to_back` closes the files."""
