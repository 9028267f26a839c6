"""A data set at a URL: which folder has its index, and what reads its chunks?

Manifest and index are copied to a folder of this machine (`fetching`), and checked as a whole on the way. Chunks are
read from the store, range by range: by the node server for all processes that train, and by programs of one process,
such as the verbs of the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.constants import CHUNKS_NAME, chunk_name
from brand.formats.index import open_array
from brand.formats.manifest import read_manifest
from brand.storage.files import Range, Reader
from brand.storage.vectored import VectorReader, scatter_memory
from brand.stores.store import Store, open_store, read_all

DICTIONARY_NAME: Final = "dictionary"
"""File of the copied index that has the compression dictionary, where there is one."""


@dataclass(frozen=True)
class Remote:
    """A data set in a store; a `Location`. Making one speaks to no store."""

    name: str
    """The URL."""
    local: Path

    in_store = True

    def chunk_file(self, number: int) -> str:
        """See `Location`."""
        return f"{self.name}/{chunk_name(number)}"

    def chunk_bytes(self, number: int) -> int:
        """See `Location`. The index says it: the store is not asked."""
        rows = open_array(self.local, CHUNKS_NAME, read_manifest(self.local).header)
        return int(rows.run(number, number + 1)["file_size"][0])

    def dictionary(self) -> bytes:
        """See `Location`."""
        return (self.local / DICTIONARY_NAME).read_bytes()

    def reader(self) -> Reader:
        """See `Location`."""
        return _StoreReader(self.name)

    def vector_reader(self, *, page_cache: bool) -> VectorReader:  # noqa: ARG002 - no page cache has what is in a store
        """See `Location`."""
        return _StoreVectors(self.name)


class _Lazy:
    """A store that is opened with the first read, so that a process that reads nothing never speaks to it."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def _store(self) -> Store:
        return open_store(self._url)

    def close(self) -> None:
        """Let go of nothing: all readers of a process share its connections."""


class _StoreReader(_Lazy):
    """A `Reader` of chunks in a store. Where an object ends early, it raises OSError, and gives no zeros."""

    def read_into(self, ranges: Sequence[Range]) -> None:
        """See `Reader`. Ranges are read at the same time; none is joined to another one."""
        if ranges:
            read_all(self._store, [(chunk_name(number), offset, buffer) for number, offset, buffer in ranges])


class _StoreVectors(_Lazy):
    """A `VectorReader` of chunks in a store: each piece of a body is copied once, to where its samples belong."""

    def scatter(self, number: int, offset: int, size: int, vector: NDArray[np.void], *, forget: bool) -> None:  # noqa: ARG002
        """See `VectorReader`."""
        vector, at = np.array(vector, order="C"), 0
        for piece in self._store.pieces(chunk_name(number), offset, size):
            at = scatter_memory(np.frombuffer(piece, np.uint8), vector, at)
