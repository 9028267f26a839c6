"""Storage that is slow, broken or stuck on purpose: how does a data server, or code that uses it, respond?

Each class here is a bad habit. `habit.at(where)` is the data set at `where` on storage with this habit: a `Location`,
which `NodeServer`, `BrandDataset` and `StoredDataSet` accept in place of a path. Every read of a chunk is affected:
large reads of a server, direct reads of a client or for another node, tables, dictionaries. Habits can be nested
(`inner`), and one object represents a whole storage, regardless of the number of its readers:

    SlowStorage       each read takes a random time: reads end in any order
    FaultyStorage     some reads fail, end too early, or return other bytes than are stored
    BlockedStorage    reads wait until they are let through
    CountedStorage    records all reads

    slow_and_broken = SlowStorage(seed=1, inner=FaultyStorage(Fault(chunk=3)))

All are safe for any number of threads. A process that was forked or received a pickled habit has a copy of its own; a
`BlockedStorage` cannot be pickled.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.formats.version import Version
from brand.storage.io.files import ChunkReader, Range
from brand.storage.io.location import Location, Where, located
from brand.storage.io.vectored import VectorReader
from brand.stores.store import Traffic


class ReadCall(NamedTuple):
    """The arguments of one read."""

    chunk: int
    offset: int
    size: int
    exact: bool = False
    """Whether it reads a sample, a piece of a table or the front of a chunk; if not, it is a large read of a server."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the storage: the reads that it affects, and its kind."""

    chunk: int | None = None
    """The chunk that has the fault; None for all chunks."""
    first: int = 0
    """First byte of the bad range of the file."""
    end: int | None = None
    """End of the bad range; None for the end of the file. A read fails if it touches the range."""
    kind: Literal["error", "short", "wrong"] = "error"
    """`error`: OSError, nothing read. `short`: the first half is read, then the file ends. `wrong`: a bit of each
    piece of memory is flipped, without an error."""

    def hits(self, read: ReadCall) -> bool:
        """Return whether a read touches the bad range."""
        end = read.offset + read.size
        return self.chunk in (None, read.chunk) and end > self.first and (self.end is None or read.offset < self.end)


class _Pending(ABC):
    """A read that has not happened yet."""

    def __init__(self, call: ReadCall, file: str) -> None:
        self.call, self.file = call, file

    @abstractmethod
    def do(self) -> None:
        """Read."""

    @abstractmethod
    def do_half(self) -> None:
        """Read as if the file ended in the middle of it."""

    @abstractmethod
    def flip(self) -> None:
        """Change a bit of each piece of the bytes that were read."""


class _Large(_Pending):
    """A read of a range into pieces of memory."""

    def __init__(self, call: ReadCall, file: str, vector: NDArray[np.void], inner: VectorReader) -> None:
        super().__init__(call, file)
        self._vector, self._inner = vector, inner

    def do(self) -> None:
        chunk, offset, size, _ = self.call
        self._inner.scatter(chunk, offset, size, self._vector)

    def do_half(self) -> None:
        chunk, offset, size, _ = self.call
        self._inner.scatter(chunk, offset, size // 2, _first_bytes(self._vector, size // 2))
        raise EOFError(self.file)

    def flip(self) -> None:
        for base, length in self._vector.tolist():
            if length:
                memory = (ctypes.c_ubyte * length).from_address(base)
                memory[length // 2] ^= 1


class _Exact(_Pending):
    """A read of a range into one buffer."""

    def __init__(self, call: ReadCall, file: str, buffer: memoryview, inner: ChunkReader) -> None:
        super().__init__(call, file)
        self._buffer, self._inner = buffer.cast("B"), inner

    def do(self) -> None:
        self._inner.read_into([(self.call.chunk, self.call.offset, self._buffer)])

    def do_half(self) -> None:
        half = len(self._buffer) // 2
        self._inner.read_into([(self.call.chunk, self.call.offset, self._buffer[:half])])
        self._buffer[half:] = bytes(len(self._buffer) - half)  # as a `ChunkReader` does past the end

    def flip(self) -> None:
        if self._buffer:
            self._buffer[len(self._buffer) // 2] ^= 1


class Habit(ABC):
    """Base of the storages; a subclass does the reads in `_read`."""

    def __init__(self, inner: Habit | None) -> None:
        self._inner = inner

    def at(self, where: Where) -> Location:
        """Return the data set at `where`, on storage with this habit."""
        return _Location(located(where) if self._inner is None else self._inner.at(where), self)

    @abstractmethod
    def _read(self, pending: _Pending) -> None:
        """Do a read, or its fault, in the thread that reads."""


@dataclass(frozen=True, slots=True)
class _Location:
    """The data set at `inner`, on storage with a habit."""

    inner: Location
    habit: Habit

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def in_store(self) -> bool:
        return self.inner.in_store

    @property
    def traffic(self) -> Traffic | None:
        return self.inner.traffic

    @property
    def local(self) -> Path:
        return self.inner.local

    @property
    def version(self) -> Version | None:
        return self.inner.version

    def chunk_file(self, number: int) -> str:
        return self.inner.chunk_file(number)

    def chunk_bytes(self, number: int) -> int:
        return self.inner.chunk_bytes(number)

    def dictionary(self) -> bytes | None:
        return self.inner.dictionary()

    def reader(self) -> ChunkReader:
        return _Reader(self, self.inner.reader())

    def vector_reader(self, *, page_cache: bool) -> VectorReader | None:
        inner = self.inner.vector_reader(page_cache=page_cache)
        return None if inner is None else _VectorReader(self, inner)


class _Reader:
    """A `ChunkReader` whose ranges are read one by one, each with the habit."""

    def __init__(self, location: _Location, inner: ChunkReader) -> None:
        self._location, self._inner = location, inner

    def read_into(self, ranges: Sequence[Range]) -> None:
        for chunk, offset, buffer in ranges:
            call = ReadCall(chunk, offset, buffer.nbytes, exact=True)
            self._location.habit._read(_Exact(call, self._location.chunk_file(chunk), buffer, self._inner))

    def close(self) -> None:
        self._inner.close()


class _VectorReader:
    def __init__(self, location: _Location, inner: VectorReader) -> None:
        self._location, self._inner = location, inner

    def scatter(self, number: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
        call = ReadCall(number, offset, size)
        self._location.habit._read(_Large(call, self._location.chunk_file(number), vector, self._inner))

    def close(self) -> None:
        self._inner.close()


class SlowStorage(Habit):
    """Each read takes a random time up to `longest_s`, so that reads end in an order that `seed` fixes only roughly."""

    def __init__(self, seed: int = 0, longest_s: float = 0.01, inner: Habit | None = None) -> None:
        super().__init__(inner)
        self.longest_s = longest_s
        self._random = random.Random(seed)  # safe for several threads

    def _read(self, pending: _Pending) -> None:
        time.sleep(self._random.uniform(0, self.longest_s))
        pending.do()


class FaultyStorage(Habit):
    """Reads that touch one of the faults fail; `faults` may be changed at any time."""

    def __init__(self, *faults: Fault, inner: Habit | None = None) -> None:
        super().__init__(inner)
        self.faults = list(faults)
        """The current faults."""

    def _read(self, pending: _Pending) -> None:
        kinds = {fault.kind for fault in self.faults if fault.hits(pending.call)}
        if "error" in kinds:
            raise OSError(errno.EIO, os.strerror(errno.EIO), pending.file)
        if "short" in kinds:
            pending.do_half()
            return
        pending.do()
        if "wrong" in kinds:
            pending.flip()


class BlockedStorage(Habit):
    """Reads wait until they are let through: `let(3)` lets three of them, `release()` all from now on.

    As a context manager it releases at the end, so that a server that still reads can end.
    """

    def __init__(self, inner: Habit | None = None, *, held: bool = True) -> None:
        super().__init__(inner)
        self._changed = threading.Condition()
        self._held, self._permits = held, 0
        self.waiting = 0
        """Number of reads that wait now."""

    def hold(self) -> None:
        """Make reads wait from now on."""
        with self._changed:
            self._held, self._permits = True, 0

    def let(self, reads: int = 1) -> None:
        """Let some reads through: those that wait, or the next reads."""
        with self._changed:
            self._permits += reads
            self._changed.notify_all()

    def release(self) -> None:
        """Let all reads through from now on."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def __enter__(self) -> BlockedStorage:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _read(self, pending: _Pending) -> None:
        with self._changed:
            self.waiting += 1
            try:
                self._changed.wait_for(lambda: not self._held or self._permits)
                self._permits = max(0, self._permits - 1)
            finally:
                self.waiting -= 1
        pending.do()


class CountedStorage(Habit):
    """Records each read, in the order in which they began."""

    def __init__(self, inner: Habit | None = None) -> None:
        super().__init__(inner)
        self.reads: list[ReadCall] = []

    def _read(self, pending: _Pending) -> None:
        self.reads.append(pending.call)
        pending.do()


def _first_bytes(vector: NDArray[np.void], size: int) -> NDArray[np.void]:
    """Return the pieces that hold the first `size` bytes; the last piece may be cut."""
    ends = np.cumsum(vector["length"].astype(np.int64))
    last = int(np.searchsorted(ends, size))
    part = vector[: last + 1].copy() if size else vector[:0].copy()
    if size:
        part["length"][-1] -= np.uint64(int(ends[last]) - size)
    return part
