"""How does a process use a large array in a mapped file and still show little memory?

The system counts every mapped page that a process touches as the process's memory, although the kernel may reclaim the
page at any time. `gather` and `scatter` touch one window of the array at a time and `release` it, so the counted memory
is bounded, too.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

WINDOW_BYTES: Final = 48 << 20
"""Bytes of a mapped array that are touched before they are released."""

_DONTNEED: Final = getattr(mmap, "MADV_DONTNEED", None)

Indices = NDArray[np.integer[Any]]


def map_array(
    path: Path, dtype: np.dtype[Any], mode: Literal["r", "r+", "w+"] = "r", length: int | None = None
) -> NDArray[Any]:
    """Map a file of nothing but elements; `length` is needed to make a new one.

    The result is a plain array: indexing a `numpy.memmap` costs five times as much.
    """
    if mode == "w+":
        path.touch()
        reserve(path, dtype.itemsize * (length or 0))
        mode = "r+"
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode, shape=None if length is None else (length,)).view(np.ndarray)


def reserve(path: Path, size: int) -> None:
    """Make a file `size` bytes long, with its blocks on the device.

    A full disk raises OSError here. Without reserved blocks, a write to a mapped page of a full disk would be a bus
    error, which would kill the process.
    """
    with path.open("rb+") as file:
        file.truncate(size)
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)


def gather(array: NDArray[Any], indices: Indices) -> NDArray[Any]:
    """Return `array[indices]` of a mapped array, read a window at a time."""
    if array.nbytes <= WINDOW_BYTES:
        return array[indices]
    result = np.empty(len(indices), array.dtype)
    for part in _windows(array, indices):
        result[part] = array[indices[part]]
        release(array)
    return result


def scatter(array: NDArray[Any], indices: Indices, values: NDArray[Any]) -> None:
    """Assign `array[indices] = values` in a mapped array, a window at a time."""
    if array.nbytes <= WINDOW_BYTES:
        array[indices] = values
        return
    for part in _windows(array, indices):
        array[indices[part]] = values[part]
        release(array)


def release(*arrays: NDArray[Any]) -> None:
    """Return resident pages of mapped arrays to the page cache. Nothing is lost: the next touch maps them again.

    An array that fits in a window keeps its pages: they take little memory, and mapping them again for each chunk
    takes time.
    """
    for array in arrays:
        mapping = _mapping_of(array)
        if mapping is not None and _DONTNEED is not None and array.nbytes > WINDOW_BYTES:
            mapping.madvise(_DONTNEED)


def flush(array: NDArray[Any]) -> None:
    """Write a mapped array's changes to its file."""
    mapping = _mapping_of(array)
    if mapping is not None:
        mapping.flush()


def _windows(array: NDArray[Any], indices: Indices) -> Iterator[Indices]:
    """Yield positions in `indices`, in groups that touch one window of the array each."""
    order = np.argsort(indices, kind="stable")
    step = WINDOW_BYTES // array.itemsize
    cuts = np.searchsorted(indices[order], np.arange(0, len(array) + step, step, dtype=np.int64))
    for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if start < end:
            yield order[start:end]


def _mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the mapping behind an array, or None for an array in ordinary memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None
