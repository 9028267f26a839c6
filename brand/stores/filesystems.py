"""How are objects in any other store read and written? Through fsspec, if it has a library for the scheme."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from brand.errors import UsageError
from brand.reprs import Reprs
from brand.stores.reasons import failed, missing, too_long, too_short
from brand.stores.store import Entry, Traffic, note_use
from brand.stores.url import Url

_PIECE: Final = 4 << 20
"""Bytes of one request. The library returns no part of an answer before all of it has arrived."""


def open_file_system(url: Url, traffic: Traffic) -> FileSystemStore:
    """Return the store of a URL. Raises `UsageError`."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise missing(url, "fsspec and its library for this scheme", "fsspec") from None
    try:
        system, folder = url_to_fs(str(url))
    except Exception as error:  # noqa: BLE001 - some libraries connect here, and each has errors of its own
        raise UsageError(f"{url}: {failed(error, '').strerror}") from None
    return FileSystemStore(url, traffic, system, str(folder))


class FileSystemStore(Reprs, shows="url"):
    """A `Store` through `system`, a file system of fsspec, below `folder`."""

    def __init__(self, url: Url, traffic: Traffic, system: Any, folder: str) -> None:
        self.url, self.traffic, self._system, self._folder = url, traffic, system, folder

    def read(self, name: str, most: int) -> bytes:
        with self._asking(name):
            self.traffic.asked()
            data: bytes = self._system.cat_file(self._path(name), start=0, end=most + 1)
        self.traffic.came(len(data))
        if len(data) > most:
            raise too_long(self.url.child(name), most)
        return data

    def fetch(self, name: str, most: int) -> tuple[bytes, str]:
        """See `Store`. These libraries report no mark with the contents."""
        return self.read(name, most), ""

    def pieces(self, name: str, offset: int, size: int) -> Iterator[memoryview]:
        for start in range(offset, offset + size, _PIECE):
            end = min(start + _PIECE, offset + size)
            with self._asking(name):
                self.traffic.asked()
                data = memoryview(self._system.cat_file(self._path(name), start=start, end=end))
            self.traffic.came(len(data))
            if len(data) > end - start:
                raise too_long(self.url.child(name), end - start)
            if len(data) < end - start:
                raise too_short(self.url.child(name), offset, size, start - offset + len(data))
            yield data

    def size(self, name: str) -> None:
        """See `Store`. Returns None: these libraries do not report sizes."""

    def write(self, name: str, data: bytes | Path, *, new: bool) -> None:
        """See `Store`. These libraries cannot write create-only, so `new` checks first whether the object exists."""
        with self._asking(name):
            if new and self._system.exists(self._path(name)):
                raise FileExistsError(errno.EEXIST, "the object exists already", self.url.child(name))
            if isinstance(data, bytes):
                self._system.pipe_file(self._path(name), data)
            else:
                self._system.put_file(str(data), self._path(name))

    def entries(self, folder: str) -> Iterator[Entry]:
        with self._asking(folder), suppress(FileNotFoundError):
            for path, facts in self._system.find(self._path(folder), detail=True).items():
                yield Entry(str(path)[len(self._folder) + 1 :], int(facts["size"]), _mark(facts))

    def entry(self, name: str) -> Entry:
        with self._asking(name):
            self.traffic.asked()
            facts = self._system.info(self._path(name))
        return Entry(name, int(facts["size"]), _mark(facts))

    def pinned(self) -> str:
        return str(self.url)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        note_use()
        try:
            yield
        except (GeneratorExit, KeyboardInterrupt, SystemExit, UsageError):
            raise
        except BaseException as error:
            url = self.url.child(name)
            if isinstance(error, OSError) and error.filename == url:
                raise
            raise failed(error, url) from None


def _mark(facts: dict[str, Any]) -> str:
    """Return what a library of fsspec says of an object's version: each library has names of its own."""
    names = ("ETag", "etag", "mtime", "LastModified", "created")
    return next((str(facts[name]) for name in names if name in facts), "")
