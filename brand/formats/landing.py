"""How does a thread copy many small pieces of mapped files so that a missing page is an error, and no signal?

A process that touches a missing page of a mapped file gets SIGBUS, which kills it. A page is missing when the file was
cut short or the device reports an error, and a check before the touch always leaves a gap. So the process never touches
the mapping: the kernel copies the pieces out of it, a thousand in one call of pwritev(2), into a small file in memory,
and for a missing page it returns an error. From there they are copied once more. That is still faster than one call
for each piece.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.native import CORE

ROOM: Final = 1 << 17
"""Bytes that land together; a larger piece lands alone."""
_PIECES: Final = 1024
"""IOV_MAX of Linux."""
_IOVEC: Final = np.dtype([("base", "<u8"), ("length", "<u8")])
"""A piece of memory, as pwritev(2) takes it."""


class Landing:
    """The memory of one thread into which the kernel copies pieces: a file without a name. Raises OSError."""

    _file = -1

    def __init__(self) -> None:
        self._file = os.memfd_create("brand-landing", os.MFD_CLOEXEC)
        self._memory = np.empty(0, np.uint8)

    def __del__(self) -> None:
        if self._file >= 0:  # -1 where the process had no descriptor left
            os.close(self._file)

    def __repr__(self) -> str:
        return f"Landing({len(self._memory):,} bytes)"

    def copy(self, addresses: NDArray[np.uint64], sizes: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
        """Copy pieces of mapped files into `out`, which they fill, side by side.

        Returns False where one of their pages is missing. The caller makes sure that all pieces lie in mappings.
        """
        self._reserve(max(ROOM, int(sizes.max(initial=0))))
        if CORE is not None:
            copied: bool = CORE.copy_mapped(self._file, self._memory, addresses, sizes, out)
            return copied
        vector = np.empty(len(sizes), _IOVEC)
        vector["base"], vector["length"] = addresses, sizes
        ends, first, done = np.cumsum(sizes), 0, 0
        while first < len(sizes):
            end = min(first + _PIECES, int(np.searchsorted(ends, done + len(self._memory), side="right")))
            upto = int(ends[end - 1])
            if _pwritev()(self._file, vector[first:end].ctypes.data, end - first, 0) != upto - done:
                return False
            out[done:upto] = self._memory[: upto - done]
            first, done = end, upto
        return True

    def _reserve(self, size: int) -> None:
        if len(self._memory) < size:
            os.ftruncate(self._file, size)
            self._memory = np.frombuffer(mmap.mmap(self._file, size), np.uint8)


def landing() -> Landing | None:
    """The landing of this thread; None where the system has none. Raises OSError."""
    if not hasattr(os, "memfd_create"):
        return None
    found: Landing | None = getattr(_local, "landing", None)
    if found is None:
        found = _local.landing = Landing()
    return found


@cache
def _pwritev() -> Callable[[int, int, int, int], int]:
    function: Any = ctypes.CDLL(None, use_errno=True).pwritev64
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
    function.restype = ctypes.c_ssize_t
    return function  # type: ignore[no-any-return]


_local = threading.local()


def _forget() -> None:
    """A forked child must not share its landing with its parent."""
    global _local
    _local = threading.local()


os.register_at_fork(after_in_child=_forget)
