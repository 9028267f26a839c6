"""The part files of a cache: pieces of chunk files, written at the offsets that they have there, and freed again.

A part file has the size of its chunk file, and holes at all offsets at which nothing is stored. Freed blocks become
holes (fallocate(2)).
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError
from brand.formats.values import Buffer
from brand.storage.cache.cachelayout import part_name
from brand.storage.io.ownfolder import open_own_file

BLOCK: Final = 4096
"""File systems allocate space in blocks of this size, or of a fraction of it."""

_VECTOR: Final = 1024
"""IOV_MAX of Linux."""
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of Linux."""
_STAT_BLOCK: Final = 512
"""Bytes of a block as stat(2) counts them."""


class PartFiles:
    """The part files in `folder`, a descriptor that the caller closes; `shown` is its path, for messages.

    `sizes` are the sizes of the chunk files. Methods raise OSError.
    """

    def __init__(self, folder: int, shown: str, sizes: NDArray[np.integer[Any]]) -> None:
        self._folder, self._shown, self._sizes = folder, shown, sizes
        self._dirty: set[int] = set()
        """Part files that were written since the last `flush`."""
        self._new = False
        """Whether part files were made since the last `flush`."""
        self._unflushed, self._flushed_s = 0, time.monotonic()

    def __repr__(self) -> str:
        return f"PartFiles({self._shown}, {len(self._dirty)} to flush)"

    @property
    def dirty(self) -> bool:
        """Whether part files were written since the last `flush`."""
        return bool(self._dirty)

    def unflushed(self) -> tuple[int, float]:
        """Return the bytes that were written since the last `flush`, and the seconds since then."""
        return self._unflushed, time.monotonic() - self._flushed_s

    def path(self, number: int) -> str:
        """Return the path of a part file. It leads to the folder that was opened, even if that was renamed since."""
        return f"/proc/self/fd/{self._folder}/{part_name(number)}"

    def write(self, number: int, offset: int, pieces: list[Buffer]) -> None:
        """Write adjacent pieces of a chunk."""
        size = sum(map(len, pieces))  # computed before the write, because a short write shortens a piece
        part = self._open(number, os.O_WRONLY | os.O_CREAT)
        try:
            if not os.fstat(part).st_size:
                # A read may extend past the last sample that is held, and must not reach the end of the file there.
                os.ftruncate(part, int(self._sizes[number]))
                self._new = True
            self._dirty.add(number)
            _write_all(part, pieces, offset)
            self._unflushed += size
        finally:
            os.close(part)

    def flush(self) -> None:
        """Write all bytes since the last `flush` to the device."""
        self._unflushed, self._flushed_s = 0, time.monotonic()
        for number in sorted(self._dirty):
            part = self._open(number, os.O_RDONLY)
            try:
                os.fdatasync(part)
                os.posix_fadvise(part, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(part)
        if self._new:
            os.fsync(self._folder)
        self._dirty.clear()
        self._new = False

    def discard(self, number: int) -> None:
        """Exclude a part file from the next flush, because it will be removed."""
        self._dirty.discard(number)

    def remove(self, number: int) -> None:
        """Remove a part file."""
        os.unlink(part_name(number), dir_fd=self._folder)

    def remove_all(self) -> None:
        """Remove all files of the folder."""
        for name in os.listdir(self._folder):
            os.unlink(name, dir_fd=self._folder)

    def free(self, number: int, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Free all blocks of a part file outside of these ranges, which are in order."""
        part = self._open(number, os.O_WRONLY)
        try:
            for first, end in gaps(starts, ends, int(self._sizes[number])).tolist():
                punch(part, first, end)
        finally:
            os.close(part)

    def disk_bytes(self) -> int:
        """Return the bytes that the part files take on the disk."""
        return disk_bytes(self._folder)

    def _open(self, number: int, flags: int) -> int:
        """Return a descriptor of a part file."""
        name = part_name(number)
        try:
            return open_own_file(name, flags, self._folder, f"{self._shown}/{name}")
        except BrandError as error:
            raise OSError(errno.EPERM, str(error)) from error


def gaps(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the whole blocks of a file that none of these ranges touches: first and end of each gap, shape (gaps, 2).

    The ranges are in order, and no two overlap. The block at the end of the file counts as whole.
    """
    first = -(-np.concatenate(([0], ends)) // BLOCK) * BLOCK
    end = np.concatenate((starts // BLOCK * BLOCK, [-(-size // BLOCK) * BLOCK]))
    found = np.stack((first, end), axis=1).astype(np.int64)
    return found[found[:, 0] < found[:, 1]]


def punch(descriptor: int, first: int, end: int) -> None:
    """Free the blocks of a range of a file, which then reads as zeros. Raises OSError, also if not supported."""
    if _fallocate()(descriptor, _KEEP_SIZE | _PUNCH_HOLE, first, end - first):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def disk_bytes(parts: int) -> int:
    """Return the bytes that the files of a folder take on the disk. Raises OSError."""
    with os.scandir(parts) as entries:
        return sum(entry.stat(follow_symlinks=False).st_blocks for entry in entries) * _STAT_BLOCK


@cache
def _fallocate() -> Any:
    function: Any = ctypes.CDLL(None, use_errno=True).fallocate64
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    return function


def _write_all(descriptor: int, views: list[Buffer], offset: int) -> None:
    """Write all of these pieces, one after the other. Raises OSError."""
    at = 0
    while at < len(views):
        done = os.pwritev(descriptor, views[at : at + _VECTOR], offset)
        offset += done
        while at < len(views) and done >= len(views[at]):
            done -= len(views[at])
            at += 1
        if done:
            views[at] = views[at][done:]
