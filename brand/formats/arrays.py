"""One array in a file: how are its elements read so that nothing that becomes of the file can end the process?

Whoever touches a page of a mapped file that is gone (the file was cut short, the device reports an error) is killed by
SIGBUS, and no check beforehand closes the gap between the check and the touch. So this process never touches the
mapping: `take` lets the kernel copy the elements out of it (pwritev(2) into a small file in memory, thousands of
elements a call), and the kernel answers a page that is gone with an error. The elements are then read one by one from
the descriptor, which tells what is wrong. `run` reads neighbours from the descriptor in the first place.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import TruncatedError, UnreadableError

_PIECES: Final = 1024
"""IOV_MAX of Linux."""
_IOVEC: Final = np.dtype([("base", "<u8"), ("length", "<u8")])
"""A piece of memory, as pwritev(2) has it."""


class ArrayFile:
    """An array of `length` elements from byte `start` of an open file on; `hint` says what to do about a damaged one.

    Read-only, for any number of threads at once. The descriptor is duplicated, `path` is for messages. Raises OSError
    or ValueError where the file cannot be mapped.
    """

    def __init__(self, file: int, path: Path, dtype: np.dtype[Any], start: int, length: int, hint: str = "") -> None:
        self.path, self.dtype, self._start, self._length, self._hint = path, dtype, start, length, hint
        self._file = -1  # where the next line fails
        self._file = os.dup(file)
        self._mapping = mmap.mmap(self._file, start + length * dtype.itemsize, prot=mmap.PROT_READ)
        self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data + start

    def __len__(self) -> int:
        return self._length

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def run(self, first: int, end: int) -> NDArray[Any]:
        """The elements `first` to `end` - 1, or as many of them as there are. Raises `FormatError`."""
        first, end, _ = slice(first, end).indices(self._length)
        found = np.empty(max(0, end - first), self.dtype)
        self._fill(found.view(np.uint8), first)
        return found

    def all(self) -> NDArray[Any]:
        """All elements. Raises `FormatError`."""
        return self.run(0, self._length)

    def take(self, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """The elements with these numbers, in that order. Raises `FormatError`, IndexError.

        Where a file was cut short, its last page is filled up with zeros: elements prove nothing by being there.
        """
        wanted = numbers.astype(np.uint64)  # what is negative becomes too large
        if len(wanted) and int(wanted.max()) >= self._length:
            raise IndexError(f"{self.path} has {self._length:,} elements, and another one was asked for")
        found = np.empty(len(wanted), self.dtype)
        memory, size = found.view(np.uint8), self.dtype.itemsize
        landing = _landing() if hasattr(os, "memfd_create") else None
        for first in range(0, len(wanted), _PIECES):
            some = wanted[first : first + _PIECES]
            there = memory[first * size : (first + len(some)) * size]
            if landing is None or not landing.copy(self._address, some, size, there):
                for at, number in enumerate(some.tolist()):
                    self._fill(there[at * size : (at + 1) * size], number)
        return found

    def _fill(self, memory: NDArray[np.uint8], first: int) -> None:
        """Read elements that lie side by side, from element `first` on. Raises `FormatError`."""
        done, at = 0, self._start + first * self.dtype.itemsize
        while done < len(memory):
            try:
                count = os.preadv(self._file, (memory[done:].data,), at + done)
            except OSError as error:
                what = f"cannot be read: {error.strerror}"
                raise UnreadableError(what, path=self.path, hint=self._hint) from error
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


class _Landing:
    """Memory of one thread that the kernel copies elements into: a file without a name, as pwritev(2) needs one."""

    _file = -1

    def __init__(self) -> None:
        self._file = os.memfd_create("brand-index", os.MFD_CLOEXEC)
        self._memory = np.empty(0, np.uint8)
        self._vector = np.empty(_PIECES, _IOVEC)

    def __del__(self) -> None:
        if self._file >= 0:  # no descriptor may have been left for it
            os.close(self._file)

    def copy(self, address: int, numbers: NDArray[np.uint64], size: int, out: NDArray[np.uint8]) -> bool:
        """Copy elements of `size` bytes of the array at `address`; False where a page of it is gone."""
        if len(self._memory) < len(out):
            os.ftruncate(self._file, _PIECES * size)
            self._memory = np.frombuffer(mmap.mmap(self._file, _PIECES * size), np.uint8)
        vector = self._vector[: len(numbers)]
        np.multiply(numbers, np.uint64(size), out=vector["base"])
        vector["base"] += np.uint64(address)
        vector["length"] = size
        if _pwritev()(self._file, vector.ctypes.data, len(vector), 0) != len(out):
            return False
        out[:] = self._memory[: len(out)]
        return True


@cache
def _pwritev() -> Callable[[int, int, int, int], int]:
    function: Any = ctypes.CDLL(None, use_errno=True).pwritev64
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
    function.restype = ctypes.c_ssize_t
    return function  # type: ignore[no-any-return]


_local = threading.local()


def _landing() -> _Landing:
    """This thread's."""
    found: _Landing | None = getattr(_local, "landing", None)
    if found is None:
        found = _local.landing = _Landing()
    return found


def _forget() -> None:
    """A forked child must not share its landing with its parent."""
    global _local
    _local = threading.local()


os.register_at_fork(after_in_child=_forget)
