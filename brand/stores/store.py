"""What does Brand need of a store?

A `Store` is a folder of objects. It reads ranges, reads small objects whole, and writes objects whole or not at all. It
asks for nothing else while it reads: no list, and no question about an object beforehand. Every object that it has read
stays the same one: where the store says that it was replaced, the read fails.
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
    FileNotFoundError where there is no such object, FileExistsError where it is there already.
    """

    url: Url
    traffic: Traffic
    """What reads of it have cost so far."""

    def read(self, name: str, most: int) -> bytes:
        """A whole object of at most `most` bytes."""

    def pieces(self, name: str, offset: int, size: int) -> Iterator[memoryview]:
        """A range of an object in pieces, as they come; `size` bytes together."""

    def size(self, name: str) -> int | None:
        """Size of an object, as the store told it with a range of it; None where it told nothing."""

    def write(self, name: str, data: bytes | Path, *, new: bool) -> None:
        """Write an object from memory or from a file, whole or not at all. `new`: it may not be there already."""

    def names(self, folder: str) -> Iterator[tuple[str, int]]:
        """Names and sizes of the objects whose names begin with `folder` and a slash."""


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
