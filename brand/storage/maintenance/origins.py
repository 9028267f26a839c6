"""How are the files of the source of a copy read, each once and whole, from a folder or a store?

All errors are `FormatError`s that name the file, or its URL. The manifest describes all files, so nothing is listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from brand.errors import (
    FormatError,
    MissingFileError,
    NotADataSetError,
    OversizedError,
    TruncatedError,
    UnreadableError,
)
from brand.formats.constants import MANIFEST_NAME, MAX_MANIFEST
from brand.formats.manifest import read_manifest
from brand.stores.opening import open_store
from brand.stores.store import Store

_PIECE: Final = 1 << 20


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
        """See `Origin`."""
        try:
            read_manifest(self.folder)
            return (self.folder / MANIFEST_NAME).read_bytes()
        except OSError as error:
            raise _unreadable(str(self.folder / MANIFEST_NAME), error, None) from error

    def has(self, name: str) -> bool:
        """See `Origin`."""
        return os.path.lexists(self.folder / name)

    def pieces(self, name: str, size: int, chunk: int | None = None) -> Iterator[memoryview]:
        """See `Origin`."""
        path, memory = self.folder / name, memoryview(bytearray(min(_PIECE, max(1, size))))
        try:
            with path.open("rb", buffering=0) as file:
                found = os.fstat(file.fileno()).st_size
                if found != size:
                    error = TruncatedError if found < size else OversizedError
                    raise error("size of the file", path=path, chunk=chunk, expected=f"{size} bytes", found=found)
                while count := file.readinto(memory):
                    yield memory[:count]
        except OSError as error:
            raise _unreadable(str(path), error, chunk) from error


class StoreOrigin:
    """A data set in a store."""

    def __init__(self, store: Store) -> None:
        self._store, self.name = store, str(store.url)

    def manifest(self) -> bytes:
        """See `Origin`."""
        try:
            return self._store.read(MANIFEST_NAME, MAX_MANIFEST)
        except FileNotFoundError:
            what = "not a data set: there is no brand.json, which a conversion writes last"
            raise NotADataSetError(
                what, path=self.name, hint="Is the URL right, and the conversion finished?"
            ) from None
        except OSError as error:
            raise _unreadable(self._store.url.child(MANIFEST_NAME), error, None) from None

    def has(self, name: str) -> bool:
        """See `Origin`."""
        try:
            self._store.read(name, MAX_MANIFEST)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unreadable(self._store.url.child(name), error, None) from None
        return True

    def pieces(self, name: str, size: int, chunk: int | None = None) -> Iterator[memoryview]:
        """See `Origin`."""
        try:
            yield from self._store.pieces(name, 0, size)
        except OSError as error:
            raise _unreadable(self._store.url.child(name), error, chunk) from None


def open_origin(where: str | Path) -> Origin:
    """Return the data set at a path or a URL. Raises `UsageError`."""
    return StoreOrigin(open_store(where)) if isinstance(where, str) else FolderOrigin(where)


def _unreadable(name: str, error: OSError, chunk: int | None) -> FormatError:
    if isinstance(error, FormatError):
        return error
    hint = "Copy or convert it again from the source" if isinstance(error, FileNotFoundError) else ""
    kind = MissingFileError if isinstance(error, FileNotFoundError) else UnreadableError
    what = "the file is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
    return kind(what, path=name, chunk=chunk, hint=hint)
