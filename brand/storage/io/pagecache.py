"""Does the page cache hold a range of a file, and can the range be dropped from it?

mincore(2) on a mapping answers this and reads nothing. A read with RWF_NOWAIT would answer it, too, but it would start
to read the missing pages. Linux answers only a process that may write the file or owns it; for others it is unknown.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np

MOST: Final = 0.75
"""A range counts as cached if the page cache holds this share of it: the rest costs little to read."""


class CachedFile:
    """The cached pages of one open file. The caller closes the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pages = _mapped(descriptor)

    def drop(self) -> None:
        """Ask the kernel to drop all pages of the file that are not in use and that are on the storage."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def drop_written(self) -> None:
        """Flush and drop a file that was just written and is not yet completely on the storage."""
        with suppress(OSError):  # some file systems do not permit this to a reader; then the file remains cached
            os.fdatasync(self._descriptor)
        self.drop()

    def holds(self, offset: int, size: int) -> bool | None:
        """Return whether any page of this range (inside the file) is in memory; None if the kernel does not tell."""
        found = self._held(offset, size)
        return None if found is None else bool(found.any())

    def gives(self, offset: int, size: int) -> bool:
        """Return whether most of this range is in memory, so processes may copy it without a wait. The rest is read."""
        found = self._held(offset, size)
        if found is None or found.mean() < MOST:
            return False
        first = offset - offset % mmap.PAGESIZE + int(found.argmax()) * mmap.PAGESIZE
        try:
            os.preadv(self._descriptor, [bytearray(1)], first, os.RWF_NOWAIT)
        except OSError:  # the pages were evicted, or the file system does not support RWF_NOWAIT
            return False
        if not found.all():
            os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        return True

    def _held(self, offset: int, size: int) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Return which pages of this range are in memory; None if the kernel does not tell."""
        if self._pages is None:
            return None
        start = offset - offset % mmap.PAGESIZE
        length = offset + size - start
        found = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        if _mincore()(self._pages.ctypes.data + start, length, found.ctypes.data) != 0:
            return None
        return (found & 1).astype(np.bool_)


def in_page_cache(path: str, offset: int = 0, size: int | None = None) -> bool:
    """Return whether the page cache holds most of this range (inside the file; None: to its end), and soon all of it.

    Processes may then copy it without a wait. False also if the kernel does not tell.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return CachedFile(descriptor).gives(offset, os.fstat(descriptor).st_size - offset if size is None else size)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """Return the file mapped as memory that is never touched; None if the kernel reports nothing about its pages."""
    try:
        told = os.geteuid() in (0, os.fstat(descriptor).st_uid) or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
        return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8) if told else None
    except (OSError, ValueError):  # a file system without mappings, or an empty file
        return None


@cache
def _mincore() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mincore
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    function.restype = ctypes.c_int
    return function
