"""Arrays in files: read one so that damage to the file never ends the process, or map a large one in little memory.

A process that touches a missing page of a mapped file gets SIGBUS, which kills it. A page is missing if the file was
cut short or the device reports an error, and a check before the touch always leaves a gap. So `ArrayFile` never touches
the mapping. `take` lets the kernel copy the elements out of it: one call of pwritev(2) copies up to a thousand
elements into a small file in memory, and for a missing page it returns an error. `take` then reads the elements one by
one from the descriptor, which gives the exact error. `run` reads neighbouring elements from the descriptor at once.

Work files are mapped: `map_array`. The system counts every mapped page that a process touches as the process's memory,
although the kernel may reclaim the page at any time, so the owner of a mapping calls `release` from time to time.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from brand.anonymous import anonymous_file
from brand.errors import TruncatedError, UnreadableError
from brand.forks import after_in_child
from brand.formats.publish import remedy_for
from brand.native import CORE

_PIECES: Final = 1024
"""IOV_MAX of Linux."""
_IOVEC: Final = np.dtype([("base", "<u8"), ("length", "<u8")])
"""A piece of memory, as pwritev(2) takes it."""

_MAP_FAILED: Final = ctypes.c_void_p(-1).value
NO_MAPS: Final = (errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
"""Error numbers of mmap(2) on a file system that maps no files: some of FUSE, 9P, and network drives."""
_CANNOT_MAP: Final = "its file system cannot map files (mmap): write to another file system, and copy the result"
_log: Final = logging.getLogger("brand")
WINDOW_BYTES: Final = 48 << 20
"""A mapped array of at most these bytes is not released."""
_DONTNEED: Final = getattr(mmap, "MADV_DONTNEED", None)


class ArrayFile:
    """An array of `length` elements that begins at byte `start` of an open file.

    It is read-only, and any number of threads may use it at once. It holds one descriptor, a duplicate of `file`. If
    its file system maps no files, the array is read into memory. Errors name `path`, and advise with `hint` how to
    repair a damaged file. Raises OSError if the file cannot be mapped for another reason, and `FormatError`.
    """

    def __init__(self, file: int, path: Path, dtype: np.dtype[Any], start: int, length: int, hint: str = "") -> None:
        self.path, self.dtype, self._start, self._length, self._hint = path, dtype, start, length, hint
        self._file = -1  # for `__del__`, if the next line fails
        self._mapping: _Mapping | None = None
        self._memory = np.empty(0, np.uint8)
        self._file = os.dup(file)
        try:
            self._mapping = _Mapping(self._file, start + self.nbytes)
            self._address = self._mapping.address + start
        except OSError as error:
            if error.errno not in NO_MAPS:
                raise
            self._memory = np.empty(self.nbytes, np.uint8)
            self._fill(self._memory, 0)
            self._address = self._memory.ctypes.data
            _log.info("%s is read into memory (%d bytes): its file system cannot map files (mmap)", path, self.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._length * self.dtype.itemsize

    def __len__(self) -> int:
        return self._length

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` is gone when the interpreter ends
        if self._file >= 0:
            close(self._file)

    def run(self, first: int, end: int) -> NDArray[Any]:
        """Return the elements `first` to `end` - 1, or as many of them as there are. Raises `FormatError`."""
        first, end, _ = slice(first, end).indices(self._length)
        found = np.empty(max(0, end - first), self.dtype)
        self._fill(found.view(np.uint8), first)
        return found

    def all(self) -> NDArray[Any]:
        """Return all elements. Raises `FormatError`."""
        return self.run(0, self._length)

    def take(self, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the elements with these numbers, in that order. Raises `FormatError`, IndexError.

        The kernel fills the last page of a shortened file with zeros, so an element that can be read may be wrong.
        """
        wanted = numbers.astype(np.uint64)  # a negative number becomes too large
        if len(wanted) and int(wanted.max()) >= self._length:
            raise IndexError(f"{self.path} has {self._length:,} elements: a number is out of range")
        found = np.empty(len(wanted), self.dtype)
        memory, size = found.view(np.uint8), self.dtype.itemsize
        landing = _thread_landing.get()
        if landing is not None and landing.copy_all(self._address, wanted, size, memory):
            return found
        for first in range(0, len(wanted), _PIECES):
            some = wanted[first : first + _PIECES]
            there = memory[first * size : (first + len(some)) * size]
            if landing is None or not landing.copy(self._address, some, size, there):
                for at, number in enumerate(some.tolist()):
                    self._fill(there[at * size : (at + 1) * size], number)
        return found

    def _fill(self, memory: NDArray[np.uint8], first: int) -> None:
        """Fill `memory` with neighbouring elements, from element `first` on. Raises `FormatError`."""
        done, at = 0, self._start + first * self.dtype.itemsize
        while done < len(memory):
            try:
                count = os.preadv(self._file, (memory[done:].data,), at + done)
            except OSError as error:
                what = f"cannot be read: {error.strerror}"
                raise UnreadableError(what, path=self.path, hint=remedy_for(error, self._hint)) from error
            if count == 0:
                whole = self._start + self._length * self.dtype.itemsize
                raise TruncatedError(
                    "the file was cut short while it was in use",
                    path=self.path,
                    expected=f"{whole} bytes",
                    found=os.fstat(self._file).st_size,
                    hint=self._hint,
                )
            done += count


class _Mapping:
    """The first `size` bytes of an open file at an address. `mmap.mmap` would keep a descriptor of its own.

    Raises OSError.
    """

    address = 0

    def __init__(self, file: int, size: int) -> None:
        self._size, (mapped, self._unmap) = size, _mapping_calls()
        address = mapped(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address = address

    def __del__(self) -> None:
        if self.address:
            self._unmap(self.address, self._size)


class _Landing:
    """The memory of one thread into which the kernel copies elements: a file without a name, for pwritev(2)."""

    _file = -1

    def __init__(self) -> None:
        self._file = anonymous_file("brand-index")
        self._memory = np.empty(0, np.uint8)
        self._vector = np.empty(_PIECES, _IOVEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file >= 0:  # -1 if the process had no descriptor left
            close(self._file)

    def copy_all(self, address: int, numbers: NDArray[np.uint64], size: int, out: NDArray[np.uint8]) -> bool:
        """Copy any number of elements like `copy`, in one call of the core. Return False also without the core."""
        if CORE is None or not self._reserve(size):
            return False
        addresses = numbers * np.uint64(size) + np.uint64(address)
        copied: bool = CORE.copy_mapped(self._file, self._memory, addresses, np.full(len(numbers), size), out)
        return copied

    def copy(self, address: int, numbers: NDArray[np.uint64], size: int, out: NDArray[np.uint8]) -> bool:
        """Copy elements of `size` bytes of the array at `address`. Return False if one of its pages is missing.

        Also if this process has no descriptor left for the memory.
        """
        if not self._reserve(size):
            return False
        vector = self._vector[: len(numbers)]
        np.multiply(numbers, np.uint64(size), out=vector["base"])
        vector["base"] += np.uint64(address)
        vector["length"] = size
        if _pwritev()(self._file, vector.ctypes.data, len(vector), 0) != len(out):
            return False
        out[:] = self._memory[: len(out)]
        return True

    def _reserve(self, size: int) -> bool:
        if len(self._memory) < _PIECES * size:
            try:
                os.ftruncate(self._file, _PIECES * size)
                self._memory = np.frombuffer(mmap.mmap(self._file, _PIECES * size), np.uint8)
            except OSError:
                return False
        return True


@cache
def _mapping_calls() -> tuple[Callable[..., int], Callable[[int, int], int]]:
    libc = ctypes.CDLL(None, use_errno=True)
    map_, unmap = libc.mmap, libc.munmap
    whole = ctypes.c_int
    map_.argtypes = (ctypes.c_void_p, ctypes.c_size_t, whole, whole, whole, ctypes.c_long)
    map_.restype = ctypes.c_void_p
    unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return map_, unmap


@cache
def _pwritev() -> Callable[[int, int, int, int], int]:
    function: Any = ctypes.CDLL(None, use_errno=True).pwritev64
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
    function.restype = ctypes.c_ssize_t
    return function  # type: ignore[no-any-return]


class _ThreadLanding(threading.local):
    _landing: _Landing | None = None

    def get(self) -> _Landing | None:
        """Return the memory; None if this process can have none: not Linux, a sandbox, or no descriptor left."""
        if self._landing is None and sys.platform == "linux":
            with suppress(OSError):
                self._landing = _Landing()
        return self._landing


_thread_landing = _ThreadLanding()


def _forget() -> None:
    """Replace the landing in a forked child, which must not share it with its parent."""
    global _thread_landing
    _thread_landing = _ThreadLanding()


after_in_child(_forget)


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
    try:
        return np.memmap(path, dtype, mode, shape=None if length is None else (length,)).view(np.ndarray)
    except OSError as error:
        if error.errno in NO_MAPS:
            raise OSError(error.errno, _CANNOT_MAP, os.fspath(path)) from error
        raise


def reserve(path: Path, size: int) -> None:
    """Make a file `size` bytes long, with its blocks on the device.

    A full disk raises OSError here. Without reserved blocks, a write to a mapped page of a full disk would be a bus
    error, which would kill the process.
    """
    with path.open("rb+") as file:
        file.truncate(size)
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)


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
    mapping = _mapping_of(array)
    if mapping is not None:
        mapping.flush()


def _mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the mapping behind an array, or None for an array in ordinary memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None
