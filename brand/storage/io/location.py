"""Where is a data set stored, and which readers read its chunks there?

All bytes of chunks are read through a `Location`: stripes, direct reads, samples for other nodes, tables and
dictionaries. Manifest, partition file and index are read from local files. A `FolderLocation` has them; a `Remote` has
copies of them. A `Collected` is a version of a collection, whose segments are folders.

`photos.brand` names the present version of a collection (`present`), and `photos.brand@3` the third.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from brand.errors import MissingFileError, NotADataSetError, UsageError
from brand.formats.constants import MANIFEST_NAME, VERSIONS_NAME, chunk_name
from brand.formats.manifest import read_manifest
from brand.formats.version import PINNED, Version, read_version, version_name
from brand.storage.io.files import ChunkReader, RangeReader
from brand.storage.io.present import last_number, numbers
from brand.storage.io.remote import Remote, fetch_index
from brand.storage.io.vectored import CopiedReads, DirectFiles, LocalFiles, VectorReader
from brand.stores.store import Traffic
from brand.stores.url import is_url, parse_url


class Location(Protocol):
    """The location of a data set. Picklable. Any number of threads may use it, because each makes its own readers."""

    @property
    def name(self) -> str:
        """Name for users and for other processes: a path, or a URL."""

    @property
    def in_store(self) -> bool:
        """Whether the chunks are objects of a store.

        If so, training processes read no chunks: their data server does. The index was checked as a whole when it was
        copied, so it is not compared with the chunks' tables.
        """

    @property
    def traffic(self) -> Traffic | None:
        """Requests and bytes that reads of a store have cost so far; None if the data set is not in a store."""

    @property
    def local(self) -> Path:
        """Folder of this machine that has the manifest, the partition file and the index, or copies of them.

        If there is a `version`, it is the folder of the collection.
        """

    @property
    def version(self) -> Version | None:
        """The version of a collection at this location; None for a data set that is not a collection."""

    def chunk_file(self, number: int) -> str:
        """Return a chunk's name for messages: its path, or its address."""

    def chunk_bytes(self, number: int) -> int:
        """Return the size of a chunk's file in bytes. Raises OSError (FileNotFoundError for a missing chunk)."""

    def dictionary(self) -> bytes | None:
        """Return the compression dictionary; None if only the chunks have it. Raises OSError."""

    def reader(self) -> ChunkReader:
        """Return a new reader of ranges of chunks, for one thread."""

    def vector_reader(self, *, page_cache: bool) -> VectorReader | None:
        """Return a new reader of large ranges of chunks, for one thread; None if this location has only `reader`.

        `page_cache`: the page cache of this machine can hold all chunks. Raises OSError.
        """


class _InFolders(ABC):
    """The common part of locations whose chunks are files of a file system."""

    __slots__ = ()
    in_store = False
    traffic = None

    @abstractmethod
    def chunk_file(self, number: int) -> str:
        """See `Location`."""

    def chunk_bytes(self, number: int) -> int:
        return Path(self.chunk_file(number)).stat().st_size

    def dictionary(self) -> None:
        return None

    def reader(self) -> ChunkReader:
        return RangeReader(self.chunk_file)

    def vector_reader(self, *, page_cache: bool) -> VectorReader:
        return LocalFiles(self.chunk_file) if page_cache else DirectFiles(self.chunk_file)


@dataclass(frozen=True, slots=True)
class FolderLocation(_InFolders):
    """A data set in a folder of a file system."""

    local: Path

    version = None

    @property
    def name(self) -> str:
        return str(self.local)

    def chunk_file(self, number: int) -> str:
        return f"{self.local}/{chunk_name(number)}"


@dataclass(frozen=True)
class Collected(_InFolders):
    """A version of a collection in a folder of a file system. Chunk numbers continue from segment to segment."""

    local: Path
    version: Version
    pinned: bool = True
    """Whether the path named this version, rather than the present one by default."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Collected, (self.local, self.version, self.pinned)

    @property
    def name(self) -> str:
        return f"{self.local}@{self.version.number}"

    def chunk_file(self, number: int) -> str:
        firsts, folders = self._parts
        part = bisect_right(firsts, number) - 1
        return f"{folders[part]}/{chunk_name(number - firsts[part])}"

    @cached_property
    def _parts(self) -> tuple[list[int], list[str]]:
        """The first chunk of each segment that holds samples, and its folder."""
        folders = [self.local / part.name for part in self.version.parts if part.id is not None]
        firsts, chunks = [], 0
        for folder in folders:
            firsts.append(chunks)
            chunks += read_manifest(folder).header.chunks
        return firsts, list(map(str, folders))


_SHOWN: Final = 20
"""Numbers of versions in a message."""
Where = str | os.PathLike[str] | Location
"""A data set's name: the path of its folder, its URL, or its location."""


def located(where: Where) -> Location:
    """Return the location of a data set. A path becomes absolute, so it stays right when the working folder changes.

    The index of a data set at a URL is copied to this machine, if it is not there already. For a collection, it is the
    location of the version that the path names, or of the present one. Raises `UsageError`, `StorageError`,
    `FormatError`.
    """
    if not isinstance(where, str | os.PathLike):
        return where
    named = place(os.fspath(where))
    if not isinstance(named, Path):
        return Remote(named, fetch_index(named))
    collected = named_version(named.absolute())
    return FolderLocation(named.absolute()) if collected is None else Collected(*collected)


def place(text: str) -> Path | str:
    """Parse a text that is the path of a folder, or the URL of a folder in a store. Raises `UsageError`."""
    if not is_url(text):
        return Path(text)
    url = parse_url(text)
    return Path("/", url.path) if url.scheme == "file" else str(url)


def vector_reader(location: Location, *, page_cache: bool) -> VectorReader:
    """Return a location's own vector reader, or one that copies the bytes of its `reader`. Raises OSError."""
    return location.vector_reader(page_cache=page_cache) or CopiedReads(location.reader())


def is_collection(folder: Path) -> bool:
    """Return whether a folder holds a collection, possibly without a version yet.

    It is not known of a folder that this user may not enter: the error, with its remedy, is that of its manifest.
    """
    if not os.access(folder, os.X_OK):
        return False
    return (folder / VERSIONS_NAME).is_dir() and not (folder / MANIFEST_NAME).exists()


def named_version(path: Path) -> tuple[Path, Version, bool] | None:
    """Return folder and version of the collection that a path names, and whether the path has the number.

    None if the path does not name a collection. Raises a `FormatError` if the version cannot be read, `UsageError` if
    the path has the number of a version, and the data set is not a collection.
    """
    number: int | None = None
    match = None if os.access(path, os.F_OK) else PINNED.fullmatch(str(path))
    if match is not None:
        path, number = Path(match[1]), int(match[2])
        if os.access(path / MANIFEST_NAME, os.F_OK):
            raise UsageError(f"{path} is not a collection, so it has no version {number}: name it without @{number}")
    if not is_collection(path):
        return None
    if number is None:
        return path, present_version(path), False
    if not (missing := path / version_name(number)).exists():
        what = f"there is no version {number}: {_told(numbers(path))}"
        raise MissingFileError(what, path=missing, hint=f"`brand versions {path}` lists their contents")
    return path, read_version(path, number), True


def _told(known: list[int]) -> str:
    if len(known) > _SHOWN:
        return f"there are {len(known):,} versions, {known[0]} to {known[-1]}"
    return f"the versions are {', '.join(map(str, known))}" if known else "there is no version"


def check_single(path: Path, cure: str) -> None:
    """Raise `UsageError` if a path names a collection, or a version of one. `cure` follows its name in the message."""
    if (found := named_version(path.absolute())) is not None:
        raise UsageError(f"{path} is a collection: {cure} the folders in {found[0]}/parts")


def pinned(path: str, number: int) -> str:
    """Return the path that names this version, for a path that names the collection, or a version of it."""
    match = PINNED.fullmatch(path)
    return path if match is not None and int(match[2]) == number else f"{path}@{number}"


def present_version(folder: Path) -> Version:
    """Return the version with the highest number. Raises a `FormatError`."""
    number = last_number(folder)
    if number is None:
        what = "a collection without a version: run the interrupted `brand append` again"
        raise NotADataSetError(what, path=folder)
    return read_version(folder, number)
