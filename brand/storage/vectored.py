"""One contiguous range of a file into many pieces of memory: how does a large read end up where each sample belongs?

By readv(2) with a vector that numpy made, so that thousands of pieces cost no Python object each. The range is first
announced to the kernel (POSIX_FADV_WILLNEED), which then reads it in few large operations; a plain read would come in
pieces of the read-ahead, 128 KiB, each an operation of its own. Not thread-safe: one reader a thread.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.storage.files import OpenFiles

_PIECES: Final = 1024
"""IOV_MAX of Linux."""


class Storage(Protocol):
    """What the executor reads from: one a thread, made by a factory."""

    def scatter(self, path: str, offset: int, size: int, vector: NDArray[np.void], *, forget: bool) -> None:
        """Fill the pieces of `vector` (address and length, as readv(2) has them; `size` bytes in all) from a file.

        `forget`: these bytes will not be read again soon. Raises OSError; EOFError where the file is too short.
        """

    def close(self) -> None:
        """Let go of all files."""


class LocalFiles:
    """Storage in files that the kernel reads."""

    def __init__(self) -> None:
        self._files = OpenFiles()
        self._preadv = _libc_preadv()

    def scatter(self, path: str, offset: int, size: int, vector: NDArray[np.void], *, forget: bool) -> None:
        """See `Storage`."""
        descriptor = self._files.descriptor(path)
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        vector = np.ascontiguousarray(vector)
        done = at = 0
        while done < size:
            pieces = vector[at : at + _PIECES]
            count = self._preadv(descriptor, pieces.ctypes.data, len(pieces), offset + done)
            if count < 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error), path)
            if count == 0:
                raise EOFError(path)
            done += count
            at = _advance(vector, at, count)
        if forget:
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """See `Storage`."""
        self._files.close()


def _advance(vector: NDArray[np.void], at: int, count: int) -> int:
    """The piece to go on with after `count` bytes; one that was filled in part is cut."""
    lengths = np.cumsum(vector["length"][at : at + _PIECES])
    full = int(np.searchsorted(lengths, count, side="right"))
    rest = count - (int(lengths[full - 1]) if full else 0)
    if rest:
        vector["base"][at + full] += np.uint64(rest)
        vector["length"][at + full] -= np.uint64(rest)
    return at + full


def _libc_preadv() -> Any:
    function = ctypes.CDLL(None, use_errno=True).preadv64
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
    function.restype = ctypes.c_ssize_t
    return function
