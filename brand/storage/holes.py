"""How does a file give back the blocks of what it no longer holds? It gets holes there, and keeps its size."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BLOCK: Final = 4096
"""File systems give space in blocks of this size, or of a part of it."""

_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of Linux."""


def gaps(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Whole blocks of a file that none of these ranges touches: first and end of each gap, shape (gaps, 2).

    The ranges are in order, and no two overlap. The block at the end of the file counts as whole.
    """
    first = -(-np.concatenate(([0], ends)) // BLOCK) * BLOCK
    end = np.concatenate((starts // BLOCK * BLOCK, [-(-size // BLOCK) * BLOCK]))
    found = np.stack((first, end), axis=1).astype(np.int64)
    return found[found[:, 0] < found[:, 1]]


def punch(descriptor: int, first: int, end: int) -> None:
    """Free the blocks of a range of a file, which then reads as zeros. Raises OSError, also where it cannot be done."""
    if _fallocate()(descriptor, _KEEP_SIZE | _PUNCH_HOLE, first, end - first):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@cache
def _fallocate() -> Any:
    function: Any = ctypes.CDLL(None, use_errno=True).fallocate64
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    return function
