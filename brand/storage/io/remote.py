"""Which folder has the index of a data set at a URL, and which readers read its chunks?

Manifest and index are copied to a folder of this machine (`fetch_index`), and checked as a whole while copying. Chunks
are read from the store, range by range: by the data server for all training processes, and by programs of one process,
such as the commands of the command line.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import NotADataSetError, StorageError, unpack_error
from brand.formats.constants import CHUNKS_NAME, chunk_name
from brand.formats.index import open_array
from brand.formats.manifest import read_manifest
from brand.pythonchild import child_command
from brand.storage.io.files import ChunkReader, Range
from brand.storage.io.vectored import VectorReader, scatter_memory
from brand.stores.opening import open_store
from brand.stores.store import Store, Traffic, read_all

DICTIONARY_NAME: Final = "dictionary"
"""File of the copied index that has the compression dictionary, if the data set has one."""
LIMIT_S: Final = 3600.0
"""Maximum time for the copy of an index. Each request has its own limit, which is much shorter."""


@dataclass(frozen=True)
class Remote:
    """A data set in a store; a `Location`. Neither making it nor making a reader sends a request to the store.

    All readers of one object share the connections, and the versions of the chunks that they have seen.
    """

    name: str
    """The URL."""
    local: Path
    traffic: Traffic = field(default_factory=Traffic, compare=False, repr=False)
    """Requests and bytes that reads by this object have cost so far."""

    in_store = True
    version = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self.name, self.local)

    def chunk_file(self, number: int) -> str:
        return f"{self.name}/{chunk_name(number)}"

    def chunk_bytes(self, number: int) -> int:
        """See `Location`. The index has the size: the store is not asked."""
        rows = open_array(self.local, CHUNKS_NAME, read_manifest(self.local).header)
        return int(rows.run(number, number + 1)["file_size"][0])

    def dictionary(self) -> bytes:
        return (self.local / DICTIONARY_NAME).read_bytes()

    def reader(self) -> ChunkReader:
        return _StoreReader(self)

    def vector_reader(self, *, page_cache: bool) -> VectorReader:  # noqa: ARG002 - no page cache has what is in a store
        return _StoreReader(self)

    @cached_property
    def store(self) -> Store:
        """The store. Raises `UsageError`."""
        return open_store(self.name, traffic=self.traffic)


class _StoreReader:
    """A `ChunkReader` and `VectorReader` of chunks in a store. If an object ends early, it raises OSError."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def read_into(self, ranges: Sequence[Range]) -> None:
        """See `ChunkReader`. Ranges are read at the same time; none is joined to another one."""
        if ranges:
            read_all(self._remote.store, [(chunk_name(number), offset, buffer) for number, offset, buffer in ranges])

    def scatter(self, number: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
        """See `VectorReader`. Each piece of a response body is copied once, to its samples' memory."""
        # A copy of the vector, because `scatter_memory` cuts partly filled pieces in place.
        vector, at = np.array(vector, order="C"), 0
        for piece in self._remote.store.pieces(chunk_name(number), offset, size):
            at = scatter_memory(np.frombuffer(piece, np.uint8), vector, at)

    def close(self) -> None:
        """Do nothing: the readers share their connections."""


def no_data_set(url: str) -> NotADataSetError:
    what = "not a data set: there is no brand.json, which a conversion writes last"
    return NotADataSetError(
        what,
        path=url,
        hint="Is the URL right, and the conversion finished? Tar and Parquet files must be converted first",
    )


def fetch_index(url: str) -> Path:
    """Return the folder of this machine that has manifest and index of the data set at `url`, copied if it is missing.

    The manifest is read again each time, so a data set that was replaced is found. Raises `NotADataSetError` and other
    `FormatError`s, `UsageError`, `StorageError`.
    """
    # The libraries that access stores start threads, and would make this process unfit to fork its DataLoader workers.
    command = child_command("brand.storage.io.indexcopy")
    try:
        done = subprocess.run(command, input=url.encode(), stdout=subprocess.PIPE, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise StorageError(f"the index of {url} was not copied within {LIMIT_S:.0f} s") from None
    except OSError as error:
        raise StorageError(f"the index of {url} cannot be copied: no process can be started: {error}") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise StorageError(
            f"the process that copies the index of {url} has ended; its output may give the reason"
        ) from None
    if "type" in answer:
        why = answer.get("message", answer)
        raise unpack_error(answer) or StorageError(f"the index of {url} cannot be copied: {why}")
    return Path(answer["folder"])
