"""How does a pass over a whole data set read its files from front to back, and from a store at full bandwidth?

Files of a folder are read as always: the kernel reads ahead. From a store, large ranges are requested in advance,
several at once, including those of the next objects. They arrive in any order and are used in the order of the objects.
The ranges that are in flight or wait to be used are bounded: `AT_ONCE` ranges of `RANGE_BYTES`. `front_to_back` is for
the chunks, `blocks_of` for index, columns and companions.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from brand.formats.constants import CHUNKS_NAME, chunk_name
from brand.formats.index import open_array
from brand.formats.manifest import read_manifest
from brand.reprs import Reprs
from brand.starting import ThreadPool
from brand.storage.io.files import ChunkReader, Range
from brand.storage.io.location import Location
from brand.storage.io.remote import Remote
from brand.stores.store import Store, read_all

OnChunk = Callable[[int, int, int], None]
"""Called after each chunk with (chunks done, chunks in all, bytes or files of this step)."""
AT_ONCE: Final = 16
"""Ranges in flight."""
RANGE_BYTES: Final = 8 << 20
_BLOCK: Final = 1 << 20


def silent(*_: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A range that was requested."""

    object: int
    offset: int
    end: int
    data: Future[bytearray]


class ReadAhead(Reprs, shows="_store _window"):
    """Reads `objects`: for each a number, larger than the previous one, its name, and its expected size.

    Each read should be behind the previous one. Ranges that were passed over are not cached: they are read again, with
    a request of their own. For one thread. The caller must close it.
    """

    def __init__(self, store: Store, objects: Iterable[tuple[int, str, int]]) -> None:
        self._store = store
        self._todo = _cut(objects)
        self._window: deque[_Block] = deque()
        self._pool = ThreadPool(AT_ONCE, thread_name_prefix="read ahead")

    def read_into(self, number: int, name: str, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from the object with this number and this name. Raises OSError."""
        done = 0
        while done < len(buffer):
            at = offset + done
            block = self._block(number, at)
            if block is None or self._is_cut(block, name):
                read_all(self._store, [(name, at, buffer[done:])])
                return
            part = memoryview(block.data.result())[at - block.offset :][: len(buffer) - done]
            buffer[done : done + len(part)] = part
            done += len(part)

    def size(self, number: int, name: str) -> int | None:
        """Return the size of an object, reported with its first range; None if it is unknown. Raises OSError."""
        block = self._block(number, 0)
        error = None if block is None else block.data.exception()
        told = self._store.size(name)
        if error is not None and (told is None or isinstance(error, FileNotFoundError)):
            raise error
        return told

    def close(self) -> None:
        """Send no more requests. Ranges in flight are completed."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _block(self, number: int, at: int) -> _Block | None:
        """Return the range with byte `at` of an object; None if it is not planned, or was passed over."""
        while self._window and (self._window[0].object, self._window[0].end) <= (number, at):
            self._window.popleft().data.cancel()
        while len(self._window) < AT_ONCE:
            wanted = next((todo for todo in self._todo if (todo[0], todo[3]) > (number, at)), None)
            if wanted is None:
                break
            ordinal, name, offset, end = wanted
            self._window.append(_Block(ordinal, offset, end, self._pool.submit(self._read, name, offset, end)))
        first = self._window[0] if self._window else None
        return first if first is not None and first.object == number and first.offset <= at else None

    def _is_cut(self, block: _Block, name: str) -> bool:
        """Return whether the object ends within a range. The bytes before its end can still be read."""
        told = None if block.data.exception() is None else self._store.size(name)
        return told is not None and told < block.end

    def _read(self, name: str, offset: int, end: int) -> bytearray:
        data = bytearray(end - offset)
        read_all(self._store, [(name, offset, memoryview(data))])
        return data


def _cut(objects: Iterable[tuple[int, str, int]]) -> Iterator[tuple[int, str, int, int]]:
    """Yield number, name, begin and end of each range. An object with expected size 0 has one empty range."""
    for number, name, size in objects:
        for offset in range(0, max(1, size), RANGE_BYTES):
            yield number, name, offset, min(offset + RANGE_BYTES, size)


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
        yield _Ahead(location.name, location.local, location.traffic, ahead=ahead)


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
    return f"{location.name}/{name}" if location.in_store else location.local / name


@dataclass(frozen=True)
class _Ahead(Remote):
    """See `front_to_back`. For one thread."""

    ahead: ReadAhead = field(kw_only=True)

    def chunk_bytes(self, number: int) -> int:
        told = self.ahead.size(number, chunk_name(number))
        return super().chunk_bytes(number) if told is None else told

    def reader(self) -> ChunkReader:
        return _AheadReader(self.ahead)


class _AheadReader:
    """A `ChunkReader` of chunks that are read in their order."""

    def __init__(self, ahead: ReadAhead) -> None:
        self._ahead = ahead

    def read_into(self, ranges: Sequence[Range]) -> None:
        for number, offset, buffer in ranges:
            self._ahead.read_into(number, chunk_name(number), offset, buffer)

    def close(self) -> None:
        """Do nothing: `front_to_back` closes the files."""
