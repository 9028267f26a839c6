"""How are the files of a folder listed and read, if the folder is on this machine, in a store, or in a zip?

A `FileTree` lists the folders one by one, for a scan. Objects of a store and files of a zip have no folders of their
own; `ObjectTree` makes them of one list of all names, which takes about a hundred bytes of memory a file.

`contents` returns the bytes of files, in the order that is asked for. Files on this machine are announced to the
kernel; objects, each of which costs a round trip, are requested many at a time, within a bound of bytes.
"""

from __future__ import annotations

import errno
import os
import stat
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import xxhash

from brand.chunker.sources.objects import (
    LINES,
    ObjectPath,
    SourcePath,
    at_end,
    entries_below,
    faults_below,
    folders_below,
    is_below,
    store_of,
)
from brand.chunker.sources.zips import ZipStore
from brand.errors import SourceError
from brand.formats.values import LARGE, Buffer
from brand.stores.store import Store

CHANGED: Final = "the file changed while it was being converted"
_FILES_AT_ONCE: Final = 64
"""Maximum number of files that are announced, or requested, ahead of the one that is used."""
_BYTES_AT_ONCE: Final = 32 << 20
"""Maximum number of bytes of these files together, unless the first of them is larger."""
UNKNOWN: Final = -1
_MOST_UNKNOWN: Final = 1 << 30
_WILLNEED: Final = getattr(os, "POSIX_FADV_WILLNEED", None)


class FileFacts(NamedTuple):
    """A file, as it was when it was listed."""

    key: str
    """Path below the tree."""
    size: int
    """In bytes; `UNKNOWN` if it was not listed, and any size and mark will do."""
    mark: int
    """Time of its last change in nanoseconds; for an object, a number made of its version."""


class FileTree(Protocol):
    """The files below a folder; keys are paths below it."""

    @property
    def root(self) -> SourcePath:
        """The folder."""

    def entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Yield the name of each file and folder in a folder, and whether it is a folder. Raises OSError."""

    def identity(self, folder: str) -> object:
        """Return a value that is equal for two paths of one folder."""

    def is_file(self, key: str) -> bool:
        """Return whether there is a file of this name."""

    def is_same(self, key: str, other: SourcePath) -> bool:
        """Return whether a file is the one at another path."""

    def is_link_to_folder(self, key: str) -> bool:
        """Return whether a file is a link to a folder."""

    def facts(self, key: str) -> FileFacts | str:
        """Return a file, or the reason why it cannot be used."""

    def faults(self) -> dict[str, str]:
        """Return files that cannot be read, and that `entries` leaves out: key -> reason."""


def tree_of(root: SourcePath, *, follow_links: bool = False) -> FileTree:
    """Return the tree at a path. Raises `UsageError`, `SourceError` if a store cannot be listed."""
    return ObjectTree(root) if isinstance(root, ObjectPath) else LocalTree(root, follow_links=follow_links)


def folders_in(root: SourcePath) -> list[str]:
    """Return the names of the folders in a folder; none if it cannot be read."""
    with suppress(OSError):
        return [name for name, is_folder in tree_of(root, follow_links=True).entries("") if is_folder]
    return []


class LocalTree:
    """See `FileTree`. `follow_links` is whether links may lead out of the folder, or to folders."""

    def __init__(self, root: Path, *, follow_links: bool) -> None:
        self.root, self._follow_links = root, follow_links
        self._root = str(root)
        """A path of text: a `Path` costs more than the system call."""

    def entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        """See `FileTree`."""
        with os.scandir(self.root / folder) as entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir(follow_symlinks=self._follow_links)
                except OSError:  # links that form a circle
                    is_folder = False
                yield entry.name, is_folder

    def identity(self, folder: str) -> object:
        """See `FileTree`."""
        facts = (self.root / folder).stat()
        return facts.st_dev, facts.st_ino

    def is_file(self, key: str) -> bool:
        """See `FileTree`."""
        return (self.root / key).is_file()

    def is_same(self, key: str, other: SourcePath) -> bool:
        """See `FileTree`."""
        return isinstance(other, Path) and (self.root / key).resolve() == other.resolve()

    def is_link_to_folder(self, key: str) -> bool:
        """See `FileTree`."""
        return (self.root / key).is_symlink() and (self.root / key).is_dir()

    def faults(self) -> dict[str, str]:
        """See `FileTree`."""
        return {}

    def facts(self, key: str) -> FileFacts | str:
        """See `FileTree`."""
        path = f"{self._root}/{key}"
        try:
            facts = os.lstat(path)
            if stat.S_ISLNK(facts.st_mode):
                inside = Path(path).resolve().is_relative_to(self.root.resolve())
                if not (self._follow_links or inside):
                    return f"a symbolic link out of the folder, to {Path(path).readlink()}; --follow-links allows it"
                facts = Path(path).stat()
        except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
            return f"cannot be read: {getattr(error, 'strerror', None) or error}"
        if stat.S_ISDIR(facts.st_mode):
            return "a symbolic link to a folder; --follow-links allows it"
        if not stat.S_ISREG(facts.st_mode):
            return "not a regular file"
        if facts.st_size == 0:
            return "the file is empty"
        return FileFacts(key, facts.st_size, facts.st_mtime_ns)


class _ListedFolder:
    """The files and folders in one folder of a store."""

    def __init__(self) -> None:
        self.folders = set[str]()
        self.names: list[str] = []
        self.sizes, self.marks = array("q"), array("q")

    def sort(self) -> None:
        """Sort the names, and leave out the empty objects that stand for folders."""
        if any(a >= b for a, b in pairwise(self.names)) or not self.folders.isdisjoint(self.names):
            order = sorted(range(len(self.names)), key=self.names.__getitem__)
            order = [at for at in order if self.sizes[at] or self.names[at] not in self.folders]
            self.names = [self.names[at] for at in order]
            self.sizes, self.marks = (array("q", (values[at] for at in order)) for values in (self.sizes, self.marks))

    def find(self, name: str) -> int | None:
        """Return the position of a file."""
        at = bisect_left(self.names, name)
        return at if at < len(self.names) and self.names[at] == name else None


_listed: dict[ObjectPath, dict[str, _ListedFolder]] = {}
"""The folders below the path that was listed last: to list a bucket takes long."""


class ObjectTree:
    """See `FileTree`: the objects below a folder of a store, or the files of a zip."""

    def __init__(self, root: ObjectPath) -> None:
        self.root = root
        listed = next((path for path in _listed if is_below(root, path)), None)
        if listed is None:
            _listed.clear()
            at_end(_listed.clear)
            try:
                _listed[root], listed = _folders_of(root), root
            except OSError as error:
                raise SourceError(str(root), f"cannot be listed: {error.strerror}") from error
        self._below = _listed[listed]
        inside = root.path.relative_to(listed.path)
        self._prefix = f"{inside}/" if inside.parts else ""

    def _at(self, folder: str) -> _ListedFolder:
        found = self._below.get(f"{self._prefix}{folder}".rstrip("/"))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(self.root / folder))
        return found

    def entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        """See `FileTree`."""
        found = self._at(folder)
        yield from ((name, True) for name in sorted(found.folders))
        yield from ((name, False) for name in found.names)

    def identity(self, folder: str) -> object:
        """See `FileTree`."""
        return folder

    def is_file(self, key: str) -> bool:
        """See `FileTree`."""
        folder, _, name = key.rpartition("/")
        with suppress(FileNotFoundError):
            return self._at(folder).find(name) is not None
        return False

    def is_same(self, key: str, other: SourcePath) -> bool:
        """See `FileTree`."""
        return self.root / key == other

    def is_link_to_folder(self, key: str) -> bool:  # noqa: ARG002 - there are no links
        """See `FileTree`."""
        return False

    def faults(self) -> dict[str, str]:
        """See `FileTree`."""
        begin = len(f"{self.root.path}/") if self.root.path.parts else 0
        return {name[begin:]: reason for name, reason in faults_below(self.root).items()}

    def facts(self, key: str) -> FileFacts | str:
        """See `FileTree`."""
        folder, _, name = key.rpartition("/")
        found = self._at(folder)
        at = found.find(name)
        assert at is not None
        return FileFacts(key, found.sizes[at], found.marks[at]) if found.sizes[at] else "the file is empty"


def _folders_of(root: ObjectPath) -> dict[str, _ListedFolder]:
    """Return the folders below a path, by their paths below it. Raises OSError, `UsageError`, `SourceError`."""
    found: dict[str, _ListedFolder] = {}

    def at(folder: str) -> _ListedFolder:
        if folder not in found:
            found[folder] = _ListedFolder()
            if folder:
                above, _, name = folder.rpartition("/")
                at(above).folders.add(name)
        return found[folder]

    begin = len(f"{root.path}/") if root.path.parts else 0
    for entry in entries_below(root):
        folder, _, name = entry.name[begin:].rpartition("/")
        if not name:  # an empty object that stands for the folder itself
            continue
        files = at(folder)
        files.names.append(name)
        files.sizes.append(entry.size)
        files.marks.append(_mark(entry.mark))
    for name in folders_below(root):
        at(name[begin:])
    for each in found.values():
        each.sort()
    return found


def _mark(text: str) -> int:
    """Return a number made of the version of an object; 0 if the store says none. Lists and reads quote it or not."""
    plain = text.removeprefix("W/").strip('"')
    return xxhash.xxh3_64_intdigest(plain.encode()) >> 1 if plain else 0


def contents(root: SourcePath, files: Sequence[FileFacts]) -> Iterator[Buffer | SourceError]:
    """Yield the bytes of each file below `root`, or why it cannot be read."""
    return _of_objects(root, files) if isinstance(root, ObjectPath) else _of_files(root, files)


def _of_objects(root: ObjectPath, files: Sequence[FileFacts]) -> Iterator[Buffer | SourceError]:
    store = store_of(root.root)  # here, and not in a thread: it may start a process
    ahead: deque[tuple[int, Future[Buffer | SourceError]]] = deque()
    held = 0
    with ThreadPoolExecutor(LINES, "brand-source") as pool:
        try:
            for file in files:
                while ahead and (len(ahead) >= _FILES_AT_ONCE or held + file.size > _BYTES_AT_ONCE):
                    size, future = ahead.popleft()
                    yield future.result()
                    held -= size
                size = max(0, file.size)
                ahead.append((size, pool.submit(_object, store, root, file)))
                held += size
            while ahead:
                yield ahead.popleft()[1].result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _object(store: Store | ZipStore, root: ObjectPath, file: FileFacts) -> Buffer | SourceError:
    try:
        data, mark = store.fetch(str((root / file.key).path), _MOST_UNKNOWN if file.size == UNKNOWN else file.size)
    except OSError as error:
        changed = error.errno == errno.EFBIG
        return SourceError(file.key, CHANGED if changed else f"cannot be read: {error.strerror}")
    found = _mark(mark)
    if file.size not in (UNKNOWN, len(data)) or (found and file.mark and found != file.mark):
        return SourceError(file.key, CHANGED)
    return data


def _of_files(root: Path, files: Sequence[FileFacts]) -> Iterator[Buffer | SourceError]:
    folder = str(root)
    for start in range(0, len(files), _FILES_AT_ONCE):
        few = files[start : start + _FILES_AT_ONCE]
        opened: list[int | OSError] = []
        try:
            for file in few:
                opened.append(_opened(f"{folder}/{file.key}", ahead=len(few) > 1))
            for file, descriptor in zip(few, opened, strict=True):
                yield _whole(file, descriptor)
        finally:
            for descriptor in opened:
                if isinstance(descriptor, int):
                    os.close(descriptor)


def _opened(path: str, *, ahead: bool) -> int | OSError:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        return error
    if _WILLNEED is not None and ahead:
        os.posix_fadvise(descriptor, 0, 0, _WILLNEED)
    return descriptor


def _whole(file: FileFacts, descriptor: int | OSError) -> Buffer | SourceError:
    try:
        if isinstance(descriptor, OSError):
            raise descriptor
        if file.size == UNKNOWN:
            with os.fdopen(os.dup(descriptor), "rb") as stream:
                return stream.read()
        if os.fstat(descriptor).st_mtime_ns != file.mark:  # written again, perhaps with equally many bytes
            return SourceError(file.key, CHANGED)
        data = os.read(descriptor, file.size + 1) if file.size < LARGE else _read_large(descriptor, file.size + 1)
    except OSError as error:
        return SourceError(file.key, f"cannot be read: {error.strerror}")
    return data if len(data) == file.size else SourceError(file.key, CHANGED)


def _read_large(descriptor: int, size: int) -> memoryview:
    """Return up to `size` bytes of a file in memory of numpy, which is filled in a third of the time of bytes."""
    memory, done = np.empty(size, np.uint8).data, 0
    while count := os.readv(descriptor, [memory[done:]]):  # Linux reads at most 2 GiB at once
        done += count
    return memory[:done]
