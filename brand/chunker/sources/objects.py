"""Source files in a store or in a zip: `s3://bucket/000.tar` is read as a stream, without a copy on this machine.

`ObjectPath` has those methods of `pathlib.Path` that sources use. `open` returns a file that reads blocks ahead: they
are large while it is read from front to back, and small after a jump. Requests have the time limits and the retries of
the store; an object that is replaced while it is read is an error. A zip, on this machine or in a store, is a store of
its own: `train.zip/cat/1.jpg` is a path in it.

Each process has its own connection (`store_of`), while a conversion runs (`connections`). A process that may fork
workers uses a `StoreProcess`; a worker opens the store itself, if its parent has not used one.
"""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, cast

from brand.chunker.sources.zips import ZipStore
from brand.errors import SourceError, UsageError
from brand.stores.apart import StoreProcess
from brand.stores.opening import open_store
from brand.stores.store import Entry, Store, may_use
from brand.stores.url import is_url, parse_url

LARGE_BLOCK: Final = 8 << 20
"""Bytes of a request while a file is read from front to back,"""
SMALL_BLOCK: Final = 256 << 10
"""and of the first request, and the first after a jump. Blocks double in size until they are large."""
AHEAD: Final = 3
"""Blocks that are requested ahead."""
LINES: Final = 32
"""Requests that a process sends at the same time."""
_BUFFER: Final = 1 << 20
_MOST_INDEX: Final = 1 << 30
"""Maximum size of a file that is read whole."""
_ZIP: Final = ".zip"
HUB: Final = "hf://"
_COMMIT: Final = re.compile(r"@[0-9a-f]{40}$")
WITHOUT_LISTS: Final = ("http://", "https://")
"""The begin of URLs whose stores do not list their objects."""
_stores: dict[tuple[int, str], Store] = {}
"""The stores of this process, by process id and URL."""
_zips: dict[str, ZipStore] = {}
"""The zips, whose directories forked processes share."""
_pins: dict[str, str] = {}
"""URL of a repository of the Hub -> that of its commit."""
_open = ExitStack()
"""Ends the processes that access them."""


def store_of(root: str) -> Store | ZipStore:
    """Return this process's connection to the store of a bucket or host, or the zip of this path or URL.

    Raises `UsageError`, `StorageError`; for a zip, `SourceError` and OSError.
    """
    if is_zip(root):
        if root not in _zips:
            _zips[root] = _open_zip(root)
        return _zips[root]
    key = os.getpid(), root
    if key not in _stores:
        if multiprocessing.parent_process() is None or not may_use():
            _stores[key] = _open.enter_context(StoreProcess(root, LINES))
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
        _pins.clear()
        _zips.clear()
        while _unpacked:
            _unpacked.popitem()[1].close()
        _open.close()


def at_end(act: Callable[[], None]) -> None:
    """Call a function when `connections` ends."""
    _open.callback(act)


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What `stat` tells of an object, as far as importers use it."""

    st_size: int
    mark: str


@dataclass(frozen=True)
class ObjectPath:
    """The path of an object, or of a folder of objects."""

    root: str
    """URL of the bucket or host, or path or URL of a zip."""
    path: PurePosixPath
    """Path below it; `.` for all of it."""
    entry: Entry | None = field(default=None, compare=False)
    """The object, if a list has named it already."""

    @classmethod
    def of(cls, url: str) -> ObjectPath:
        """Return the path that a URL names. Raises `UsageError`."""
        root, path = parse_url(url).split()
        return cls(root, PurePosixPath(path))

    def __str__(self) -> str:
        return f"{self.root}/{self.path}" if self.path.parts else self.root

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

    def with_name(self, name: str) -> ObjectPath:
        """Return the path of another object in the same folder."""
        return self.parent / name

    @property
    def parents(self) -> list[ObjectPath]:
        """The folders that contain the object, from the inside."""
        return [ObjectPath(self.root, path) for path in self.path.parents]

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

    def read_text(self, encoding: str) -> str:
        """Return the whole object as a text. Raises OSError, UnicodeDecodeError."""
        return self.read_bytes().decode(encoding).replace("\r\n", "\n").replace("\r", "\n")

    def open(self, mode: str = "rb", buffering: int = _BUFFER) -> BinaryIO:
        """Open the object for reading. Raises OSError."""
        assert mode == "rb"
        store = store_of(self.root)
        if isinstance(store, ZipStore):
            return store.open(str(self.path))
        blocks = _ObjectFile(store, str(self.path), self.stat().st_size)
        return cast(BinaryIO, io.BufferedReader(blocks, max(buffering, io.DEFAULT_BUFFER_SIZE)))

    def open_for_jumps(self) -> BinaryIO:
        """Open the object for reading in any order. A file of a zip is unpacked for this. Raises OSError."""
        store = store_of(self.root)
        if not isinstance(store, ZipStore):
            return self.open()
        key = os.getpid(), self  # forked processes share the position in an open file
        for other in [other for other in _unpacked if other != key]:
            _unpacked.pop(other).close()
        if key not in _unpacked:
            _unpacked[key] = store.open_unpacked(str(self.path))
        _unpacked[key].seek(0)
        return open(os.dup(_unpacked[key].fileno()), "rb")


SourcePath = Path | ObjectPath
"""The path of a file of a source: on this machine, in a store, or in a zip."""


def is_below(path: SourcePath, folder: SourcePath) -> bool:
    """Return whether a path is that of a folder, or below it."""
    if isinstance(path, ObjectPath) and isinstance(folder, ObjectPath):
        return path.root == folder.root and path.path.is_relative_to(folder.path)
    return isinstance(path, Path) and isinstance(folder, Path) and path.is_relative_to(folder)


_unpacked: dict[tuple[int, ObjectPath], BinaryIO] = {}
"""The file of a zip that this process has unpacked last."""


def source_path(src: str | os.PathLike[str]) -> SourcePath:
    """Return the path of a source: on this machine, in a store, or in a zip. Raises `UsageError`, `SourceError`."""
    text = os.fspath(src)
    if not isinstance(src, str) or not is_url(text):
        return _in_zip(Path(os.path.normpath(text)))
    url = parse_url(text)
    if url.scheme == "file":
        return Path("/", url.path)
    root, path = url.split()
    return _in_zip(ObjectPath(_pinned(root) if url.scheme == "hf" else root, PurePosixPath(path)))


def _pinned(root: str) -> str:
    """Return the root of a repository of the Hub with the commit that all processes read, also after another one."""
    if _COMMIT.search(root):
        return root
    if root not in _pins:
        store = store_of(root)
        assert not isinstance(store, ZipStore)
        _pins[root] = store.pinned()
        _stores[os.getpid(), _pins[root]] = store
    return _pins[root]


def _in_zip(path: SourcePath) -> SourcePath:
    """Return the path in a zip that a path names whose component is that zip; else the path itself."""
    for archive in reversed([path, *path.parents]):
        if archive.name.lower().endswith(_ZIP) and not (isinstance(archive, ObjectPath) and is_zip(archive.root)):
            try:
                if archive.is_file():
                    below = len(str(archive)) + 1
                    return ObjectPath(str(archive), PurePosixPath(str(path)[below:]))
            except OSError as error:
                raise SourceError(str(archive), f"cannot be read: {error.strerror}") from error
    return path


def is_zip(root: str) -> bool:
    """Return whether the root of a path is a zip, and not a bucket or host."""
    return root.lower().endswith(_ZIP) and not (is_url(root) and not parse_url(root).path)


def entries_below(folder: ObjectPath) -> Iterator[Entry]:
    """Yield the objects below a folder. Raises OSError, `UsageError`, `SourceError`."""
    store = store_of(folder.root)
    if not isinstance(store, ZipStore):
        if folder.root.startswith(WITHOUT_LISTS):
            raise UsageError(
                f"{folder}: a web server does not list files: name them, as '{folder}/part-{{000..146}}.tar'"
            )
        if not folder.path.parts and not folder.root.startswith(HUB):
            raise UsageError(f"{folder} is a whole bucket: name a folder in it, as '{folder}/shards'")
    yield from store.entries(str(folder.path) if folder.path.parts else "")


def folders_below(folder: ObjectPath) -> list[str]:
    """Return the folders that a zip names below a folder; of a store none."""
    store, begin = store_of(folder.root), f"{folder.path}/" if folder.path.parts else ""
    return [name for name in store.folders if name.startswith(begin)] if isinstance(store, ZipStore) else []


def faults_below(folder: ObjectPath) -> dict[str, str]:
    """Return the files of a zip below a folder that cannot be read, and why; of a store none."""
    store, begin = store_of(folder.root), f"{folder.path}/" if folder.path.parts else ""
    found = store.faults if isinstance(store, ZipStore) else {}
    return {name: reason for name, reason in found.items() if name.startswith(begin)}


def _open_zip(root: str) -> ZipStore:
    if is_url(root):
        path = ObjectPath.of(root)

        def piece(offset: int, size: int) -> bytes:
            store = store_of(path.root)
            assert not isinstance(store, ZipStore)
            return b"".join(store.pieces(str(path.path), offset, size))

        return ZipStore(root, path.open, piece)
    before = _facts(Path(root).stat())

    def local(offset: int, size: int) -> bytes:
        with open(root, "rb", buffering=0) as file:
            if _facts(os.fstat(file.fileno())) != before:
                raise OSError(errno.ESTALE, "the zip changed while it was being converted", root)
            return os.pread(file.fileno(), size, offset)

    return ZipStore(root, lambda: open(root, "rb", buffering=_BUFFER), local)


def _facts(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


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
