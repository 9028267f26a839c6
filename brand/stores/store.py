"""The interface of a store, as Brand uses it, the counts of its requests, and a check of the process that uses it.

A `Store` is a folder of objects. It reads ranges, reads small objects whole, and writes objects whole or not at all.
Reading sends no other requests: no listing, and no query about an object beforehand. An object must not change after
its first read: if the store reports that it was replaced, the read fails.

A process must not access a store if it was forked from a process that has done so (`note_use`). The threads of the
libraries that access stores do not exist in a forked process, and a request there waits for ever. So a request in a
forked process is an error at once, and the message names the remedy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from brand.errors import UsageError
from brand.forks import after_in_child
from brand.reprs import Reprs
from brand.starting import ThreadPool
from brand.stores.url import Url

AT_ONCE: Final = 16
"""Ranges that `read_all` reads at the same time."""


class Entry(NamedTuple):
    """One object of a store."""

    name: str
    """Name below the folder of the store."""
    size: int
    """Size in bytes."""
    mark: str
    """A text that changes if the object is replaced, such as its ETag; empty if the store has none."""


Wanted = tuple[str, int, memoryview]
"""One range: name of the object, offset, and the buffer to fill."""

_spoken = False
"""Whether this process, or one that it was forked from, has accessed a store."""
_forked = False
"""Whether this process was forked from one that had."""


class Traffic(Reprs, shows="_requests _bytes"):
    """Counts reads: requests sent, and bytes received. Any number of threads may use it.

    A failed request counts. Retries inside a library do not count, because the library does not report them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._bytes = 0

    def asked(self) -> None:
        with self._lock:
            self._requests += 1

    def came(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    def to_json(self) -> dict[str, int]:
        with self._lock:
            return {"requests": self._requests, "bytes": self._bytes}


class Store(Protocol):
    """The objects of one folder. Any number of threads may use it.

    All methods raise OSError, whose `strerror` is the reason in words and whose `filename` is the object's URL:
    FileNotFoundError if there is no such object, FileExistsError if it exists already.
    """

    url: Url
    traffic: Traffic
    """Requests and bytes that reads have cost so far."""

    def read(self, name: str, most: int) -> bytes:
        """Return a whole object of at most `most` bytes."""

    def fetch(self, name: str, most: int) -> tuple[bytes, str]:
        """Return a whole object of at most `most` bytes, and its mark as in `Entry`; sends one request."""

    def pieces(self, name: str, offset: int, size: int) -> Iterator[memoryview]:
        """Yield a range of an object in pieces, as they arrive; `size` bytes together."""

    def size(self, name: str) -> int | None:
        """Return the size of an object, reported by the store with a range of it; None if it reported none."""

    def write(self, name: str, data: bytes | Path, *, new: bool) -> None:
        """Write an object from memory or from a file, whole or not at all. `new`: it must not exist yet."""

    def entries(self, folder: str) -> Iterator[Entry]:
        """Yield the objects whose names begin with `folder` and a slash."""

    def entry(self, name: str) -> Entry:
        """Return an object without reading it."""

    def pinned(self) -> str:
        """Return a URL of this folder that names the present contents, if the store has such; else its URL."""


def read_all(store: Store, wanted: Sequence[Wanted]) -> None:
    """Fill the buffers of some ranges, `AT_ONCE` at the same time. Raises OSError."""
    if len(wanted) == 1:
        _fill(store, wanted[0])
        return
    with ThreadPool(min(AT_ONCE, max(1, len(wanted)))) as pool:
        for _ in pool.map(lambda each: _fill(store, each), wanted):
            pass


def _fill(store: Store, wanted: Wanted) -> None:
    name, offset, buffer = wanted
    done = 0
    for piece in store.pieces(name, offset, len(buffer)):
        buffer[done : done + len(piece)] = piece
        done += len(piece)


def note_use() -> None:
    """Record that this process is about to access a store. Raises `UsageError` if it must not."""
    global _spoken
    if _forked:
        raise UsageError(
            "this process was forked from one that has read from an object store, and would wait for ever: start it"
            " with multiprocessing's 'spawn' or 'forkserver', or read through a BrandDataset with a data server"
        )
    _spoken = True


def may_use() -> bool:
    """Return whether this process may access a store: it was not forked from one that has."""
    return not _forked


def _note_fork() -> None:
    global _forked
    _forked = _forked or _spoken


after_in_child(_note_fork)
