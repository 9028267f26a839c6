"""What does Brand need of a store, and which library speaks to the store of a URL?

A `Store` is a folder of objects. It reads ranges, reads small objects whole, and writes objects whole or not at all. It
asks for nothing else while it reads: no list, and no question about an object beforehand. Every object that it has read
stays the same one: where the store says that it was replaced, the read fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from brand.errors import UsageError
from brand.stores.forking import note_use
from brand.stores.traffic import Traffic
from brand.stores.url import Url, parse_url

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


def open_store(text: str, patience_s: float | None = None) -> Store:
    """The store of a URL.

    `patience_s`: how long a request is repeated where the store does not answer; None: `PATIENCE_S`. Raises
    `UsageError`, also where the library that is needed is not installed, and where this process may not speak to a
    store.
    """
    note_use()
    url = parse_url(text)
    if url.scheme in ("s3", "gs", "az", "http", "https"):
        from brand.stores.cloud import open_cloud

        return open_cloud(url, patience_s)
    if url.scheme == "hf":
        from brand.stores.hub import open_hub

        return open_hub(url, patience_s)
    from brand.stores.filesystems import open_file_system

    return open_file_system(url)


def missing(url: Url, package: str, install: str) -> UsageError:
    return UsageError(f"{url} needs {package}, which is not installed: pip install {install}")
