"""How is the source of a copy read, and may its target be written? Each is a folder or a store.

Each file of the source is read once and whole. Its errors are `FormatError`s that name the file, or its URL. The
manifest describes all files, so nothing is listed.

The work folder of a target folder is inside it: `DST/.brand-copy` marks a copy that is not finished. For a store, the
work folder is below the user's cache folder, and the claim (`pack_claim`) is the mark. The work folder has the manifest
of the data set that is copied, so a copy that was stopped can be continued, and a copy of another data set is refused.
A lock, which ends with its process, excludes a second copy. If the target is a finished copy of the same data set,
nothing is copied.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import xxhash

from brand.errors import (
    FormatError,
    MissingFileError,
    OversizedError,
    TargetExistsError,
    TruncatedError,
    UnreadableError,
)
from brand.formats import locks
from brand.formats.chunk import claimed_by, pack_claim
from brand.formats.constants import COPY_WORK_NAME, MANIFEST_NAME, MAX_MANIFEST, PREAMBLE_SIZE, SHARE_NAME, chunk_name
from brand.formats.manifest import read_manifest
from brand.formats.publish import FolderTarget, Target, publish_bytes, storage_errors
from brand.formats.version import check_target_name
from brand.storage.io.location import check_single
from brand.storage.io.remote import no_data_set
from brand.stores.opening import open_store
from brand.stores.store import Store
from brand.stores.target import StoreTarget
from brand.usercache import ANOTHER_FOLDER, own_folder

_PIECE: Final = 1 << 20
_CHUNKS: Final = "chunks"


class Origin(Protocol):
    """The data set that is copied. Any number of threads may use it."""

    name: str
    """Its path or its URL."""

    def manifest(self) -> bytes:
        """Return the bytes of its manifest. Raises `NotADataSetError`, `OversizedError`, `UnreadableError`."""

    def has(self, name: str) -> bool:
        """Return whether there is a small file of this name. Raises `UnreadableError`."""

    def pieces(self, name: str, size: int, chunk: int | None = None) -> Iterator[memoryview]:
        """Yield a file of `size` bytes, a piece at a time, which is valid until the next one.

        Raises `MissingFileError`, `UnreadableError`, `TruncatedError`, `OversizedError`, with the number of its chunk.
        """


class FolderOrigin:
    """A data set in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)

    def manifest(self) -> bytes:
        with _reading(str(self.folder / MANIFEST_NAME)):
            read_manifest(self.folder)
            return (self.folder / MANIFEST_NAME).read_bytes()

    def has(self, name: str) -> bool:
        return os.path.lexists(self.folder / name)

    def pieces(self, name: str, size: int, chunk: int | None = None) -> Iterator[memoryview]:
        path, memory = self.folder / name, memoryview(bytearray(min(_PIECE, max(1, size))))
        with _reading(str(path), chunk), path.open("rb", buffering=0) as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                error = TruncatedError if found < size else OversizedError
                raise error("size of the file", path=path, chunk=chunk, expected=f"{size} bytes", found=found)
            while count := file.readinto(memory):
                yield memory[:count]


class StoreOrigin:
    """A data set in a store."""

    def __init__(self, store: Store) -> None:
        self._store, self.name = store, str(store.url)

    def manifest(self) -> bytes:
        with _reading(self._store.url.child(MANIFEST_NAME)):
            try:
                return self._store.read(MANIFEST_NAME, MAX_MANIFEST)
            except FileNotFoundError:
                raise no_data_set(self.name) from None

    def has(self, name: str) -> bool:
        with _reading(self._store.url.child(name)):
            try:
                self._store.read(name, MAX_MANIFEST)
            except FileNotFoundError:
                return False
            return True

    def pieces(self, name: str, size: int, chunk: int | None = None) -> Iterator[memoryview]:
        with _reading(self._store.url.child(name), chunk):
            yield from self._store.pieces(name, 0, size)


def open_origin(where: str | Path) -> Origin:
    """Return the data set at a path or a URL. Raises `UsageError`, also for a collection."""
    if isinstance(where, Path):
        check_single(where, "copy its folder with rsync or `cp -r`, or copy one of its segments,")
    return StoreOrigin(open_store(where)) if isinstance(where, str) else FolderOrigin(where)


@contextmanager
def _reading(name: str, chunk: int | None = None) -> Iterator[None]:
    """Turn an OSError of reading a file of the source into a `FormatError` that names it."""
    try:
        yield
    except FormatError:
        raise
    except FileNotFoundError:
        hint = "Copy or convert it again from the source"
        raise MissingFileError("the file is missing", path=name, chunk=chunk, hint=hint) from None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", path=name, chunk=chunk) from error


class Destination(ABC):
    """A place that was claimed for a copy. Its methods raise OSError."""

    def __init__(self, name: str, target: Target, work: Path) -> None:
        self.name, self.target, self.work = name, target, work

    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """Return names and sizes of the chunks that may be there; unfinished files are not among them."""

    @abstractmethod
    def head(self, name: str) -> bytes:
        """Return the first 64 bytes of an existing file."""


class _InFolder(Destination):
    def __init__(self, place: Path) -> None:
        super().__init__(str(place), FolderTarget(place), place / COPY_WORK_NAME)
        self._place = place

    def sizes(self) -> Mapping[str, int]:
        if not (self._place / _CHUNKS).is_dir():
            return {}
        with os.scandir(self._place / _CHUNKS) as entries:
            return {f"{_CHUNKS}/{entry.name}": entry.stat().st_size for entry in entries}

    def head(self, name: str) -> bytes:
        with (self._place / name).open("rb", buffering=0) as file:
            return file.read(PREAMBLE_SIZE)


class _InStore(Destination):
    def __init__(self, store: Store, target: StoreTarget, work: Path, *, begun: bool) -> None:
        super().__init__(str(store.url), target, work)
        self._store, self._begun = store, begun

    def sizes(self) -> Mapping[str, int]:
        """See `Destination`. Lists objects only if there may be any."""
        return {name: size for name, size, _ in self._store.entries(_CHUNKS)} if self._begun else {}

    def head(self, name: str) -> bytes:
        return b"".join(self._store.pieces(name, 0, PREAMBLE_SIZE))


@contextmanager
def claimed(where: str | Path, manifest: bytes, data_set_id: bytes) -> Iterator[Destination]:
    """Claim a path or a URL for this copy alone.

    The work folder is removed if no error occurs. Raises `TargetExistsError`, `UsageError`, OSError.
    """
    if isinstance(where, Path):
        context = _claimed_folder(where, manifest)
    else:
        context = _claimed_in_store(open_store(where), manifest, data_set_id)
    with context as destination:
        yield destination
        shutil.rmtree(destination.work)


@contextmanager
def _claimed_folder(place: Path, manifest: bytes) -> Iterator[Destination]:
    check_target_name(place)
    _check_folder(place, manifest)
    work = place / COPY_WORK_NAME
    work.mkdir(parents=True, exist_ok=True)
    with locked(work, str(place)):
        _check_folder(place, manifest)
        known = work / MANIFEST_NAME
        if known.exists() and known.read_bytes() != manifest:
            raise TargetExistsError(
                f"{place} holds an unfinished copy of another data set. Run that command again to finish it, or remove"
                f" {place} to start again"
            )
        publish_bytes(known, manifest)
        yield _InFolder(place)


@contextmanager
def _claimed_in_store(store: Store, manifest: bytes, data_set_id: bytes) -> Iterator[Destination]:
    name, target, begun = str(store.url), StoreTarget(store), False

    def is_ours() -> bool:
        nonlocal begun
        begun = True
        return claimed_by(b"".join(store.pieces(chunk_name(0), 0, PREAMBLE_SIZE))) == data_set_id

    with storage_errors(name, "cannot store the state of the copy in", ANOTHER_FOLDER):
        work = own_folder("copies", xxhash.xxh3_128_hexdigest(name.encode()))
    with locked(work, name):
        _check_store(store, manifest)
        if not target.create(chunk_name(0), pack_claim(data_set_id), is_ours):
            raise TargetExistsError(
                f"{name} holds an unfinished conversion or copy of another data set. Run that command again to finish"
                f" it, or remove what is in {name} to start again"
            )
        known = work / MANIFEST_NAME
        if known.exists() and known.read_bytes() != manifest:
            shutil.rmtree(work / "files", ignore_errors=True)
        publish_bytes(known, manifest)
        yield _InStore(store, target, work, begun=begun)


def _check_folder(place: Path, manifest: bytes) -> None:
    """Raise `TargetExistsError` unless the folder is new, empty, or has a copy of this data set, finished or not."""
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise TargetExistsError(f"{place} exists and is not a folder. Choose another target, or remove it")
    names = set(os.listdir(place))
    if SHARE_NAME in names:
        raise TargetExistsError(f"{place} is the partition of a node. Choose another target")
    if MANIFEST_NAME in names:
        if (place / MANIFEST_NAME).read_bytes() != manifest:
            raise TargetExistsError(f"{place} is a finished data set already. Choose another target, or remove it")
    elif names and COPY_WORK_NAME not in names:
        raise TargetExistsError(f"{place} is not empty. Choose another target, or remove what is in it")


def _check_store(store: Store, manifest: bytes) -> None:
    try:
        found = store.read(MANIFEST_NAME, MAX_MANIFEST)
    except FileNotFoundError:
        return
    if found != manifest:
        raise TargetExistsError(f"{store.url} is a finished data set already. Choose another target, or remove it")


@contextmanager
def locked(work: Path, name: str | Path, writer: str = "copy") -> Iterator[None]:
    """Hold the lock of the work folder of `name` while `writer` writes there. Raises `TargetExistsError`, OSError."""
    lock = os.open(work / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not locks.take(lock, work / "lock"):
            raise TargetExistsError(f"{name}: another {writer} is writing there right now")
        if not work.exists():  # another process had it, and has removed it meanwhile
            raise TargetExistsError(f"{name}: another {writer} has just ended there. Run the command again")
        yield
    finally:
        os.close(lock)
