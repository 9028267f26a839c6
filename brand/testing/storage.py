"""Storage that is slow, broken or stuck on purpose: what does a node server, or what is built on it, make of that?

Each class here is a factory, as `NodeServer(..., storage=...)` takes it: called once for each I/O thread, it gives a
`Storage` that reads through another one (`inner`, the files themselves by default) and adds one bad habit. So they can
be put into each other, and one object stands for the storage of a whole server, whatever the number of its threads:

    SlowStorage       each read takes a random time: reads end in any order
    FaultyStorage     some reads fail, end too early, or bring other bytes than are stored
    BlockedStorage    reads wait until they are let through
    CountedStorage    remembers what was read

    slow_and_broken = SlowStorage(seed=1, inner=FaultyStorage(Fault(chunk=3)))

All may be used by any number of threads at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.storage.vectored import LocalFiles, Storage

MakeStorage = Callable[[], Storage]


class ReadCall(NamedTuple):
    """One read, as it was asked for."""

    chunk: int
    offset: int
    size: int
    forget: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """Which reads go wrong, and how."""

    chunk: int | None = None
    """The chunk that has the fault; None: all."""
    first: int = 0
    """First byte of the bad range of the file."""
    end: int | None = None
    """End of the bad range; None: the end of the file. A read fails if it touches the range."""
    kind: Literal["error", "short", "wrong"] = "error"
    """`error`: OSError, nothing read. `short`: the first half is read, then the file ends. `wrong`: a bit of each
    piece of memory is flipped, and nobody says so."""

    def hits(self, read: ReadCall) -> bool:
        """Whether a read touches the bad range."""
        end = read.offset + read.size
        return self.chunk in (None, read.chunk) and end > self.first and (self.end is None or read.offset < self.end)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A read that has not happened yet."""

    call: ReadCall
    path: str
    vector: NDArray[np.void]
    inner: Storage

    def do(self, vector: NDArray[np.void] | None = None, size: int | None = None) -> None:
        """Read, all of it or what is given."""
        size = self.call.size if size is None else size
        vector = self.vector if vector is None else vector
        self.inner.scatter(self.path, self.call.offset, size, vector, forget=self.call.forget)


class _Wrapped:
    """Storage that lets its maker decide what becomes of each read of the inner one."""

    def __init__(self, inner: Storage, read: Callable[[_Pending], None]) -> None:
        self._inner, self._read = inner, read

    def scatter(self, path: str, offset: int, size: int, vector: NDArray[np.void], *, forget: bool) -> None:
        """See `Storage`."""
        call = ReadCall(int(Path(path).stem), offset, size, forget)
        self._read(_Pending(call, path, vector, self._inner))

    def close(self) -> None:
        """See `Storage`."""
        self._inner.close()


class _Factory(ABC):
    """What the factories share; a subclass says in `_read` what a read does."""

    def __init__(self, inner: MakeStorage) -> None:
        self._inner = inner

    def __call__(self) -> Storage:
        return _Wrapped(self._inner(), self._read)

    @abstractmethod
    def _read(self, pending: _Pending) -> None:
        """Do a read, or what is wrong with it, in the thread that reads."""


class SlowStorage(_Factory):
    """Each read takes a random time up to `longest_s`, so that reads end in an order that `seed` fixes only roughly."""

    def __init__(self, seed: int = 0, longest_s: float = 0.01, inner: MakeStorage = LocalFiles) -> None:
        super().__init__(inner)
        self.longest_s = longest_s
        self._random, self._lock = random.Random(seed), threading.Lock()

    def _read(self, pending: _Pending) -> None:
        with self._lock:
            delay_s = self._random.uniform(0, self.longest_s)
        time.sleep(delay_s)
        pending.do()


class FaultyStorage(_Factory):
    """Reads that touch one of the faults go wrong; `faults` may be changed at any time."""

    def __init__(self, *faults: Fault, inner: MakeStorage = LocalFiles) -> None:
        super().__init__(inner)
        self.faults = list(faults)
        """What is broken just now."""

    def _read(self, pending: _Pending) -> None:
        kinds = {fault.kind for fault in self.faults if fault.hits(pending.call)}
        if "error" in kinds:
            raise OSError(errno.EIO, os.strerror(errno.EIO), pending.path)
        if "short" in kinds:
            half = pending.call.size // 2
            pending.do(_first_bytes(pending.vector, half), half)
            raise EOFError(pending.path)
        pending.do()
        if "wrong" in kinds:
            for base, length in pending.vector.tolist():
                if length:
                    memory = (ctypes.c_ubyte * length).from_address(base)
                    memory[length // 2] ^= 1


class BlockedStorage(_Factory):
    """Reads wait until they are let through: `let(3)` lets three of them, `release()` all from now on.

    As a context manager it releases at the end, so that a server that still reads can end.
    """

    def __init__(self, inner: MakeStorage = LocalFiles, *, held: bool = True) -> None:
        super().__init__(inner)
        self._changed = threading.Condition()
        self._held, self._permits = held, 0
        self.waiting = 0
        """Reads that wait just now."""

    def hold(self) -> None:
        """From now on reads wait."""
        with self._changed:
            self._held, self._permits = True, 0

    def let(self, reads: int = 1) -> None:
        """Let some reads through: those that wait, or the next to come."""
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


class CountedStorage(_Factory):
    """Remembers each read, in the order in which they began."""

    def __init__(self, inner: MakeStorage = LocalFiles) -> None:
        super().__init__(inner)
        self.reads: list[ReadCall] = []

    def _read(self, pending: _Pending) -> None:
        self.reads.append(pending.call)
        pending.do()


def _first_bytes(vector: NDArray[np.void], size: int) -> NDArray[np.void]:
    """The pieces that hold the first `size` bytes; the last one may be cut."""
    ends = np.cumsum(vector["length"].astype(np.int64))
    last = int(np.searchsorted(ends, size))
    part = vector[: last + 1].copy() if size else vector[:0].copy()
    if size:
        part["length"][-1] -= np.uint64(int(ends[last]) - size)
    return part
