"""Source files in a store: `s3://bucket/{000..146}.tar` is read as a stream, without a copy on this machine.

`ObjectPath` has those methods of `pathlib.Path` that importers use. `open` returns a file that reads blocks ahead: they
are large while it is read from front to back, and small after a jump. Requests have the time limits and the retries of
the store; an object that is replaced while it is read is an error.

Each process has its own connection (`store_of`), while a conversion runs (`connections`). A process that may fork
workers uses a `StoreProcess`; a worker opens the store itself.
"""

from __future__ import annotations

import fnmatch
import io
import multiprocessing
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, cast

from brand.errors import SourceError, UsageError, counted
from brand.stores.apart import StoreProcess
from brand.stores.opening import open_store
from brand.stores.store import Entry, Store
from brand.stores.url import Url, parse_url

LARGE_BLOCK: Final = 8 << 20
"""Bytes of a request while a file is read from front to back,"""
SMALL_BLOCK: Final = 256 << 10
"""and of the first request, and the first after a jump. Blocks double in size until they are large."""
AHEAD: Final = 3
"""Blocks that are requested ahead."""
_LINES: Final = 8
_BUFFER: Final = 1 << 20
_MOST_INDEX: Final = 1 << 30
"""Maximum size of a file that is read whole."""
_PATTERN: Final = re.compile(r"[*[{]")
"""Marks of a pattern. `?` begins a query of a URL, which may be a secret, and is refused."""
_stores: dict[tuple[int, str], Store] = {}
"""The stores of this process, by process id and URL."""
_open = ExitStack()
"""Ends the processes that access them."""
_WITHOUT_LISTS: Final = ("http", "https")


def store_of(root: str) -> Store:
    """Return this process's connection to the store of a bucket or host. Raises `UsageError`, `StorageError`."""
    key = os.getpid(), root
    if key not in _stores:
        if multiprocessing.parent_process() is None:
            _stores[key] = _open.enter_context(StoreProcess(root, _LINES))
        else:
            _stores[key] = open_store(root)
    return _stores[key]


@contextmanager
def connections() -> Iterator[None]:
    """End the connections of this process at the end of a conversion: later ones may have other credentials."""
    try:
        yield
    finally:
        _stores.clear()
        _open.close()


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What `stat` tells of an object, as far as importers use it."""

    st_size: int
    mark: str


@dataclass(frozen=True)
class ObjectPath:
    """The path of an object, or of a folder of objects."""

    root: str
    """URL of the bucket or host."""
    path: PurePosixPath
    """Path below it."""
    entry: Entry | None = field(default=None, compare=False)
    """The object, if a list has named it already."""

    @classmethod
    def of(cls, url: str) -> ObjectPath:
        """Return the path that a URL names. Raises `UsageError`."""
        parsed = parse_url(url)
        return cls(parsed.root, PurePosixPath(parsed.path))

    def __str__(self) -> str:
        return f"{self.root}/{self.path}"

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.root, self.path / name)

    @property
    def name(self) -> str:
        """Last component of the path."""
        return self.path.name

    @property
    def suffix(self) -> str:
        """Last ending of the name, as `.gz`."""
        return self.path.suffix

    @property
    def suffixes(self) -> list[str]:
        """All endings of the name."""
        return self.path.suffixes

    @property
    def parent(self) -> ObjectPath:
        """The folder of the object."""
        return ObjectPath(self.root, self.path.parent)

    def stat(self) -> ObjectFacts:
        """Return size and mark of the object. Raises OSError."""
        found = self.entry or store_of(self.root).entry(str(self.path))
        return ObjectFacts(found.size, f"{found.size} {found.mark}")

    def exists(self) -> bool:
        """Return whether there is an object of this name."""
        return self.is_file()

    def is_file(self) -> bool:
        """Return whether there is an object of this name."""
        with suppress(FileNotFoundError):
            self.stat()
            return True
        return False

    def read_bytes(self) -> bytes:
        """Return the whole object. Raises OSError."""
        return store_of(self.root).read(str(self.path), _MOST_INDEX)

    def open(self, mode: str = "rb", buffering: int = _BUFFER) -> BinaryIO:
        """Open the object for reading. Raises OSError."""
        assert mode == "rb"
        blocks = _ObjectFile(store_of(self.root), str(self.path), self.stat().st_size)
        return cast(BinaryIO, io.BufferedReader(blocks, max(buffering, io.DEFAULT_BUFFER_SIZE)))


SourcePath = Path | ObjectPath
"""The path of a file of a source, on this machine or in a store."""


class _ObjectFile(io.RawIOBase):
    """One object, read in blocks, of which some are requested ahead."""

    def __init__(self, store: Store, name: str, size: int) -> None:
        self._store, self._name, self._size = store, name, size
        self._at = self._next = 0
        """Position of the reader, and the end of what was requested."""
        self._block_size = SMALL_BLOCK
        self._ahead: deque[tuple[int, int, Future[bytes]]] = deque()
        """Begin, end and bytes of the requested blocks, which follow each other."""
        self._pool = ThreadPoolExecutor(AHEAD, "brand-source")

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position; sends no request."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as the present block has bytes. Return their number, 0 at the end. Raises OSError."""
        if self._at >= self._size:
            return 0
        while self._ahead and not self._ahead[0][0] <= self._at < self._ahead[0][1]:
            self._ahead.popleft()[2].cancel()
        if not self._ahead:
            if self._at != self._next:  # a jump: what follows is probably small
                self._block_size = SMALL_BLOCK
            self._next = self._at
        while len(self._ahead) < AHEAD and self._next < self._size:
            end = min(self._next + self._block_size, self._size)
            self._ahead.append((self._next, end, self._pool.submit(self._block, self._next, end)))
            self._next, self._block_size = end, min(2 * self._block_size, LARGE_BLOCK)
            if end - self._at <= SMALL_BLOCK:  # after a jump, wait for a second read before more is requested
                break
        begin, _, block = self._ahead[0]
        data = memoryview(block.result())[self._at - begin :]
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        self._at += count
        return count

    def _block(self, begin: int, end: int) -> bytes:
        return b"".join(self._store.pieces(self._name, begin, end - begin))

    def close(self) -> None:
        """Drop the blocks that were requested."""
        if not self.closed:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._ahead.clear()
        super().close()


def find_objects(src: str, endings: Sequence[str], what: str, expand: Callable[[str], list[str]]) -> list[ObjectPath]:
    """Return the objects of a folder, of a pattern, or the one object, by name, as `find_files` does for files.

    `expand` returns the names to which braces expand. Raises `SourceError`, `UsageError`.
    """
    # Braces and the like are no characters of a URL, so the part before them is parsed alone.
    mark = _PATTERN.search(src)
    base = src if mark is None else src[: src.rindex("/", 0, mark.start())]
    folder = parse_url(base)
    try:
        if mark is not None:
            return _matching(src, folder, expand)
        one = ObjectPath(folder.root, PurePosixPath(folder.path))
        if one.name.endswith(tuple(endings)) and one.is_file():
            return [one]
        found = sorted(_listed(folder), key=str)
    except OSError as error:
        raise SourceError(src, f"cannot be listed: {error.strerror}") from error
    paths = [path for path in found if path.name.endswith(tuple(endings)) and not _hidden(path, folder)]
    if not paths:
        raise SourceError(src, f"there is no {what} in this folder", hint=f"Their names end with {', '.join(endings)}")
    return paths


def _matching(src: str, folder: Url, expand: Callable[[str], list[str]]) -> list[ObjectPath]:
    names = [name[len(folder.root) + 1 :] for name in expand(src)]
    exact = [name for name in names if not _PATTERN.search(name)]
    if folder.scheme in _WITHOUT_LISTS:
        if len(exact) < len(names):
            raise UsageError(f"{src}: a web server does not list files: name them, as '{folder}/part-{{000..146}}.tar'")
        with ThreadPoolExecutor(_LINES) as pool:
            return list(pool.map(lambda name: _entry(folder.root, name), exact))
    there = {str(path.path): path for path in _listed(folder)}
    missing = [name for name in names if not any(fnmatch.fnmatchcase(other, name) for other in there)]
    if missing and len(names) > 1:
        more = f", and {counted(len(missing) - 1, 'other')} of {src}" if len(missing) > 1 else ""
        raise SourceError(f"{folder.root}/{missing[0]}", f"there is no such object{more}")
    if missing:
        raise SourceError(src, "there is no object that matches it")
    return [there[found] for name in names for found in sorted(fnmatch.filter(there, name))]


def _entry(root: str, name: str) -> ObjectPath:
    return ObjectPath(root, PurePosixPath(name), store_of(root).entry(name))


def _listed(folder: Url) -> Iterator[ObjectPath]:
    """Yield the objects below a folder. Raises OSError, `UsageError`."""
    if folder.scheme in _WITHOUT_LISTS:
        raise UsageError(f"{folder}: a web server does not list files: name them, as '{folder}/part-{{000..146}}.tar'")
    if not folder.path:
        raise UsageError(f"{folder} is a whole bucket: name a folder in it, as '{folder}/shards'")
    for entry in store_of(folder.root).entries(folder.path):
        yield ObjectPath(folder.root, PurePosixPath(entry.name), entry)


def _hidden(path: ObjectPath, folder: Url) -> bool:
    return any(part.startswith(".") for part in path.path.relative_to(folder.path).parts)
