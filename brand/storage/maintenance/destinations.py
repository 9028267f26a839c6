"""May a copy be written to its target, what is there already, and where are its unfinished files?

The work folder of a target folder is inside it: `DST/.brand-copy` marks a copy that is not finished. For a store, the
work folder is below the user's cache folder, and the claim (`pack_claim`) is the mark. The work folder has the manifest
of the data set that is copied, so a copy that was stopped can be continued, and a copy of another data set is refused.
A lock, which ends with its process, excludes a second copy. If the target is a finished copy of the same data set,
nothing is copied.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import xxhash

from brand.errors import TargetExistsError
from brand.formats.chunk import claimed_by, pack_claim
from brand.formats.constants import COPY_WORK_NAME, MANIFEST_NAME, MAX_MANIFEST, PREAMBLE_SIZE, SHARE_NAME, chunk_name
from brand.formats.publish import FolderTarget, Target, publish_bytes
from brand.stores.opening import open_store
from brand.stores.store import Store
from brand.stores.target import StoreTarget
from brand.usercache import own_folder

_CHUNKS: Final = "chunks"


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
        """See `Destination`."""
        if not (self._place / _CHUNKS).is_dir():
            return {}
        with os.scandir(self._place / _CHUNKS) as entries:
            return {f"{_CHUNKS}/{entry.name}": entry.stat().st_size for entry in entries}

    def head(self, name: str) -> bytes:
        """See `Destination`."""
        with (self._place / name).open("rb", buffering=0) as file:
            return file.read(PREAMBLE_SIZE)


class _InStore(Destination):
    def __init__(self, store: Store, target: StoreTarget, work: Path, *, begun: bool) -> None:
        super().__init__(str(store.url), target, work)
        self._store, self._begun = store, begun

    def sizes(self) -> Mapping[str, int]:
        """See `Destination`. Lists objects only if there may be any."""
        return dict(self._store.names(_CHUNKS)) if self._begun else {}

    def head(self, name: str) -> bytes:
        """See `Destination`."""
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
    _check_folder(place, manifest)
    work = place / COPY_WORK_NAME
    work.mkdir(parents=True, exist_ok=True)
    with _locked(work, str(place)):
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

    work = own_folder("copies", xxhash.xxh3_128_hexdigest(name.encode()))
    with _locked(work, name):
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
def _locked(work: Path, name: str) -> Iterator[None]:
    lock = os.open(work / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TargetExistsError(f"{name}: another copy is writing there right now") from None
        if not work.exists():  # another process had it, and has removed it meanwhile
            raise TargetExistsError(f"{name}: another copy has just ended there. Run the command again")
        yield
    finally:
        os.close(lock)
