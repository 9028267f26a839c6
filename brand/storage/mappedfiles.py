"""Which chunk files does the page cache hold, and where do they lie in memory?

A file of which the kernel says that it holds most of it is mapped once, and then counts as held. The kernel is not
asked again as long as copies wait for no storage: it counts the pages for which a process waited (major faults), and
where they are more than a few, each file is asked for anew.

Nothing in this process touches a mapping: the kernel copies (`brand.formats.landing`).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.storage.files import PathOf
from brand.storage.pagecache import CachedFile


class MappedChunks:
    """The held ones of files that `path_of` names and that have these sizes, shape (chunks,). For one thread."""

    def __init__(self, path_of: PathOf, sizes: NDArray[np.uint64]) -> None:
        self._path_of, self._sizes = path_of, sizes
        self._mappings: dict[int, NDArray[np.uint8]] = {}
        """Memory of the files that are held. It is never touched."""
        self._addresses = np.zeros(len(sizes), np.uint64)
        """Where each file that is held lies; 0: it is not."""

    def __repr__(self) -> str:
        return f"MappedChunks({len(self._mappings)} of {len(self._sizes)} files)"

    def held(self, chunks: NDArray[np.integer[Any]], few: int) -> NDArray[np.bool_] | None:
        """Which samples are in files that the page cache holds; None where more than `few` are not.

        `chunks` are the numbers of their files. This asks for those that are not known to be held.
        """
        missing = 0
        unknown, samples = np.unique(chunks[self._addresses[chunks] == 0], return_counts=True)
        for chunk, count in zip(unknown.tolist(), samples.tolist(), strict=True):
            if not self._ask(chunk):
                missing += count
                if missing > few:
                    return None
        held: NDArray[np.bool_] = self._addresses[chunks] > 0
        return held

    def addresses(self, chunks: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
        """Where files lie in memory; any number for one that is not held."""
        found: NDArray[np.uint64] = self._addresses[chunks]
        return found

    @contextmanager
    def watched(self, few: int) -> Iterator[None]:
        """Copies are made meanwhile. Where they waited for more than `few` pages, no file counts as held any more."""
        before = _waits()
        yield
        if _waits() - before > few:
            self._mappings.clear()
            self._addresses[:] = 0

    def _ask(self, chunk: int) -> bool:
        """Whether the page cache holds most of a file, which is then mapped."""
        try:
            descriptor = os.open(self._path_of(chunk), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            size, file = os.fstat(descriptor).st_size, CachedFile(descriptor)
            if file.memory is None or size != int(self._sizes[chunk]) or not file.gives(0, size):
                return False
            self._mappings[chunk], self._addresses[chunk] = file.memory, file.memory.ctypes.data
            return True
        finally:
            os.close(descriptor)


def _waits() -> int:
    """How many pages of files this process had to wait for."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
