"""The interface of a store, as Brand uses it.

A `Store` is a folder of objects. It reads ranges, reads small objects whole, and writes objects whole or not at all.
Reading sends no other requests: no listing, and no query about an object beforehand. An object must not change after
its first read: if the store reports that it was replaced, the read fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from brand.stores.traffic import Traffic
from brand.stores.url import Url

AT_ONCE: Final = 16
"""Ranges that `read_all` reads at the same time."""

Wanted = tuple[str, int, memoryview]
"""One range: name of the object, offset, and the buffer to fill."""


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

    def pieces(self, name: str, offset: int, size: int) -> Iterator[memoryview]:
        """Yield a range of an object in pieces, as they arrive; `size` bytes together."""

    def size(self, name: str) -> int | None:
        """Return the size of an object, reported by the store with a range of it; None if it reported none."""

    def write(self, name: str, data: bytes | Path, *, new: bool) -> None:
        """Write an object from memory or from a file, whole or not at all. `new`: it must not exist yet."""

    def names(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield names and sizes of the objects whose names begin with `folder` and a slash."""


def read_all(store: Store, wanted: Sequence[Wanted]) -> None:
    """Fill the buffers of some ranges, `AT_ONCE` at the same time. Raises OSError."""
    if len(wanted) == 1:
        _fill(store, wanted[0])
        return
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(wanted)))) as pool:
        for _ in pool.map(lambda each: _fill(store, each), wanted):
            pass


def _fill(store: Store, wanted: Wanted) -> None:
    name, offset, buffer = wanted
    done = 0
    for piece in store.pieces(name, offset, len(buffer)):
        buffer[done : done + len(piece)] = piece
        done += len(piece)
