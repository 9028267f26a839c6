"""The memories that a server shares, and copies of samples out of them.

A server describes its memories in its answer to HELLO (`ServerFacts`). A memory that differs from its description
raises `ProtocolError`. The client copies samples into `Buffers`, and reuses them as soon as no view of them is alive.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.formats.constants import ROW
from brand.formats.contents import StoredSamples
from brand.formats.record import windows
from brand.native import CORE
from brand.node.memory.directory import ENTRY_BYTES, Entries, pages_of_runs
from brand.node.memory.pages import ROW_BYTES
from brand.node.wire.client_messages import ServerFacts
from brand.node.wire.decoding import PAGE
from brand.node.wire.messages import Chains
from brand.storage.io.crew import Crew

MOST_MEMORIES: Final = 3
MOST: Final = 64
"""Maximum number of buffers of a pool; if all are in use, a new buffer replaces the oldest."""


@dataclass(frozen=True, slots=True)
class Memories:
    """The memories that a server shares, read-only."""

    pages: NDArray[np.uint8]
    """Shape (pages, page size)."""
    prepared: NDArray[np.uint8] | None
    """Pages of decoded samples, shape (pages, page size); None if it decodes nothing."""
    entries: Entries | None
    """Entries of the directory, shape (samples,); None if it has none."""


def map_memories(server: ServerFacts, descriptors: Sequence[int]) -> Memories:
    """Return the memories that a server describes. The caller keeps the descriptors. Raises `ProtocolError`."""
    sizes = [(server.pages, server.page)]
    sizes += [(server.prepared_pages, PAGE)] if server.prepared_pages else []
    sizes += [(server.entries, ENTRY_BYTES)] if server.entries else []
    if server.page < ROW_BYTES or len(sizes) != len(descriptors):
        raise ProtocolError("the server sent no memory, or more than it describes")
    mapped = [_mapped(descriptor, *size) for descriptor, size in zip(descriptors, sizes, strict=True)]
    entries = mapped[-1].view(np.uint64)[:, 0] if server.entries else None
    return Memories(mapped[0], mapped[1] if server.prepared_pages else None, entries)


def _mapped(descriptor: int, count: int, page: int) -> NDArray[np.uint8]:
    """Map a memory of a server, read-only, shape (count, page). Raises `ProtocolError`."""
    size = os.fstat(descriptor).st_size
    if count * page != size:
        raise ProtocolError("the server's memory differs from its description")
    return np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8).reshape(count, page)


class Buffers:
    """A pool of byte arrays, because fresh pages would cost more than the copy.

    Views of a buffer prevent its reuse. Not safe for concurrent threads.
    """

    def __init__(self) -> None:
        self._buffers: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return an array of `size` bytes, with any content."""
        for number in range(len(self._buffers)):
            # The list and getrefcount's argument are the only references: no view is alive.
            if sys.getrefcount(self._buffers[number]) == 2 and self._buffers[number].size >= size:
                return self._buffers[number][:size]
        buffer = np.empty(max(1, size + size // 4), np.uint8)
        if len(self._buffers) == MOST:
            self._buffers.pop(0)
        self._buffers.append(buffer)
        return buffer[:size]


@dataclass(frozen=True, slots=True)
class Pages:
    """Memory that a server shares, shape (pages, page size), buffers for copies, and the threads that copy."""

    pages: NDArray[np.uint8]
    buffers: Buffers
    crew: Crew

    def copy(self, chains: Chains, more: int = 0) -> NDArray[np.uint8]:
        """Copy the pages of these chains into one array, in one operation, followed by `more` bytes with any content.

        Raises `ProtocolError`.
        """
        count, page = self.pages.shape
        if len(chains.pages) and not 0 <= chains.pages.min() <= chains.pages.max() < count:
            raise ProtocolError("the server names pages that do not exist")
        size = len(chains.pages) * page
        memory = self.buffers.take(size + more)
        into = memory[:size].reshape(-1, page)
        if CORE is None:

            def copy(_: int, part: slice) -> None:
                np.take(self.pages, chains.pages[part], axis=0, out=into[part], mode="clip")

        else:
            core, starts, sizes = CORE, chains.pages.astype(np.int64) * page, np.full(len(chains.pages), page)

            def copy(_: int, part: slice) -> None:
                core.gather(self.pages.reshape(-1), starts[part], sizes[part], into[part])

        self.crew.each(copy, self.crew.even(len(chains.pages), page))
        return memory

    def copy_runs(self, heads: NDArray[np.int32], counts: NDArray[np.uint32], more: int = 0) -> NDArray[np.uint8]:
        """Copy as `copy` does, `counts[i]` contiguous pages each, from page `heads[i]` on. Raises `ProtocolError`."""
        if CORE is None:
            return self.copy(Chains(counts, pages_of_runs(heads, counts)), more)
        core, (count, page) = CORE, self.pages.shape
        if len(heads) and not 0 <= heads.min() <= int((heads.astype(np.int64) + counts).max()) <= count:
            raise ProtocolError("the server names pages that do not exist")
        memory_of_pages, starts, sizes = self.pages.reshape(-1), heads.astype(np.int64) * page, counts * np.int64(page)
        ends = np.cumsum(sizes)
        memory = self.buffers.take(int(sizes.sum()) + more)

        def copy(_: int, part: slice) -> None:
            first, end = int(ends[part.start] - sizes[part.start]), int(ends[part.stop - 1])
            core.gather(memory_of_pages, starts[part], sizes[part], memory[first:end])

        self.crew.each(copy, self.crew.parts(sizes))
        return memory

    def stored(self, memory: NDArray[np.uint8], counts: NDArray[np.uint32]) -> StoredSamples:
        """Return the samples in copies of pages, of `counts[i]` pages each. Raises `ProtocolError`."""
        page = self.pages.shape[1]
        starts = (np.cumsum(counts, dtype=np.int64) - counts) * page
        rows = windows(memory, ROW_BYTES)[starts].view(ROW)
        if (rows["size"].astype(np.int64) + ROW_BYTES > counts.astype(np.int64) * page).any():
            raise ProtocolError("a sample is larger than its pages")
        return StoredSamples(memory, starts + ROW_BYTES, rows)
